"""What a run takes of each device's memory, and that one which cannot fit is refused before it allocates anything."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command import run_t5xpg
from conftest import TESTS
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from t5x.train_state import InferenceState
from t5xpg.base import memory


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))


def test_counts_each_device_s_share(mesh):
    shapes = {"a": jax.ShapeDtypeStruct((8, 4), "float32"), "b": jax.ShapeDtypeStruct((3,), "bfloat16")}
    specs = {"a": PartitionSpec("model"), "b": None}
    assert memory.bytes_on_device(shapes, specs, mesh) == 8 * 4 * 4 + 3 * 2
    four = AbstractMesh((1, 4), ("data", "model"))
    assert memory.bytes_on_device(shapes, specs, four) == 8 * 4 * 4 / 4 + 3 * 2


def test_parameters_that_no_optimizer_takes_have_no_state(mesh):
    shapes = {"a": jax.ShapeDtypeStruct((8,), "float32"), "b": None}
    assert memory.bytes_on_device(shapes, {"a": PartitionSpec("model"), "b": None}, mesh) == 8 * 4


@pytest.mark.parametrize(
    ("size", "words"),
    [(12, "12 bytes"), (4_202_496, "4.2 MB"), (3.2e9, "3.2 GB"), (1.61e12, "1.61 TB"), (1000, "1 kB")],
)
def test_sizes_in_words(size, words):
    assert memory.in_words(size) == words


def test_a_state_is_refused_for_what_stays_and_not_for_gradients(mesh, monkeypatch):
    params = {"a": jax.ShapeDtypeStruct((100, 10), "float32")}
    state, axes = InferenceState(0, params), InferenceState(None, {"a": None})
    parts = memory.state_parts(state, axes, mesh, training=False)
    assert parts == {"parameters": 4000}
    monkeypatch.setattr(memory, "free_on_device", lambda mesh: 4000)
    said = memory.check_state(parts | {"gradients": 4000}, mesh)
    assert said == "8 kB a device (parameters 4 kB, gradients 4 kB), and activations; 4 kB are free on the cpu device"
    monkeypatch.setattr(memory, "free_on_device", lambda mesh: 3999)
    with pytest.raises(ValueError, match="num_partitions"):
        memory.check_state(parts, mesh)
    monkeypatch.setattr(memory, "free_on_device", lambda mesh: None)  # a device that does not tell
    assert "free" not in memory.check_state(parts, mesh)


def test_free_memory_is_the_machine_s(mesh):
    assert 0 < memory.free_on_device(mesh) < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_step_that_xla_cannot_place_is_refused_without_running_it(mesh):
    def step(x):  # sorting needs all of [n, n] at once
        return jnp.sort(x[:, None] * x[None, :], axis=0).sum()

    small = jax.jit(step).lower(jax.ShapeDtypeStruct((1000,), "float32")).compile()
    assert 1000**2 * 4 <= memory.bytes_of_step(small) < 1000**2 * 4 * 8
    memory.check_step(small, mesh)
    large = jax.jit(step).lower(jax.ShapeDtypeStruct((3_000_000,), "float32")).compile()
    with pytest.raises(ValueError, match=r"needs [\d.]+ TB a device .* lower BATCH_SIZE .*num_microbatches, "):
        memory.check_step(large, mesh)


@pytest.mark.parametrize("verb", ["train", "check"])
def test_a_model_of_terabytes_is_one_line(verb, corpus, tmp_path):
    sizes = ("network.T5Config.emb_dim=65536", "network.T5Config.mlp_dim=1048576")
    arguments = (TESTS / "micro.gin", f"FILES={corpus}", f"MODEL_DIR={tmp_path}/run", *sizes)
    done = run_t5xpg(verb, *arguments)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert last.startswith("t5xpg: error: The model needs 3.3 TB a device (parameters 1.65 TB, "), done.stderr
    assert "take smaller network.T5Config sizes" in last
    assert not list(tmp_path.glob("run/checkpoint_*"))
