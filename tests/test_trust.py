"""A config.gin is code: what one that somebody else wrote may name."""

import sys

import gin
import pytest

import t5xpg
from t5xpg import recipes
from t5xpg.cli.main import main

DYNAMIC = "from __gin__ import dynamic_registration\n"
RUN = DYNAMIC + (
    "import __main__ as train_script\nimport seqio\nimport optax\nfrom flax import linen\nfrom t5x import gin_utils\n"
    "from t5xpg import tasks\n"
    "train_script.train.total_steps = 7\n"
    "train_script.train.summarize_config_fn = @gin_utils.summarize_gin_config\n"
    "train_script.train.random_seed = @gin.singleton()\ngin.singleton.constructor = @seqio.ByteVocabulary\n"
    "tasks.jsonl_task.objective = @linen.relu\nSOME = @optax.adam\n"
)
NAMES = "it may name only what is in t5x, t5xpg, seqio, t5, flax, optax"


@pytest.fixture(autouse=True)
def forget_bindings():
    yield
    gin.clear_config()


@pytest.fixture
def model_dir(tmp_path, monkeypatch):
    """A MODEL_DIR with a checkpoint's name in it, and a module of its own that leaves a trace where it is imported."""
    (tmp_path / "their_code.py").write_text(
        f"open({str(tmp_path / 'imported')!r}, 'w').close()\ndef run():\n    open({str(tmp_path / 'called')!r}, 'w')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_code", raising=False)
    (tmp_path / "run" / "checkpoint_10").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint_10" / "checkpoint").touch()
    (tmp_path / "more.gin").write_text(f"{DYNAMIC}import their_code\n")
    return tmp_path / "run"


def test_a_runs_own_names_need_no_trust(model_dir):
    (model_dir / "config.gin").write_text(RUN)
    recipe = recipes.read_run(str(model_dir))
    assert gin.get_bindings(recipe.function, resolve_references=False)["total_steps"] == 7


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (f"{RUN}import their_code\n", "their_code"),
        ("import their_code\n", "their_code"),
        (f"{RUN}from their_code import run\n", "their_code.run"),
        (f"{RUN}import os.path as seqio_path\n", "os.path"),
        (f"{RUN}include 'more.gin'\n", "their_code"),
        (f"{RUN}train_script.train.model = @seqio.os.getcwd()\n", "seqio.os.getcwd"),
        (f"{RUN}train_script.train.model = [@train_script.os.getcwd()]\n", "train_script.os.getcwd"),
        (f"{RUN}seqio.os.makedirs.name = 'x'\n", "seqio.os.makedirs"),
        (f"{RUN}import t5x.utils\nt5x.utils.import_module:\n  module = 'their_code'\n", "t5x.utils.import_module"),
        (f"{RUN}from t5xpg import recipes\nrecipes.read_text.text = 'import their_code'\n", "t5xpg.recipes"),
        (f"{RUN}from t5xpg.base import files\n", "t5xpg.base.files"),
        (f"{RUN}import t5xpg\nA = @t5xpg.model.os.getcwd()\n", "t5xpg"),
        (f"{RUN}import gin as tonic\nA = @tonic.parse_config()\n", "gin"),
    ],
)
def test_another_name_is_refused_before_anything_of_it_runs(lines, named, model_dir, monkeypatch, capsys):
    monkeypatch.chdir(model_dir.parent)
    (model_dir / "config.gin").write_text(lines)
    assert main(["fill-mask", str(model_dir), "<mask>"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"t5xpg: error: {model_dir}/config.gin: names {named}, and a config.gin is code")
    assert NAMES in error and "--trust" in error and error.count("\n") == 1
    assert not (model_dir.parent / "imported").exists()


def test_trust_lets_a_runs_own_modules_in(model_dir):
    (model_dir / "config.gin").write_text(
        f"{RUN}import their_code\ntrain_script.train.model = @their_code.run()\ntrain_script.train.partitioner = None\n"
    )
    with pytest.raises(ValueError, match="names their_code"):
        t5xpg.Model.restore(str(model_dir))
    with pytest.raises(Exception, match=r"^(?!.*names their_code)"):  # there is no checkpoint to restore
        t5xpg.Model.restore(str(model_dir), trust=True)
    assert (model_dir.parent / "imported").exists() and (model_dir.parent / "called").exists()


@pytest.mark.parametrize("verb", [["fill-mask"], ["qa", "--question", "x", "--context"]])
def test_every_verb_that_reads_a_run_asks_for_trust(verb, model_dir, capsys):
    (model_dir / "config.gin").write_text(f"{RUN}import their_code\n")
    words = [verb[0], str(model_dir), *verb[1:], "x"]
    assert main(words) == 1
    assert "names their_code" in capsys.readouterr().err and not (model_dir.parent / "imported").exists()
    assert main([*words, "--trust"]) == 1  # the run is not a real one
    assert "names their_code" not in capsys.readouterr().err and (model_dir.parent / "imported").exists()
