"""`t5xpg check RECIPE --on NAME`: a recipe's step, compiled for TPUs and GPUs that are not here."""

import importlib.util
import os
import re
from types import SimpleNamespace

import gin
import jax
import numpy as np
import pytest
from command import run_t5xpg

from t5xpg import t5x_finder
from t5xpg.cli import check, check_on, compilers
from t5xpg.cli.main import main
from t5xpg.inspection import accelerators
from t5xpg.inspection.compiled import Program

needs_libtpu = pytest.mark.skipif(
    not os.environ.get("TPU_LIBRARY_PATH") and importlib.util.find_spec("libtpu") is None, reason="libtpu is not here"
)


needs_cuda = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="JAX's CUDA plugin is not here"
)


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("v5e-16", "Compiling for v5e:4x4 needs libtpu; pip install 't5xpg[tpu]'."),
        ("h100:8", "Compiling for h100:8 needs JAX's CUDA plugin; pip install 't5xpg[cuda]'."),
    ],
)
def test_says_what_is_missing_before_anything_is_read(monkeypatch, capsys, name, needed):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["check", "nothing.gin", "--on", name]) == 1
    assert capsys.readouterr().err == f"t5xpg: error: {needed}\n"


def test_refuses_unknown_names_and_several_nodes_in_a_line(capsys):
    assert main(["check", "--on", "v7-4", "nothing.gin"]) == 1
    assert "'v7-4' is nothing that steps are compiled for" in capsys.readouterr().err
    assert main(["check", "nothing.gin", "--on=h100:16"]) == 1
    assert "1 to 8 GPUs of one node, as h100:8.\n" in capsys.readouterr().err


def test_the_users_flags_of_xla_count_over_those_that_a_gpus_compiler_needs(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "jax_cuda12_plugin")
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=2")
    compilers.use(accelerators.find("l4"))
    assert os.environ["XLA_FLAGS"].split() == [*compilers.XLA_FLAGS.split(), "--xla_gpu_autotune_level=2"]


def test_an_installed_t5x_is_refused_in_a_line(monkeypatch, capsys):
    monkeypatch.setenv("TPU_LIBRARY_PATH", "libtpu.so")
    monkeypatch.setattr(t5x_finder, "is_embedded", lambda: False)
    assert main(["check", "nothing.gin", "--on", "v5e-4"]) == 1
    assert "set T5XPG_ENGINE=embedded" in capsys.readouterr().err


def test_its_options_are_not_the_runs():
    own, rest = check.own_options(["a.gin", "--on", "v5e-4", "A=1", "--gin_file", "b.gin", "--dump=out"])
    assert (own.on, own.dump, rest) == ("v5e-4", "out", ["a.gin", "A=1", "--gin_file", "b.gin"])


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
         "Used 24.50G of 15.75G hbm. Exceeded hbm capacity by 8.75G.", 24.5 * 2**30),
        ("RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (21.25G) "
         "exceeds available HBM (15.75G).", 21.25 * 2**30 + 1000),
    ],
)  # fmt: skip
def test_reads_what_a_step_would_need_of_a_chip_too_small_for_it(message, needed):
    assert check_on.needed_by(message, state=1000) == needed


def test_shows_what_else_the_compiler_says():
    with pytest.raises(ValueError, match=r"cannot be compiled: INTERNAL: a bug$"):
        check_on.needed_by("INTERNAL: a bug\nat a place", state=1000)


