"""Hugging Face folders that are damaged, hostile or incomplete: one line that names the file, and nothing is left."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import PROSE

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
from safetensors.numpy import load_file, save_file  # noqa: E402

from t5xpg import hf  # noqa: E402
from t5xpg.hf import tokenizer as hf_tokenizer  # noqa: E402
from t5xpg.vocabularies import tokenizer_json, training  # noqa: E402

SIZES = dict(vocab_size=320, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=2)
WI = "encoder.block.1.layer.1.DenseReluDense.wi.weight"


@pytest.fixture(scope="module")
def sentencepiece_file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "corpus.txt").write_text(PROSE * 20)
    return Path(training.train_sentencepiece(folder / "corpus.txt", folder / "v", 200))


@pytest.fixture(scope="module")
def saved(tmp_path_factory, sentencepiece_file) -> Path:
    """A T5 as transformers 5 saves it, in two parts, its tokenizer without spiece.model."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES))
    model.save_pretrained(folder, max_shard_size="30KB")
    transformers.T5Tokenizer.from_pretrained(save_slow(folder / "slow", sentencepiece_file)).save_pretrained(folder)
    shutil.rmtree(folder / "slow")
    assert not (folder / "spiece.model").exists() and len(list(folder.glob("*.safetensors"))) == 2
    return folder


def save_slow(folder: Path, sentencepiece_file: Path, **config) -> Path:
    """Writes a tokenizer as transformers 4 did: the SentencePiece model, and a configuration."""
    folder.mkdir()
    shutil.copyfile(sentencepiece_file, folder / "spiece.model")
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text('{"model_type": "t5"}')
    return folder


@pytest.fixture
def broken(saved, tmp_path) -> Path:
    """A copy of `saved` to break, its weights in one file."""
    folder = shutil.copytree(saved, tmp_path / "theirs")
    merge(folder)
    return folder


def merge(folder: Path) -> None:
    tensors: dict = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def refused(folder: Path) -> str:
    """Returns why a folder is refused, in one line, with nothing written."""
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(ValueError, match=str(folder)) as error:
        hf.import_model(str(folder), str(folder.parent / "ours"))
    assert "\n" not in str(error.value) and sorted(folder.parent.rglob("*")) == before
    return str(error.value)


