"""Hugging Face both ways: transformers itself loads what is exported, and makes what is imported."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import PROSE, TESTS
from flax.traverse_util import flatten_dict, unflatten_dict
from hub_uploads import UploadServer

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from t5x import checkpoints, partitioning, utils  # noqa: E402
from t5x.embedded import initialization  # noqa: E402
from t5x.examples.t5 import layers  # noqa: E402
from t5x.train_state import InferenceState  # noqa: E402
from t5xpg import hf, recipes  # noqa: E402
from t5xpg import model as model_lib  # noqa: E402
from t5xpg.cli.main import main  # noqa: E402
from t5xpg.hf import checkpoints as hf_checkpoints  # noqa: E402
from t5xpg.hf import folder as hf_folder  # noqa: E402
from t5xpg.hf import t5  # noqa: E402
from t5xpg.hf import tokenizer as hf_tokenizer  # noqa: E402
from t5xpg.vocabularies import sentinels, tokenizer_json, training  # noqa: E402

STEP = 70
SIZES = "emb_dim=16, num_heads=2, num_encoder_layers=2, head_dim=6, mlp_dim=24, dtype='float32'"
TEXTS = ("", "The lighthouse keeper wrote <extra_id_0> every morning", "On clear days <extra_id_1> thin\tgrey  line.")
GIN = """
from __gin__ import dynamic_registration
import __main__ as train_script
import seqio
from t5x.examples.{network} import network
include 't5x/examples/{include}/base.gin'
DROPOUT_RATE = 0.0
train_script.train.model = %MODEL
{vocabulary}
network.T5Config:
  {sizes}
"""


@dataclasses.dataclass
class Family:
    include: str
    rows: int
    decoder_layers: int = 2
    equal_biases: bool = False
    model_type: str = "t5"

    @property
    def scanned(self) -> bool:
        return self.include.startswith("scalable")


FAMILIES = {
    "t5_1_0": Family("t5/t5_1_0", 512),
    "t5_1_1": Family("t5/t5_1_1", 512, decoder_layers=3),
    "mt5": Family("t5/mt5", 640, model_type="mt5"),
    "byt5": Family("t5/byt5", 384),
    "scanned": Family("scalable_t5/t5_1_1", 512, model_type="umt5"),
    "scanned_equal_biases": Family("scalable_t5/t5_1_1", 512, equal_biases=True),
}


@dataclasses.dataclass
class Run:
    """A MODEL_DIR, and the model and parameters that were put there."""

    model_dir: str
    model: object
    params: dict[str, np.ndarray]
    exported: str = ""


@pytest.fixture(scope="module")
def sentencepiece_file(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "corpus.txt").write_text(PROSE * 20)
    return str(training.train_sentencepiece(folder / "corpus.txt", folder / "v", 200))


@pytest.fixture(scope="module", autouse=True)
def offline():
    """Whatever tries to reach a network fails."""

    def refuse(self, address):
        raise AssertionError(f"something connects to {address}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(t5, "MT5_ROWS", FAMILIES["mt5"].rows)
        yield


def make_run(folder: Path, family: Family, sentencepiece_file: str) -> Run:
    """Writes a run of `family` with random parameters, norms and biases too."""
    sizes = f"{SIZES}, vocab_size={family.rows}, num_decoder_layers={family.decoder_layers}"
    name = "seqio.SentencePieceVocabulary"
    vocabulary = f"{name}.sentencepiece_model_file = {sentencepiece_file!r}\n{name}.extra_ids = 100"
    text = GIN.format(
        network="scalable_t5" if family.scanned else "t5",
        include=family.include,
        vocabulary="" if family.include.endswith("byt5") else vocabulary,
        sizes=sizes.replace("=", " = ").replace(", ", "\n  "),
    )
    folder.mkdir()
    (folder / "config.gin").write_text(text)
    model = recipes.read_text(text).settings()["model"]
    shapes = {"encoder_input_tokens": (1, 4), "decoder_input_tokens": (1, 4)}
    variables = jax.eval_shape(lambda: model.get_initial_variables(jax.random.PRNGKey(0), shapes))
    rng = np.random.default_rng(0)
    params = {
        name: rng.normal(0, 1 if "embedding" in name else 0.3, x.shape).astype(np.float32) + ("scale" in name)
        for name, x in flatten_dict(variables["params"], sep="/").items()
    }
    if family.equal_biases:
        params = {k: np.repeat(v[:, :1], v.shape[1], 1) if "relpos" in k else v for k, v in params.items()}
    state = InferenceState(jnp.int32(STEP), unflatten_dict({k: jnp.asarray(v) for k, v in params.items()}, sep="/"))
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    manager = checkpoints.OrbaxCheckpointManagerInterface(str(folder), state, partitioner)
    manager.save(state)
    manager.close()
    return Run(str(folder), model, params)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, sentencepiece_file):
    """Gives a family's run, exported; made once."""
    made = {}

    def get(name: str) -> Run:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = run = make_run(folder / "run", FAMILIES[name], sentencepiece_file)
            run.exported = str(folder / "model")
            if name == "byt5":  # as a user does it
                write_evaluations(folder / "run")
                assert main(["export", "hf", run.model_dir, run.exported]) == 0
            else:
                hf.export_model(f"{run.model_dir}/checkpoint_{STEP}", run.exported)
        return made[name]

    return get


