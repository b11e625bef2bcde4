"""A SavedModel, loaded by TensorFlow alone: what `t5xpg predict` and `t5xpg score` say, from another process."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import PROSE
from made_runs import make_run

import t5xpg
from t5xpg import savedmodel
from t5xpg.cli.main import main
from t5xpg.search import Search
from t5xpg.vocabularies import training

TEXTS = ["the <extra_id_0> shore", "", "größer 🙂", "On clear days the far shore", "and more <extra_id_1>"]
TARGETS = ["a", "", "été", "<extra_id_1> x", "no"]
LONG = PROSE[:150]  # beyond the lengths
LENGTHS = "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}"
SEARCHES = {"bytes": [], "sentencepiece": ["--temperature", "0.8", "--samples", "2"]}
SCRIPT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib", "flax", "t5x", "t5xpg", "seqio", "t5"):
            raise ImportError(f"{name} is not to be imported")
sys.meta_path.insert(0, Refuse())
import json
import tensorflow as tf
folders, texts, targets, long = json.loads(sys.argv[1])
import tensorflow_text
found = {}
for name, folder in folders.items():
    model = tf.saved_model.load(folder).signatures
    seed = {"seed": tf.constant(3)} if name == "sentencepiece" else {}
    call = lambda x: model["predict"](inputs=tf.constant(x), **seed)["prediction"].numpy().tolist()
    text = lambda x: [text(y) for y in x] if isinstance(x, list) else x.decode()
    score = lambda a, b: model["score"](inputs=tf.constant(a), targets=tf.constant(b))["score"].numpy().tolist()
    found[name] = {
        "predictions": [text(call(texts[:n])) for n in (1, 5)],
        "scores": [score(texts[:n], targets[:n]) for n in (1, 5)],
        "long": [text(call([long])), score([long], [long])],
        "signatures": sorted(model),
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory, corpus):
    """{name of SEARCHES: a MODEL_DIR with random parameters}."""
    folder = tmp_path_factory.mktemp("savedmodel")
    (folder / "corpus.txt").write_text(PROSE * 20)
    vocabulary = training.train_sentencepiece(folder / "corpus.txt", folder / "v", 200)
    files = f"FILES={corpus}"
    of_bytes = make_run(folder / "bytes", "tests/micro.gin", files, LENGTHS, "NAME=saved_bytes")
    words = (
        "tests/micro_model.gin",
        files,
        LENGTHS,
        "NAME=saved_pieces",
        "t5x.examples.t5.network.T5Config.vocab_size=384",
    )
    of_pieces = make_run(folder / "pieces", "configs/t5_1_1_tiny.gin", *words, f"VOCABULARY_FILE={vocabulary}")
    return {"bytes": of_bytes, "sentencepiece": of_pieces}


@pytest.fixture(scope="module")
def by_tensorflow(runs, tmp_path_factory):
    """What TensorFlow gives for the exported folders, in a process that cannot import JAX, SeqIO or this package."""
    out = tmp_path_factory.mktemp("out")
    folders = {name: str(out / name) for name in SEARCHES}
    for name, flags in SEARCHES.items():
        assert main(["export", "savedmodel", runs[name], folders[name], *flags]) == 0
    words = [sys.executable, "-c", SCRIPT, json.dumps([folders, TEXTS, TARGETS, LONG])]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=out)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr, out


def said(capsys, *words: str) -> list[dict]:
    capsys.readouterr()
    assert main([*words, "--jsonl"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("name", SEARCHES)
def test_texts_are_those_of_predict(name, runs, by_tensorflow, capsys):
    found, flags = by_tensorflow[0][name], SEARCHES[name]
    seed = ["--seed", "3"] if flags else []
    rows = said(capsys, "predict", runs[name], *TEXTS, *flags, *seed)
    expected = [row["prediction"] for row in rows]
    assert len(set(expected)) > 3
    if flags:  # two of each, with the noise of the same places in a batch
        expected = [expected[i : i + 2] for i in range(0, 10, 2)]
    assert found["predictions"] == [expected[:1], expected]
    assert found["signatures"] == ["predict", "score", "serving_default"]


@pytest.mark.parametrize("name", ["bytes", "sentencepiece"])
def test_scores_are_those_of_score(name, runs, by_tensorflow, capsys, tmp_path):
    (tmp_path / "pairs.jsonl").write_text(
        "".join(json.dumps({"inputs": a, "targets": b}) + "\n" for a, b in zip(TEXTS, TARGETS, strict=True))
    )
    expected = [row["score"] for row in said(capsys, "score", runs[name], "--file", str(tmp_path / "pairs.jsonl"))]
    one, five = by_tensorflow[0][name]["scores"]
    np.testing.assert_allclose(five, expected, rtol=1e-4)
    np.testing.assert_allclose(one, expected[:1], rtol=1e-4)


@pytest.fixture(scope="module")
def model(runs):
    return t5xpg.Model.restore(runs["bytes"], batch_size=len(savedmodel.TEXTS))


def test_what_is_too_long_is_cut_and_said(model, by_tensorflow):
    found, stderr, _ = by_tensorflow
    prediction, score = found["bytes"]["long"]
    vocabulary = model.model.input_vocabulary
    inputs, targets = ([*vocabulary.encode(LONG)[: room - 1], vocabulary.eos_id] for room in (64, 16))
    assert [prediction] == model.decode([inputs], Search())
    np.testing.assert_allclose(score, model.score([inputs], [targets]), rtol=1e-4)
    assert "t5xpg: inputs longer than 64 tokens are cut; the longest has 151" in stderr
    assert "t5xpg: targets longer than 16 tokens are cut; the longest has 151" in stderr


def test_its_readme_runs(by_tensorflow, capsys, monkeypatch):
    monkeypatch.chdir(by_tensorflow[2])
    text = (by_tensorflow[2] / "sentencepiece" / "README.md").read_text(encoding="utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out.count("tf.Tensor(") == 2
    assert "import tensorflow_text" in text and "temperature 0.8, samples 2" in text


@pytest.mark.parametrize(
    ("search", "said"),
    [
        (Search(), "the decode function of the run's recipe"),
        (Search(beams=1), "beams 1"),
        (Search(top_k=1), "top_k 1"),
        (Search(temperature=1.0, samples=2), "temperature 1.0, samples 2"),
        (Search(top_p=1.0, max_length=1), "top_p 1.0, max_length 1"),
    ],
)
def test_its_readme_says_what_searches(search, said, model):
    class Module:
        needs = ()

    assert f"Predictions\ncome from {said}. It" in savedmodel.readme("name", Module(), model, search)


@pytest.mark.parametrize("fault", ["predict", "score"])
def test_what_differs_is_found(fault, model, by_tensorflow, monkeypatch):
    if fault == "predict":
        monkeypatch.setattr(model, "decode", lambda texts, search, rng: [["something else"]] * len(texts))
    else:
        score = model.score
        monkeypatch.setattr(model, "score", lambda *pairs: score(*pairs) * 1.01)
    with pytest.raises(ValueError, match="Nothing was written") as error:
        savedmodel.compare(str(by_tensorflow[2] / "bytes"), model, Search())
    assert "\n" not in str(error.value)


def test_what_differs_is_not_left(model, tmp_path, monkeypatch):
    def differs(*args):
        raise ValueError("it differs")

    monkeypatch.setattr(savedmodel, "compare", differs)
    with pytest.raises(ValueError, match="it differs"):
        savedmodel.export_model(model, str(tmp_path / "out"), Search(temperature=0, max_length=2))
    assert not list(tmp_path.iterdir())


def test_no_folder_is_overwritten(runs, tmp_path, capsys):
    assert main(["export", "savedmodel", runs["bytes"], str(tmp_path)]) == 1
    assert "exists already" in capsys.readouterr().err


def test_top_k_is_jaxs():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, (3, 2, 20)).astype(np.float32)  # many are equal
    x[0, 0, :17] = -np.inf
    for k in (1, 5):
        for ours, theirs in zip(savedmodel.top_k(jnp.asarray(x), k), jax.lax.top_k(x, k), strict=True):
            np.testing.assert_array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype
    original = jax.lax.top_k
    with pytest.raises(KeyError), savedmodel.readable_top_k():
        assert jax.lax.top_k is savedmodel.top_k
        raise KeyError
    assert jax.lax.top_k is original
