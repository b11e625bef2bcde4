"""`t5xpg predict` and `score` on a model with random parameters, whose outputs are long and varied."""

import bz2
import gzip
import io
import json
import lzma
import os
import queue
import random
import sys
import threading

import jax
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from made_runs import make_run

import t5xpg
from t5xpg.base import private, stores
from t5xpg.cli import examples
from t5xpg.cli.main import main
from t5xpg.data import compressed
from t5xpg.search import Search
from t5xpg.vocabularies import sentinels

TEXTS = ["the <extra_id_0> shore", "", "water", "On clear days", "and more"]
TARGETS = ["a", "", "été", "<extra_id_1> x", "no"]
GREEDY = Search(temperature=0)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("predict") / "run"
    return make_run(folder, "tests/micro.gin", f"FILES={corpus}", "t5x.examples.t5.network.T5Config.vocab_size=259")


@pytest.fixture(scope="module")
def model(run_dir):
    return t5xpg.Model.restore(run_dir, batch_size=2)


@pytest.fixture
def predict(run_dir, model, monkeypatch, capsys, tmp_path):
    """Runs `predict` (or another verb) in an empty folder, without restoring the model again; returns its stdout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(t5xpg.Model, "restore", lambda *args: restored.append(args) or model)
    restored: list[tuple] = []

    def run(*words: str, verb: str = "predict") -> str:
        status = main([verb, run_dir, "--batch_size", "2", *words])
        out, err = capsys.readouterr()
        assert status == 0, err
        assert restored.pop() == (run_dir, None, 2, "--trust" in words)
        return out

    return run


def error_of(capsys, *words: str) -> str:
    assert main(list(words)) == 1
    out, err = capsys.readouterr()
    assert not out and err.startswith("t5xpg: error: ") and err.count("\n") == 1
    return err


def greedy(model, texts) -> list[str]:
    return [text for (text,) in model.decode(texts, GREEDY)]


def escaped(texts) -> str:
    ends = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"  # where str.splitlines splits
    return "".join("".join(repr(c)[1:-1] if c in ends else c for c in text) + "\n" for text in texts)


def test_predictions_of_a_run_from_the_start(run_dir, model, capsys):
    """The only test here that restores the model as a user's command does."""
    assert main(["predict", run_dir, *TEXTS[:3], "--beams", "2", "--max_length", "6"]) == 0
    expected = [text for (text,) in model.decode(TEXTS[:3], Search(beams=2, max_length=6))]
    assert capsys.readouterr().out == escaped(expected)


def test_a_line_for_each_input_in_order(predict, model, tmp_path):
    expected = greedy(model, TEXTS)
    assert len(set(expected)) == len(TEXTS)
    assert predict(*TEXTS, "--temperature", "0") == escaped(expected)
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress("\r\n".join(["\ufeff" + TEXTS[0], *TEXTS[1:]]).encode()))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"inputs": t, "q": t[::-1]}) + "\n" for t in TEXTS))
    for name in ("in.txt", "in.txt.gz", "in.jsonl"):
        assert predict("--file", name, "--temperature", "0") == escaped(expected)
    reverse = greedy(model, [text[::-1] for text in TEXTS])
    assert predict("--file", "in.jsonl", "--key", "q", "--temperature", "0") == escaped(reverse)


@pytest.mark.parametrize("verb", ["predict", "score"])
def test_trust_reaches_the_model(verb, predict):
    for flags in ((), ("--trust",)):  # compared in the fixture
        assert predict("a", *"b" * (verb == "score"), *flags, verb=verb)


def test_line_ends_in_a_prediction_are_escaped_or_json(predict, model, monkeypatch):
    monkeypatch.setattr(model, "decode", lambda texts, search, rng: [[f"a\nb\r{text}\\n\u2028"] for text in texts])
    assert predict("x", "y") == "a\\nb\\rx\\n\\u2028\na\\nb\\ry\\n\\u2028\n"
    rows = [json.loads(line) for line in predict("x", "é", "--jsonl").splitlines()]
    assert rows == [
        {"inputs": "x", "prediction": "a\nb\rx\\n\u2028"},
        {"inputs": "é", "prediction": "a\nb\ré\\n\u2028"},
    ]


def test_a_masked_word_of_another_family_is_answered_with_t5s(run_dir, model, monkeypatch, capsys):
    monkeypatch.setattr(t5xpg.Model, "restore", lambda *_: model)
    for text, said in (("Call me <mask>.", 1), ("Call me <extra_id_0>.", 0)):
        assert main(["predict", run_dir, "--batch_size", "2", text]) == 0
        assert capsys.readouterr().err.count("t5xpg: example 1: <mask> is plain text; a T5 that learned") == said


