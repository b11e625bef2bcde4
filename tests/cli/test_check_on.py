"""`t5xpg check RECIPE --on SLICE`: a recipe's step, compiled for TPUs that are not here."""

import importlib.util
import os
import re

import pytest
from command import run_t5xpg

from t5xpg import t5x_finder
from t5xpg.cli import check, check_on
from t5xpg.cli.main import main
from t5xpg.inspection import accelerators

needs_libtpu = pytest.mark.skipif(
    not os.environ.get("TPU_LIBRARY_PATH") and importlib.util.find_spec("libtpu") is None, reason="libtpu is not here"
)


def test_says_what_is_missing_before_anything_is_read(monkeypatch, capsys):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["check", "nothing.gin", "--on", "v5e-16"]) == 1
    error = capsys.readouterr().err
    assert error == "t5xpg: error: Compiling for v5e-16 needs libtpu; pip install 't5xpg[tpu]'.\n"


def test_refuses_gpus_and_unknown_names_in_a_line(capsys):
    assert main(["check", "nothing.gin", "--on=h100:8"]) == 1
    assert "h100:8 is a GPU, and steps are compiled for TPUs only: v4-32" in capsys.readouterr().err
    assert main(["check", "--on", "v7-4", "nothing.gin"]) == 1
    assert "'v7-4' is not a TPU slice" in capsys.readouterr().err


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
@pytest.mark.parametrize(("name", "model"), [("v5e:4x4", 2), ("v5e:4x4", 8), ("v4-8", 2), ("v5p-16", 8)])
def test_a_mesh_need_not_follow_the_slices_axes(name, model):
    from t5x import partitioning
    from t5x.embedded import platforms

    target = accelerators.find(name)
    check_on.use_libtpu(name)
    with platforms.standing_in(check_on.devices_of(target)):
        mesh = partitioning.PjitPartitioner(num_partitions=model).mesh
    assert mesh.shape == {"data": target.chips // model, "model": model}
    assert len(set(mesh.devices.flat)) == target.chips