@needs_libtpu
def test_compiles_a_recipes_step_for_a_slice(corpus, tmp_path):
    done = run_t5xpg("check", "tests/micro.gin", f"FILES={corpus}", "--on", "v5e:2x2", "--dump", tmp_path / "programs")
    assert done.returncode == 0, done.stderr
    facts = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert facts["batch"] == "8 on a mesh of 4 data × 1 model (tpu)"
    assert "49,504 parameters" in facts["model"]
    assert "of a chip's 16 GiB (parameters 193 KiB," in facts["memory"] and facts["memory"].endswith(": fits")
    sent = re.fullmatch(r"all-reduce ([\d.]+) kB \(\d+ times\)", facts["network"])[1]
    assert 4 * 49504 / 1e3 < float(sent) < 3 * 4 * 49504 / 1e3  # gradients, padded, and the metrics
    binds = re.search(r": (\w+) binds$", facts["time"])[1]
    times = {name: float(t) for name, t in re.findall(r"(\w+) ([\de.-]+) ms", facts["time"])}
    assert times[binds] == max(times.values())
    rate = int(facts["bound"].split()[0].replace(",", ""))
    assert rate == pytest.approx(8 * (64 + 13) / times[binds] * 1000, rel=0.01)
    assert facts["bound"].endswith("a bound, not a prediction")
    assert facts["ready"].startswith("t5xpg train tests/micro.gin") and facts["ready"].endswith("MODEL_DIR=…")
    (program,) = (tmp_path / "programs").iterdir()
    assert program.read_text().startswith("HloModule jit_train_step") and facts["program"] == str(program)


@needs_libtpu
def test_names_bindings_that_fit_where_the_recipe_does_not(corpus):
    too_large = ("network.T5Config.emb_dim=8192", "network.T5Config.mlp_dim=98304")
    done = run_t5xpg("check", "tests/micro.gin", f"FILES={corpus}", *too_large, "--on", "v5e-4")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("memory") and line.endswith(": does not fit") for line in lines)
    assert lines[-1] == f"fits       with {check_on.SPREAD}=2"


@needs_libtpu
def test_compiles_what_t5xs_precompile_would(corpus):
    done = run_t5xpg("check", "tests/micro_precompile.gin", f"FILES={corpus}", "--on", "v5e:2x2")
    assert done.returncode == 0, done.stderr
    assert "compiled   for v5e:2x2" in done.stdout and "ready" not in done.stdout


def test_a_recipe_of_precompile_is_for_something(corpus, capsys):
    assert main(["check", "tests/micro_precompile.gin", f"FILES={corpus}"]) == 1
    assert capsys.readouterr().err.endswith("say for what, as --on v5e-16 does.\n")