def test_the_output_file_is_there_whole_or_not_at_all(predict, model, run_dir, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    out = predict("--file", "in.txt", "--temperature", "0", "--output", "out.jsonl")
    assert out == "out.jsonl: the predictions for 5 inputs\n"
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows == [{"inputs": a, "prediction": b} for a, b in zip(TEXTS, greedy(model, TEXTS), strict=True)]
    predict("--file", "in.txt", "--temperature", "0", "--output", "out.txt")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == escaped(greedy(model, TEXTS))
    (tmp_path / "broken.jsonl").write_text('{"inputs": "a"}\n' * 4 + '{"input": "b"}\n')
    words = ("predict", run_dir, "--batch_size", "2", "--file", "broken.jsonl")
    assert "broken.jsonl:5: no key 'inputs'; found ['input']" in error_of(capsys, *words, "--output", "new.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.jsonl", "in.txt", "out.jsonl", "out.txt"]


def test_samples_are_the_same_for_the_same_seed(predict, tmp_path):
    words = ("--temperature", "0.9", "--samples", "2", "--seed", "3")
    first = predict(*TEXTS[:3], *words)
    assert first.count("\n") == 6 and len(set(first.splitlines())) > 3
    (tmp_path / "in.txt").write_text("\n".join(TEXTS[:3]))
    assert predict("--file", "in.txt", *words) == first
    assert predict(*TEXTS[:3], *words[:-1], "4") != first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Give texts or --file FILE"),
        (("a", "--file", "in.txt"), "Give texts or --file FILE"),
        (("a", "--key", "k"), "--key is for rows"),
        (("a", "--beams", "4", "--top_k", "5"), "--beams searches and top_k samples"),
        (("a", "--top_k", "5", "--top_p", "0.5"), "--top_k and top_p both"),
        (("a", "--beams", "2", "--seed", "1"), "--seed is for sampling"),
        (("a", "--samples", "0"), "--samples is 0"),
        (("a", "--batch_size", "0"), "--batch_size is 0"),
        (("--file", "nowhere.txt"), "nowhere.txt: there is no such file. Name one of text"),
    ],
)
def test_what_cannot_be_is_one_line(words, message, predict, run_dir, capsys):
    assert message in error_of(capsys, "predict", run_dir, *words)


def test_the_name_of_a_file_says_what_it_holds(predict, model, tmp_path):
    rows = "".join(json.dumps({"inputs": text}) + "\n" for text in TEXTS)
    (tmp_path / "x.jsonl_parts").mkdir()
    (tmp_path / "x.jsonl_parts" / "in.txt").write_text("\n".join(TEXTS))
    (tmp_path / "rows.json").write_text(rows)
    (tmp_path / "rows.json.gz").write_bytes(gzip.compress(rows.encode()))
    pyarrow.parquet.write_table(pyarrow.table({"inputs": TEXTS}), tmp_path / "rows.parquet")
    for name in ("x.jsonl_parts/in.txt", "rows.json", "rows.json.gz", "rows.parquet"):
        assert predict("--file", name, "--temperature", "0") == escaped(greedy(model, TEXTS))


@pytest.mark.parametrize(("verb", "as_rows"), [("predict", False), ("predict", True), ("score", True)])
def test_a_pipe_gets_each_answer_while_stdin_is_open(verb, as_rows, predict, model, monkeypatch):
    """A question, its answer, and only then the next question; a pipe gets only what is flushed."""
    (asked, to_ask), (answered, to_answer) = os.pipe(), os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(asked, encoding="utf-8"))
    monkeypatch.setattr(sys, "stdout", os.fdopen(to_answer, "w", encoding="utf-8"))
    answers: queue.Queue[str | int | BaseException] = queue.Queue()  # lines, and then what main returned or raised
    flags = ["--temperature", "0", *["--key", "q", "--jsonl"] * as_rows] if verb == "predict" else ["--inputs_key", "q"]

    def run():
        try:
            answers.put(main([verb, "run", "--file", "-", *flags]))
        except BaseException as error:
            answers.put(error)

    threading.Thread(target=run, daemon=True).start()
    threading.Thread(target=lambda: [answers.put(line) for line in os.fdopen(answered)], daemon=True).start()
    with os.fdopen(to_ask, "w", encoding="utf-8") as questions:
        for text, target, expected in zip(TEXTS, TARGETS, greedy(model, TEXTS), strict=True):
            print(json.dumps({"q": text, "targets": target}) if as_rows else text, file=questions, flush=True)
            answer = answers.get(timeout=60)
            assert isinstance(answer, str), answer
            if verb == "score":
                assert float(answer) == pytest.approx(float(model.score([text], [target])[0]), rel=1e-4)
            elif as_rows:
                assert json.loads(answer)["prediction"] == expected
            else:
                assert answer == escaped([expected])
    assert answers.get(timeout=60) == 0