def write_evaluations(model_dir: Path) -> None:
    import tensorflow as tf

    with tf.summary.create_file_writer(str(model_dir / "training_eval" / "my_task")).as_default():
        for step, value in ((STEP - 10, 2.5), (STEP, 2.25), (STEP + 10, 2.0)):
            tf.summary.scalar("nats_per_token", value, step)
    (model_dir / "inference_eval").mkdir()
    lines = [{"step": STEP - 10, "em": 25.0}, {"step": STEP, "em": 37.5}]
    (model_dir / "inference_eval" / "pairs-metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))


def load(folder: str):
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()


def our_logits(module, params: dict[str, np.ndarray], inputs: np.ndarray, decoder_inputs: np.ndarray) -> np.ndarray:
    """Logits of whole sequences, float32 [batch, length, vocab]; no cache, no search."""
    apply = jax.jit(lambda p, *tokens: module.apply({"params": p}, *tokens, enable_dropout=False))
    return np.asarray(apply(unflatten_dict(params, sep="/"), inputs, decoder_inputs, np.ones_like(decoder_inputs)))


def padded(rows: list[list[int]]) -> np.ndarray:
    return model_lib.pad(rows, (len(rows), max(map(len, rows))))


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_loads_the_same_model_and_tokenizer(name, runs):
    run = runs(name)
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(run.exported), load(run.exported)
    assert model.config.model_type == FAMILIES[name].model_type
    assert isinstance(model, getattr(transformers, model.config.architectures[0]))
    rows = [sentinels.encode(text, run.model.input_vocabulary) for text in TEXTS]
    batch = tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    np.testing.assert_array_equal(batch.input_ids, padded(rows))

    with torch.no_grad():  # greedy, to the end token: every id must be the likeliest by our logits
        ids = model.generate(**batch, max_new_tokens=20, do_sample=False)
        theirs = model(**batch, decoder_input_ids=ids[:, :-1]).logits.numpy()
    ours = our_logits(run.model.module, run.params, padded(rows), ids[:, :-1].numpy().astype(np.int32))
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    generated = ids[:, 1:].numpy()
    ended = np.cumsum(generated == 1, axis=-1) - (generated == 1) > 0
    np.testing.assert_array_equal(np.where(ended, 0, ours.argmax(-1)), generated)


def test_buckets_of_positions_are_the_same_at_every_distance():
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = np.arange(-3000, 3001)
    for bidirectional in (True, False):
        theirs = T5Attention._relative_position_bucket(torch.tensor(distances), bidirectional)
        np.testing.assert_array_equal(layers.relative_position_bucket(distances, bidirectional), theirs)


def test_the_model_card_has_the_runs_numbers(runs):
    card = Path(runs("byt5").exported, "README.md").read_text()
    assert f"for {STEP} steps" in card
    assert f"| my_task | nats_per_token | {STEP} | 2.2500 |" in card
    assert "|\n\nnats_per_token: of the first batches of a task's split" in card
    assert f"| pairs | em | {STEP} | 37.5000 |" in card
    code = card.split("```python\n")[1].split("```")[0]
    exec(code.replace('"model"', repr(runs("byt5").exported)), {})


@pytest.mark.parametrize("fault", ["weight", "start", "tokenizer"])
def test_a_model_that_differs_is_not_left(fault, runs, tmp_path, monkeypatch):
    run = runs("t5_1_0")
    if fault == "weight":
        right = t5.to_hf

        def wrong(params, config):
            tensors = right(params, config)
            tensors["decoder.block.1.layer.1.EncDecAttention.k.weight"][3, 5] += 0.1
            return tensors

        monkeypatch.setattr(t5, "to_hf", wrong)
    elif fault == "start":
        right = t5.hf_config
        monkeypatch.setattr(t5, "hf_config", lambda *args: right(*args) | {"decoder_start_token_id": 7})
    else:
        run = runs("byt5")
        right = tokenizer_json.write_bytes
        monkeypatch.setattr(tokenizer_json, "write_bytes", lambda folder, extra_ids: right(folder, 25))
    with pytest.raises(ValueError, match="differ|tokenizer makes") as error:
        hf.export_model(run.model_dir, str(tmp_path / "model"))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


# --- import ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.scanned])
def test_there_and_back_changes_no_bit(name, runs, tmp_path):
    run = runs(name)
    if name in ("t5_1_0", "byt5"):
        source = run.exported if name == "byt5" else save_again(run.exported, tmp_path / "again")
        path, _ = hf.import_model(source, str(tmp_path / "imported"))
        assert path.endswith(f"checkpoint_{STEP}")
        model = hf_checkpoints.read_model("", str(tmp_path / "imported" / "model.gin"))
        assert model.module.config.replace(dtype="float32") == run.model.module.config
        ours, theirs = model.output_vocabulary, run.model.output_vocabulary
        assert (type(ours), ours.extra_ids, ours.vocab_size) == (type(theirs), theirs.extra_ids, theirs.vocab_size)
        assert [ours.encode(text) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]
        params, step = hf_checkpoints.read_params(path)
        assert step == STEP
        assert_restores_with_optimizer(model, path)
    else:  # without the comparison, which takes its time
        config = transformers.AutoConfig.from_pretrained(run.exported).to_dict()
        params = t5.from_hf(hf_folder.read_tensors([Path(run.exported, "model.safetensors")]), config)
    assert params.keys() == run.params.keys()
    for key, value in params.items():
        np.testing.assert_array_equal(value, run.params[key], err_msg=key)


def save_again(folder: str, again: Path) -> str:
    """As transformers 5 saves what it loaded: the tokenizer is tokenizer.json alone."""
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(again)
    transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).save_pretrained(again)
    saved = json.loads((again / "config.json").read_text())
    assert saved["t5x_step"] == STEP and not (again / "spiece.model").exists()
    return str(again)