def change(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


# ---- The tokenizer ----


def test_a_tokenizer_saved_without_its_sentencepiece_model(saved, sentencepiece_file, tmp_path):
    theirs = transformers.AutoTokenizer.from_pretrained(saved)
    ours = hf_tokenizer.read(saved, tmp_path)
    assert (ours.vocab_size, ours.extra_ids, ours.eos_id, ours.pad_id, ours.unk_id) == (181, 100, 1, 0, 2)
    assert ours.sentencepiece_model_file == str(tmp_path / "spiece.model")
    texts = [*PROSE.split(". "), "Größe 中文 🙂", "  two  spaces\tand <extra_id_0> <extra_id_99> ", "🙂 x"]
    for text in texts:
        assert [*ours.encode(text), 1] == theirs(text).input_ids
    original = hf_tokenizer.read(save_slow(tmp_path / "slow", sentencepiece_file), tmp_path)
    for text in (*texts, "①ﬁ ½…\u0301 ＡＢＣ ｶﾞ 각"):
        assert ours.encode(text) == original.encode(text)
    tokenizer_json.write(tmp_path / "spiece.model", tmp_path / "again")  # what is made can be exported, too


def test_an_exported_tokenizer_saved_again(saved, sentencepiece_file, tmp_path):
    tokenizer_json.write(sentencepiece_file, tmp_path / "exported")
    (tmp_path / "again").mkdir()
    transformers.AutoTokenizer.from_pretrained(tmp_path / "exported").save_pretrained(tmp_path / "again")
    shutil.copyfile(saved / "config.json", tmp_path / "again" / "config.json")
    ours = hf_tokenizer.read(tmp_path / "again", tmp_path)
    assert ours.encode(PROSE) == hf_tokenizer.read(saved, tmp_path).encode(PROSE)


def test_byt5s_own_tokenizer_is_the_bytes_it_was_trained_with(saved, tmp_path):
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    shutil.copyfile(saved / "config.json", tmp_path / "config.json")
    assert (hf_tokenizer.read(tmp_path, tmp_path).vocab_size, list(tmp_path.glob("spiece*"))) == (259, [])


@pytest.mark.parametrize("kind", ["none", "added", "other model", "bpe"])
def test_a_tokenizer_that_t5x_cannot_have_is_refused_by_name(kind, broken, tmp_path, sentencepiece_file):
    theirs = transformers.AutoTokenizer.from_pretrained(broken)
    if kind == "none":
        for path in broken.glob("tokenizer*"):
            path.unlink()
        assert "no spiece.model or tokenizer.json there" in refused(broken)
    elif kind == "added":
        theirs.add_tokens(["<sep>"])
        theirs.save_pretrained(broken)
        assert "its tokenizer has the id 181 for '<sep>', and its SentencePiece model None" in refused(broken)
    elif kind == "other model":
        (tmp_path / "corpus.txt").write_text("An utterly different corpus of just a few words, other words. " * 30)
        other = training.train_sentencepiece(tmp_path / "corpus.txt", tmp_path / "other", 60)
        shutil.copyfile(other, broken / "spiece.model")
        assert "its tokenizer has the id" in refused(broken)
    else:
        content = json.loads((broken / "tokenizer.json").read_text())
        content["model"] = {"type": "BPE", "vocab": {"<pad>": 0, "</s>": 1, "<unk>": 2}, "merges": []}
        (broken / "tokenizer.json").write_text(json.dumps(content))
        assert f"{broken}/tokenizer.json: " in refused(broken)
        change(broken / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
        assert f"{broken}/tokenizer.json: a tokenizer of type BPE; only Unigram can be imported" in refused(broken)


def test_a_tokenizer_of_another_model_is_refused(broken):
    change(broken / "config.json", eos_token_id=2)
    assert "the tokenizer's EOS is 1, and config.json's eos_token_id is 2" in refused(broken)
    change(broken / "config.json", eos_token_id=1, vocab_size=180)
    tensors = load_file(broken / "model.safetensors")
    save_file(tensors | {"shared.weight": tensors["shared.weight"][:180]}, broken / "model.safetensors")
    assert "the tokenizer has 181 ids, and config.json's vocab_size is 180" in refused(broken)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_no_code_of_the_folder_is_run(name, broken):
    (broken / "their_code.py").write_text(f"open({str(broken / 'run')!r}, 'w').close()\n")
    auto = {
        "AutoConfig": "their_code.C",
        "AutoModelForSeq2SeqLM": "their_code.M",
        "AutoTokenizer": [None, "their_code.T"],
    }
    change(broken / name, auto_map=auto, **({"model_type": "theirs"} if name == "config.json" else {}))
    if name == "config.json":
        assert f"{broken}/config.json: " in refused(broken)
    else:
        change(broken / name, tokenizer_class="TheirTokenizer")
        try:
            hf_tokenizer.read(broken, broken)
        except ValueError as error:
            assert str(broken) in str(error)
    assert not (broken / "run").exists()


# ---- Sizes and tensors ----


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_layers": 10**9}, "num_layers is 1000000000, and the weights have 2"),
        ({"num_decoder_layers": 10**15}, "num_decoder_layers is 1000000000000000, and the weights have 2"),
        ({"num_layers": 1}, "num_layers is 1, and the weights have 2"),
        ({"vocab_size": 10**12}, r"gives shared.weight the shape (1000000000000, 16), and the weights have (320, 16)"),
        ({"d_ff": 25}, "gives decoder.block.0.layer.2.DenseReluDense.wi.weight the shape (25, 16)"),
        ({"num_heads": 3}, "the shape (18, 16), and the weights have (12, 16)"),
        (
            {"num_heads": 12, "d_kv": 1},
            "attention_bias.weight the shape (32, 12), and the weights have (32, 2)",
        ),
        ({"d_model": "16"}, "config.json: "),
        ({"d_model": -16}, "d_model is -16"),
        ({"feed_forward_proj": "gated-gelu"}, "lacks"),
        ({"t5x_step": "../../x"}, "t5x_step is '../../x'"),
        ({"t5x_step": -1}, "t5x_step is -1"),
    ],
)
def test_sizes_are_compared_with_the_tensors(values, message, broken):
    change(broken / "config.json", **values)
    assert message in refused(broken)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda t: {**t, WI: np.where(t[WI] == t[WI].max(), np.nan, t[WI])},
            f"model.safetensors: {WI} has weights that",
        ),
        (
            lambda t: {**t, WI: np.where(t[WI] == t[WI].max(), -np.inf, t[WI])},
            f"model.safetensors: {WI} has weights that",
        ),
        (lambda t: {**t, WI: t[WI].astype(np.int8)}, f"model.safetensors: {WI} is of type I8; weights of F32"),
        (lambda t: {**t, WI: t[WI].T.copy()}, f"gives {WI} the shape (24, 16), and the weights have (16, 24)"),
        (lambda t: {name: x for name, x in t.items() if name != WI}, f"lacks ['{WI}']"),
        (lambda t: {**t, "their.weight": t[WI]}, "has ['their.weight']"),
    ],
)
def test_tensors_that_no_t5_has_are_named(edit, message, broken):
    save_file(edit(load_file(broken / "model.safetensors")), broken / "model.safetensors", {"format": "pt"})
    assert message in refused(broken)


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "spiece.model"]
)
@pytest.mark.parametrize("damage", ["cut", "empty", "noise"])
def test_a_damaged_file_is_named(name, damage, broken, sentencepiece_file):
    path = broken / name
    if name == "spiece.model":
        shutil.copyfile(sentencepiece_file, path)
    content = path.read_bytes()
    noise = np.random.default_rng(0).bytes(len(content))
    path.write_bytes({"cut": content[: len(content) * 2 // 3], "empty": b"", "noise": noise}[damage])
    assert str(path) in refused(broken)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"weight_map": {WI: "../secret.safetensors"}},
            "names '../secret.safetensors', which is not a safetensors file of",
        ),
        (
            {"weight_map": {WI: "/etc/secret.safetensors"}},
            "names '/etc/secret.safetensors', which is not a safetensors file of",
        ),
        ({"weight_map": {WI: ""}}, "names '', which is not a safetensors file of"),
        ({"weight_map": [WI]}, "has no weight_map of tensors"),
        ([], "a list, not a JSON object"),
    ],
)
def test_an_index_that_leads_out_of_the_folder_is_refused(content, message, saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "theirs")
    shutil.copyfile(next(folder.glob("*.safetensors")), tmp_path / "secret.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    error = refused(folder)
    assert message in error and "model.safetensors.index.json: " in error


def test_an_index_that_is_not_the_parts_is_refused(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "theirs")
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())["weight_map"]
    other = {name: next(file for file in listed.values() if file != listed[name]) for name in listed}
    change(index, weight_map=listed | {WI: other[WI]})
    assert f"has {WI}, which model.safetensors.index.json does not say" in refused(folder)
    change(index, weight_map=listed | {"their.weight": listed[WI]})
    assert f"{index}: their.weight is not in {listed[WI]}, where it should be" in refused(folder)
    (folder / listed[WI]).unlink()
    assert f"no {listed[WI]}; pickled weights" in refused(folder)


def test_links_out_of_the_folder_are_refused_but_for_the_hubs_cache(broken, tmp_path):
    weights = broken / "model.safetensors"
    weights.rename(tmp_path / "secret.safetensors")
    weights.symlink_to(tmp_path / "secret.safetensors")
    assert f"{weights}: leads out of {broken}" in refused(broken)
    # models--me--t5/snapshots/<commit>/model.safetensors -> models--me--t5/blobs/<hash>
    snapshot = shutil.copytree(broken, tmp_path / "cache" / "snapshots" / "1", symlinks=True)
    (tmp_path / "cache" / "blobs").mkdir()
    shutil.copyfile(tmp_path / "secret.safetensors", tmp_path / "cache" / "blobs" / "1")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path / "cache" / "blobs" / "1")
    change(snapshot / "config.json", d_ff=25)  # that it is read is all to be seen
    assert "and the weights have (24, 16)" in refused(snapshot)