@needs_libtpu
@pytest.mark.parametrize(("name", "model"), [("v5e:4x4", 2), ("v5e:4x4", 8), ("v4-8", 2), ("v5p-16", 8)])
def test_a_mesh_need_not_follow_the_slices_axes(name, model):
    from t5x import partitioning
    from t5x.embedded import platforms

    target = accelerators.find(name)
    compilers.use(target)
    with platforms.standing_in(compilers.devices(target)):
        mesh = partitioning.PjitPartitioner(num_partitions=model).mesh
    assert mesh.shape == {"data": target.chips // model, "model": model}
    assert len(set(mesh.devices.flat)) == target.chips


def matrix_operations(batch: int, inputs: int, targets: int) -> int:
    """Of a training step of tests/micro_model.gin with ByT5's 384 ids: thrice those of its forward pass."""
    emb, inner, mlp, vocab = 32, 2 * 16, 64, 384
    projections = emb * inner * (4 * inputs + 4 * targets + 2 * targets + 2 * inputs)
    attention = 2 * inner * (inputs**2 + targets**2 + inputs * targets)
    others = 3 * emb * mlp * (inputs + targets) + emb * vocab * targets
    return 3 * 2 * batch * (projections + attention + others)


@needs_cuda
@pytest.mark.parametrize("number", [1, 2])
def test_compiles_a_recipes_step_for_gpus(corpus, tmp_path, number):
    done = run_t5xpg("check", "tests/micro.gin", f"FILES={corpus}", "--on", f"h100:{number}", "--dump", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    facts = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert facts["batch"] == f"8 on a mesh of {number} data × 1 model (gpu)"
    assert "of a chip's 79 GiB (parameters 193 KiB," in facts["memory"] and facts["memory"].endswith(": fits")
    assert "note" not in facts
    counted = Program((tmp_path / f"train_step.h100_{number}.hlo.txt").read_text()).operations()
    assert counted == pytest.approx(matrix_operations(8 // number, 64, 13), rel=0.05)
    if number == 1:
        assert facts["network"] == "nothing is sent"
    else:
        sent = re.fullmatch(r"all-reduce ([\d.]+) kB \(\d+ times\)", facts["network"])[1]
        assert 4 * 49504 / 1e3 < float(sent) < 1.5 * 4 * 49504 / 1e3  # gradients and the metrics
    assert facts["bound"].endswith("a bound, not a prediction")


@needs_cuda
def test_a_gpus_fused_attention_is_cudnns_and_is_counted(corpus, tmp_path):
    fused = ("network.T5Config.fused_attention=True", "network.T5Config.dtype=bfloat16")
    done = run_t5xpg("check", "tests/micro.gin", f"FILES={corpus}", *fused, "--on", "h100:2", "--dump", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "train_step.h100_2.hlo.txt").read_text()
    for kernel in ("__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"):
        assert text.count(f'"{kernel}"') == 1  # the encoder's: 13 target tokens are odd
    weights_again = 2 * 4 * 64 * 64 * (2 * 16)
    assert Program(text).operations() == pytest.approx(matrix_operations(4, 64, 13) + weights_again, rel=0.05)
    assert "kernels" not in done.stdout


@needs_cuda
def test_names_bindings_with_which_a_step_fits_a_gpu(corpus):
    too_large = ("network.T5Config.emb_dim=8192", "network.T5Config.mlp_dim=131072")
    done = run_t5xpg("check", "tests/micro.gin", f"FILES={corpus}", *too_large, "--on", "l4:4")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("memory") and line.endswith(": does not fit") for line in lines)
    assert not any(line.startswith(("work", "ready")) for line in lines)
    assert lines[-1] == f"fits       with {check_on.SPREAD}=2"


def prepared_for(remat_policy: str | None) -> check_on.Prepared:
    config = SimpleNamespace() if remat_policy is None else SimpleNamespace(remat_policy=remat_policy)
    settings = {
        "model": SimpleNamespace(module=SimpleNamespace(config=config)),
        "partitioner": SimpleNamespace(mesh=SimpleNamespace(shape={"data": 1, "model": 1})),
    }
    batch = {"encoder_input_tokens": jax.ShapeDtypeStruct((2, 16), np.int32)}
    return check_on.Prepared(settings, batch, None)


def step_of(needed_gib: float, fits: bool) -> check_on.Step:
    text = "ENTRY %main (a: f32[8]) -> f32[8] {\n  %a = f32[8]{0} parameter(0)\n  ROOT %b = f32[8]{0} copy(%a)\n}\n"
    return check_on.Step(1024**3, 0, int(needed_gib * 1024**3), fits, text, 1.0)


@pytest.mark.parametrize(
    ("remat_policy", "names"),
    [("none", ["minimal", "full"]), ("minimal", ["full"]), ("full", []), (None, [])],
)
def test_rematerialising_more_is_tried_where_the_network_can(remat_policy, names):
    gin.clear_config()
    found = list(check_on.neighbours(step_of(30, False), prepared_for(remat_policy), accelerators.find("l4")))
    assert found[0] == [f"{check_on.MICROBATCHES}=2"]
    assert [words for words in found if len(words) == 1][1:] == [[f"{check_on.REMAT}={name!r}"] for name in names]


def test_a_gpus_step_that_does_not_fit_is_told_by_its_memory_only():
    target = accelerators.find("l4")
    told = list(check_on.describe(step_of(30, False), prepared_for(None), target))
    assert [name for name, _ in told] == ["compiled", "memory"]
    assert told[1][1].startswith("30 GiB of a chip's 22 GiB") and told[1][1].endswith(": does not fit")


@pytest.mark.parametrize(("needed", "is_told"), [(16, False), (17, True)])
def test_a_step_that_needs_more_than_jax_takes_of_a_gpu_is_told_how(needed, is_told):
    told = dict(check_on.describe(step_of(needed, True), prepared_for(None), accelerators.find("l4")))
    how = " with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95, as JAX takes 75% unless told"
    assert told["memory"].endswith(f": fits{how if is_told else ''}") and "bound" in told
