"""A config.gin is code: what one that somebody else wrote may name."""

import importlib
import sys
from pathlib import Path

import gin
import pytest
import seqio
from flax import serialization

import t5xpg
from t5x import utils
from t5xpg import recipes, trust
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
NAMES = "it may name only what t5xpg.trust.NAMES lists, of t5x, t5xpg, seqio, t5, flax, optax."
# A vocabulary of a task that is registered by a module, whose name is a string.
BY_STRING = (
    "from t5x import utils\nutils.DatasetConfig:\n  module = 'their_code'\n  mixture_or_task_name = 'x'\n"
    "  task_feature_lengths = None\n  split = 'train'\n  batch_size = 1\n  shuffle = False\n  seed = 0\n"
)
CFG = f"{RUN}{BY_STRING}utils.{{0}}.cfg = @utils.DatasetConfig()\ntrain_script.train.random_seed = @utils.{{0}}()\n"
# gin calls what a function refers to when the function is called, such as decode_fn by `predict`.
LATER = (
    "from t5x import utils\nfrom t5x import decoding\nfrom t5x import models\nfrom t5x import optimizers\n"
    "decoding.temperature_sample.topk = @optimizers.OptaxWrapper.init_state()\n"
    "optimizers.OptaxWrapper.init_state.self = @optimizers.OptaxWrapper()\n"
    "optimizers.OptaxWrapper.init_state.params = @utils.DatasetConfig()\n"
    "optimizers.OptaxWrapper.optax_optimizer = @optax.GradientTransformation()\n"
    "optax.GradientTransformation.init = @utils.get_training_eval_datasets\n"
    "models.EncoderDecoderModel.decode_fn = @decoding.temperature_sample\n"
)
KEY = "from t5x import utils\ntrain_script.train.random_seed = {@utils.get_training_eval_datasets: 1}\n"


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
    (tmp_path / "run" / "checkpoint_10" / "checkpoint").write_bytes(
        serialization.msgpack_serialize({"version": 3, "optimizer": {"target": {}}})
    )
    (tmp_path / "t5x").mkdir()
    (tmp_path / "t5x" / "more.gin").write_text(f"{DYNAMIC}import their_code\n")
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "__init__.py").write_text("import their_code")
    (tmp_path / "more.gin").write_text(f"{DYNAMIC}import their_code\n")
    return tmp_path / "run"


def test_a_runs_own_names_need_no_trust(model_dir):
    (model_dir / "config.gin").write_text(RUN)
    recipe = recipes.read_run(str(model_dir))
    assert gin.get_bindings(recipe.function, resolve_references=False)["total_steps"] == 7


def test_every_recipe_that_ships_needs_no_trust(monkeypatch):
    root = Path(__file__).parent.parent
    monkeypatch.chdir(root)
    found = [str(path.relative_to(root)) for path in root.glob("configs/**/*.gin")]
    found += [str(path.relative_to(root / "t5xpg" / "engine")) for path in root.glob("t5xpg/engine/**/*.gin")]
    for path in found:
        if "infer_from" in path:  # whose task, a function of infer's, no run of `train` has
            continue
        with recipes.parsing():
            gin.parse_config(f"include {path!r}")
            written = gin.config_str()  # what a run leaves as its config.gin
        with recipes.parsing(), trust.only_known(path):
            gin.parse_config(written)
    assert len(found) > 30


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (f"{RUN}import their_code\n", "their_code"),
        ("import their_code\n", "their_code"),
        (f"{RUN}from their_code import run\n", "their_code.run"),
        (f"{RUN}import os.path as seqio_path\n", "os.path"),
        (f"{RUN}include 'more.gin'\n", "include 'more.gin'"),
        (f"{RUN}include 'their_package/below/more.gin'\n", "include 'their_package/below/more.gin'"),
        (f"{RUN}include 't5x/../their_package/below/more.gin'\n", "include 't5x/../their_package/below/more.gin'"),
        (f"{RUN}include 't5x/more.gin'\n", "their_code"),
        (f"{RUN}train_script.train.model = @seqio.os.getcwd()\n", "seqio.os.getcwd"),
        (f"{RUN}train_script.train.model = [@train_script.os.getcwd()]\n", "train_script.os.getcwd"),
        (f"{RUN}seqio.os.makedirs.name = 'x'\n", "seqio.os.makedirs"),
        (f"{RUN}import t5x.utils\nt5x.utils.import_module:\n  module = 'their_code'\n", "t5x.utils.import_module"),
        (f"{RUN}from t5xpg import recipes\nrecipes.read_text.text = 'import their_code'\n", "t5xpg.recipes"),
        (f"{RUN}from t5xpg.base import files\n", "t5xpg.base.files"),
        (f"{RUN}import t5xpg\nA = @t5xpg.model.os.getcwd()\n", "t5xpg.model.os.getcwd"),
        (f"{RUN}from gin import config\nA = @config.parse_config()\n", "config.parse_config"),
        (f"{RUN}import gin as tonic\nA = @tonic.parse_config()\n", "gin"),
        (CFG.format("get_vocabulary"), "utils.get_vocabulary"),
        (CFG.format("get_dataset"), "utils.get_dataset"),
        (CFG.format("get_training_eval_datasets"), "@utils.get_training_eval_datasets"),
        (f"{RUN}{LATER}", "@utils.get_training_eval_datasets"),
        (f"{RUN}{KEY}", "@utils.get_training_eval_datasets"),
        (f"{RUN}train_script.train.random_seed = {{@train_script.train(): 1}}\n", "@train_script.train"),
        (f"{RUN}A = @train_script.infer()\n", "@train_script.infer"),
        (f"{RUN}gin.singleton.constructor = @train_script.train\n", "@train_script.train"),
        (f"{RUN}from seqio import beam_utils\nA = @beam_utils._import_modules()\n", "seqio.beam_utils"),
        (f"{RUN}from t5.scripts import dump_task\n", "t5.scripts.dump_task"),
        (f"{RUN}from t5.models import mtf_model\n", "t5.models.mtf_model"),
        (f"{RUN}A = @seqio.LazyTfdsLoader()\n", "seqio.LazyTfdsLoader"),
        (f"{RUN}from t5x import gin_utils\nA = @gin_utils.parse_gin_flags()\n", "gin_utils.parse_gin_flags"),
        (f"{RUN}from t5x import models\nA = @models.jnp.load()\n", "models.jnp.load"),
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