def test_a_line_of_stdin_that_is_not_text_is_named(predict, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"fine\n\xff\n")))
    assert main(["predict", "run", "--file", "-", "--temperature", "0"]) == 1
    assert "stdin:2: byte 1 (0xff) is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["cut", "flipped"])
@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", lambda data: pyarrow.compress(data, "zstd", asbytes=True)),
    ],
)
def test_a_compressed_file_that_is_damaged_is_named(suffix, compress, fault, tmp_path, predict, capsys):
    data = bytearray(compress(random.Random(0).randbytes(300).hex().encode()))
    if fault == "cut":
        del data[-9:]
    else:
        data[1 if suffix == ".zst" else len(data) // 2] ^= 0xFF  # pyarrow's .zst has no checksum
    name = f"in.txt{suffix}"
    (tmp_path / name).write_bytes(data)
    assert main(["predict", "run", "--file", name, "--temperature", "0", "--output", "out.txt"]) == 1
    assert f"t5xpg: error: {name}:1: cannot be read from here on (" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_is_wrong_with_a_store_is_said_once(monkeypatch):
    class Failing(io.RawIOBase):
        def readline(self, size=-1):
            raise stores.StoreError("s3://b/in.txt: it failed")

    monkeypatch.setattr(compressed, "open_binary", lambda path: Failing())
    with pytest.raises(stores.StoreError, match="^s3://b/in.txt: it failed$"):
        list(examples.read("s3://b/in.txt", None))


def test_what_has_come_is_not_kept_waiting():
    def slow():
        yield {"inputs": "1"}
        released.wait(60)
        yield {"inputs": "2"}
        raise ValueError("the source broke")

    released = threading.Event()
    found = examples.batches(slow(), 8, wait=False)
    assert next(found) == [{"inputs": "1"}]
    released.set()
    with pytest.raises(ValueError, match="the source broke"):
        list(found)
    whole = list(examples.batches(iter([{"inputs": str(i)} for i in range(5)]), 2, wait=True))
    assert [len(part) for part in whole] == [2, 2, 1]


# ---- score ----


def by_logits(model, logits_of, text: str, target: str) -> np.ndarray:
    """The log likelihood of each token of a target, from the logits, in float64."""
    ids = [sentinels.encode(one, model.model.output_vocabulary) for one in (text, target)]
    batch = {name: np.asarray(x) for name, x in model._batch(ids[:1], ids[1:]).items()}
    logits = np.asarray(logits_of(model.train_state.params, batch), float)[0]
    chances = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    chances -= logits.max(-1, keepdims=True)
    return chances[np.arange(len(ids[1])), ids[1]]


def test_scores_are_log_likelihoods(predict, model, tmp_path):
    logits_of = jax.jit(lambda params, batch: private.compute_logits(model.model, params, batch))
    expected = [by_logits(model, logits_of, *pair) for pair in zip(TEXTS, TARGETS, strict=True)]
    rows = [{"inputs": a, "targets": b, "question": a, "answer": b} for a, b in zip(TEXTS, TARGETS, strict=True)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = predict("--file", "pairs.jsonl", verb="score").splitlines()
    np.testing.assert_allclose([float(line) for line in lines], [x.sum() for x in expected], rtol=1e-4)
    (one,) = predict(TEXTS[2], TARGETS[2], verb="score").splitlines()
    np.testing.assert_allclose(float(one), expected[2].sum(), rtol=1e-4)
    words = ("--inputs_key", "question", "--targets_key", "answer", "--output", "scores.jsonl")
    assert predict("--file", "pairs.jsonl", *words, verb="score") == "scores.jsonl: the scores of 5 targets\n"
    found = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["inputs"], row["targets"]) for row in found] == list(zip(TEXTS, TARGETS, strict=True))
    assert [row["tokens"] for row in found] == [2, 1, 6, 4, 3]  # bytes, sentinels and EOS
    for row, tokens in zip(found, expected, strict=True):
        np.testing.assert_allclose(row["token_scores"], tokens, rtol=1e-3, atol=1e-3)
        assert row["score"] == pytest.approx(sum(row["token_scores"]), rel=1e-4)


@pytest.mark.parametrize("words", [(), ("a",), ("a", "b", "c"), ("a", "b", "--file", "pairs.jsonl")])
def test_score_takes_pairs(words, predict, run_dir, capsys):
    assert "Give an input and a target, or --file FILE" in error_of(capsys, "score", run_dir, *words)