def assert_restores_with_optimizer(model, path: str) -> None:
    """A run that fine-tunes from `path` finds all that it looks for, so starts nothing from scratch."""
    shapes = dict.fromkeys(("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens"), (2, 4))
    make = initialization.TrainStateInitializer(
        model.optimizer_def, model.get_initial_variables, shapes, partitioning.PjitPartitioner(num_partitions=1)
    )
    state = make.from_checkpoint([utils.RestoreCheckpointConfig(path, "specific")])
    assert int(state.step) == STEP
    moments = [x for x in jax.tree.leaves(state.param_states) if isinstance(x, jax.Array)]
    assert moments and not any(np.any(x) for x in moments)


def their_t5(kind: str):
    """A model made by transformers, with random weights, and whether T5X can tie its embedding."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=320, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_decoder_layers=3, num_heads=2)
    if kind == "t5_1_0":
        return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)), True
    if kind == "mt5":
        return transformers.MT5ForConditionalGeneration(transformers.MT5Config(**sizes)), False
    config = transformers.T5Config(**sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=kind == "scaled_head")
    model = transformers.T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(320, 16))
    return model, False


@pytest.mark.parametrize("kind", ["t5_1_0", "t5_1_1", "mt5", "scaled_head"])
def test_a_model_made_by_transformers(kind, tmp_path, sentencepiece_file):
    theirs, tied = their_t5(kind)
    theirs.eval().save_pretrained(tmp_path / "theirs", max_shard_size="30KB" if kind == "t5_1_1" else "1GB")
    shutil.copyfile(sentencepiece_file, tmp_path / "theirs" / "spiece.model")
    path, _ = hf.import_model(str(tmp_path / "theirs"), str(tmp_path / "ours"))
    params, step = hf_checkpoints.read_params(path)
    assert step == 0 and ("decoder/logits_dense/kernel" not in params) == tied
    module = hf_checkpoints.read_model("", str(tmp_path / "ours" / "model.gin")).module
    inputs, targets = np.random.default_rng(0).integers(1, 320, (2, 3, 150), dtype=np.int32)
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(inputs), decoder_input_ids=torch.tensor(targets)).logits
    logits = our_logits(module.clone(config=module.config.replace(dtype=jnp.float32)), params, inputs, targets)
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_pickled_weights_are_not_read(tmp_path):
    model, _ = their_t5("t5_1_0")
    model.config.save_pretrained(tmp_path / "theirs")
    torch.save(model.state_dict(), tmp_path / "theirs" / "pytorch_model.bin")
    with pytest.raises(ValueError, match="no model.safetensors; pickled weights"):
        hf.import_model(str(tmp_path / "theirs"), str(tmp_path / "ours"))
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "umt5"}, "only 't5' and 'mt5' can be imported"),
        ({"relative_attention_num_buckets": 16}, "'relative_attention_num_buckets': 16"),
        ({"feed_forward_proj": "gelu"}, "feed_forward_proj is 'gelu'"),
    ],
)
def test_what_t5x_cannot_be_is_refused(change, message):
    config = transformers.T5Config().to_dict() | change
    with pytest.raises(ValueError, match=message):
        t5.t5x_config(config)


# --- the tokenizer's file ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bound",
    ["seqio.SentencePieceVocabulary.sentencepiece_model_file", "vocabularies.sentencepiece.path"],
)
@pytest.mark.parametrize("place", ["gs://no-bucket-of-ours/cc_all.model", "/moved/away.model"])
def test_the_tokenizer_is_read_where_it_is_said_to_be(bound, place, runs, sentencepiece_file, tmp_path):
    """A run whose file has moved, and a checkpoint as Google released them, whose gin file names a bucket."""
    run = Path(runs("t5_1_0").model_dir)
    text = (run / "config.gin").read_text().replace(repr(sentencepiece_file), repr(place))
    assert place in text
    if bound.startswith("vocabularies"):
        text = text.replace("import seqio\n", "import seqio\nfrom t5xpg import vocabularies\n")
        text = text.replace("seqio.SentencePieceVocabulary.sentencepiece_model_file", bound)
        text += "VOCABULARY = @vocabularies.sentencepiece()\n"
    (tmp_path / "config.gin").write_text(text)
    shutil.copytree(run / f"checkpoint_{STEP}", tmp_path / f"checkpoint_{STEP}")
    trained = hf_checkpoints.read_trained(str(tmp_path), tokenizer=sentencepiece_file)
    (tmp_path / "out").mkdir()
    vocabulary = hf_tokenizer.write(trained, tmp_path / "out")
    assert vocabulary.encode(TEXTS[1]) == runs("t5_1_0").model.output_vocabulary.encode(TEXTS[1])
    assert (tmp_path / "out" / "spiece.model").read_bytes() == Path(sentencepiece_file).read_bytes()
    (tmp_path / "config.gin").rename(tmp_path / "model.gin")
    again = hf_checkpoints.read_trained(str(tmp_path), str(tmp_path / "model.gin"), sentencepiece_file)
    assert again.vocabulary == vocabulary
    if bound.startswith("seqio"):  # by the command too, which takes its time
        words = ["export", "hf", str(tmp_path), f"{tmp_path}/again", "--gin", f"{tmp_path}/model.gin"]
        assert main([*words, "--tokenizer", sentencepiece_file]) == 0
        assert (tmp_path / "again" / "spiece.model").read_bytes() == Path(sentencepiece_file).read_bytes()


# --- refusals ----------------------------------------------------------------------------------


def test_a_checkpoint_of_the_legacy_layout_with_a_gin_file(tmp_path):
    with zipfile.ZipFile(TESTS / "golden" / "legacy_checkpoint.zip") as archive:
        archive.extractall(tmp_path)
    checkpoint = str(tmp_path / "checkpoint_3")
    with pytest.raises(ValueError, match="config.gin is missing, so the model is not known; pass --gin"):
        hf_checkpoints.read_trained(checkpoint)
    (tmp_path / "model.gin").write_text("include 't5x/examples/t5/byt5/small.gin'\n")
    trained = hf_checkpoints.read_trained(checkpoint, str(tmp_path / "model.gin"))
    assert trained.step == 3
    expected = np.load(tmp_path / "expected.npz")
    for name, value in trained.params.items():
        np.testing.assert_array_equal(value, expected[f"target/{name}"])


def test_no_folder_is_overwritten_and_none_is_made_up(tmp_path, runs):
    with pytest.raises(FileExistsError, match="exists already"):
        hf.export_model(runs("byt5").model_dir, str(tmp_path))
    with pytest.raises(ValueError, match="is not a T5X checkpoint.*no checkpoint is there"):
        hf.export_model(str(tmp_path), str(tmp_path / "new"))
    assert not list(tmp_path.iterdir())


def test_missing_packages_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hf_checkpoints, "NEEDED", ("torch", "a_package_that_is_not_there"))
    assert main(["export", "hf", str(tmp_path), str(tmp_path / "new")]) == 1
    error = capsys.readouterr().err
    assert error == "t5xpg: error: This needs a_package_that_is_not_there: pip install 't5xpg[hf]'\n"


PUSHES = """
import sys
from t5xpg import hf
from t5xpg.cli import export, main
export.load_hf = lambda: hf  # without TensorFlow
hf.export_model = lambda *args, **kwargs: {"logits": 0.0, "largest_logit": 0.0}  # the folder is there already
for words in (["me/lighthouse"], ["me/harbour", "--public"], ["me/known"]):
    main.main(["export", "hf", "run", sys.argv[1], "--push", *words])