@pytest.mark.parametrize(
    "lines",
    [CFG.format("get_vocabulary"), f"{RUN}train_script.train.random_seed = @seqio.ByteVocabulary.parse()\n"],
    ids=["module", "gin"],
)
def test_values_are_held_as_names_are(lines, model_dir, monkeypatch):
    """Also where a function of T5X's or SeqIO's, which was thought harmless, imports or parses what a string names."""

    def parse(self=None):
        gin.parse_config("import their_code")

    monkeypatch.setattr(seqio.ByteVocabulary, "parse", parse, raising=False)
    parse.__module__, parse.__qualname__ = "seqio.vocabularies", "ByteVocabulary.parse"
    get_vocabulary = trust.defined_at(utils.get_vocabulary).removeprefix("t5x.")
    monkeypatch.setitem(trust.NAMES, "t5x", (*trust.NAMES["t5x"], get_vocabulary))
    (model_dir / "config.gin").write_text(lines)
    recipe = recipes.read_run(str(model_dir))
    with pytest.raises(ValueError, match="names their_code, and a config.gin is code"):
        recipe.settings()
    assert not (model_dir.parent / "imported").exists()


def test_a_dataset_of_a_module_is_held_too(model_dir):
    dataset = f"{BY_STRING}train_script.train.train_dataset_cfg = @utils.DatasetConfig()\n"
    (model_dir / "config.gin").write_text(RUN + dataset)
    with pytest.raises(ValueError, match="names their_code, and a config.gin is code"):
        recipes.read_run(str(model_dir)).dataset_config()
    assert not (model_dir.parent / "imported").exists()
    recipes.read_run(str(model_dir), trust=True).dataset_config()
    assert (model_dir.parent / "imported").exists()


def test_what_is_imported_while_values_are_resolved_is_otherwise_free(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with trust.only_known("config.gin"):
        utils.import_module("t5xpg.tasks")
        importlib.import_module("colorsys")  # by a library, lazily
        with pytest.raises(ValueError, match="names colorsys"):
            utils.import_module("colorsys")
    utils.import_module("colorsys")


def test_what_is_documented_is_what_may_be_named():
    security = Path(trust.__file__).parent.parent.joinpath("SECURITY.md").read_text(encoding="utf-8")
    assert f"({', '.join(trust.NAMES['t5xpg'])})" in " ".join(security.split())
    for package in trust.NAMES:
        assert package in security
    assert all(map(trust.is_known_module, trust.NAMES))


def test_the_guide_says_that_a_config_is_code():
    guide = Path(trust.__file__).parent.parent.joinpath("docs", "guides", "predict.md").read_text(encoding="utf-8")
    (said,) = [text for text in guide.split("\n\n") if "`config.gin` is code" in text]
    for word in ("`predict`", "`score`", "`qa`", "`fill-mask`", "`export`", "SECURITY.md", "`--trust`"):
        assert word in said


def test_what_train_alone_is_given_may_be_named(model_dir):
    binding = "train_script.train.train_eval_get_dataset_fn = @utils.get_training_eval_datasets\n"
    (model_dir / "config.gin").write_text(f"{RUN}from t5x import utils\n{binding}")
    assert recipes.read_run(str(model_dir)).program == "train"


def test_a_name_that_is_nowhere_is_gins_to_name(model_dir):
    (model_dir / "config.gin").write_text("nowhere.thing = 1\n")
    with pytest.raises(ValueError, match="No configurable matching 'nowhere'"):
        recipes.read_run(str(model_dir))


def test_trust_lets_a_runs_own_modules_in(model_dir):
    (model_dir / "config.gin").write_text(
        f"{RUN}import their_code\ntrain_script.train.model = @their_code.run()\ntrain_script.train.partitioner = None\n"
    )
    with pytest.raises(ValueError, match="names their_code"):
        t5xpg.Model.restore(str(model_dir))
    with pytest.raises(Exception, match=r"^(?!.*names their_code)"):  # there is no checkpoint to restore
        t5xpg.Model.restore(str(model_dir), trust=True)
    assert (model_dir.parent / "imported").exists() and (model_dir.parent / "called").exists()


@pytest.mark.parametrize(
    "verb",
    [
        "fill-mask {run} x",
        "qa {run} --question x --context x",
        "predict {run} x",
        "score {run} x x",
        "export hf {run} {run}_hf",
        "export ct2 {run} {run}_ct2",
        "export savedmodel {run} {run}_tf",
    ],
)
def test_every_verb_that_reads_a_run_asks_for_trust(verb, model_dir, capsys, monkeypatch):
    monkeypatch.setenv("T5XPG_ENGINE", "embedded")  # export hf sets it
    (model_dir / "config.gin").write_text(f"{RUN}import their_code\n")
    words = verb.format(run=model_dir).split()
    assert main(words) == 1
    assert "names their_code" in capsys.readouterr().err and not (model_dir.parent / "imported").exists()
    assert main([*words, "--trust"]) == 1  # the run is not a real one
    assert "names their_code" not in capsys.readouterr().err and (model_dir.parent / "imported").exists()