"""


def test_a_model_is_pushed_where_its_owner_alone_sees_it_unless_everybody_may(runs):
    folder = runs("byt5").exported
    with UploadServer() as hub:
        hub.repos["me/known"], hub.private["me/known"] = {}, False
        env = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "hf_secret", "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-c", PUSHES, folder]
        done = subprocess.run(command, env=env, cwd=TESTS.parent, capture_output=True, text=True, check=False)
        said = [f"uploaded to {hub.endpoint}/{name}" for name in ("me/lighthouse", "me/harbour")]
        assert [line for line in done.stdout.splitlines() if "uploaded" in line] == said, done.stderr
        assert "me/known is a public repository; add --public to upload to it" in done.stderr
        assert hub.tokens == {"Bearer hf_secret"}
        assert hub.private == {"me/lighthouse": True, "me/harbour": False, "me/known": False}
        content = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        assert hub.repos == {"me/lighthouse": content, "me/harbour": content, "me/known": {}}


def test_export_asks_for_trust(runs, tmp_path, capsys):
    run = shutil.copytree(runs("byt5").model_dir, tmp_path / "run")
    (run / "config.gin").write_text((run / "config.gin").read_text() + "import this\n")
    assert main(["export", "hf", str(run), str(tmp_path / "out")]) == 1
    assert f"{run}/config.gin: names this, and a config.gin is code" in capsys.readouterr().err
    with pytest.raises(ValueError, match="names this"):
        hf_checkpoints.read_trained(str(run))
    assert hf_checkpoints.read_trained(str(run), trust=True).step == STEP
