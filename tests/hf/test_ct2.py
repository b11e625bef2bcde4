"""CTranslate2 itself loads what is exported, and finds what the model finds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import PROSE
from made_runs import STEP, make_run

import t5xpg
from t5xpg.cli.main import main, make_parser
from t5xpg.hf import checkpoints, ct2, sample_text
from t5xpg.search import Search
from t5xpg.vocabularies import sentinels, tokenizer_json, training

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

ctranslate2 = pytest.importorskip("ctranslate2")

LENGTHS = "TASK_FEATURE_LENGTHS={'inputs': 256, 'targets': 64}"  # longer than the relative positions tell apart
CONFIG = "t5x.examples.t5.network.T5Config"  # another test may have imported another one
T5_1_1 = (
    "configs/t5_1_1_tiny.gin",
    "tests/micro_model.gin",
    LENGTHS,
    f"{CONFIG}.num_decoder_layers=2",
    f"{CONFIG}.vocab_size=384",
)
FAMILIES = {
    "t5_1_1": T5_1_1,
    "t5_1_0": (
        *T5_1_1,
        f"{CONFIG}.mlp_activations=('relu',)",
        f"{CONFIG}.logits_via_embedding=True",
    ),
    "bytes": ("tests/micro.gin", LENGTHS, f"{CONFIG}.vocab_size=259"),
}
LINES = 6


@pytest.fixture(scope="module")
def text_file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("\n".join(sample_text.python_documentation(LINES)) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, corpus):
    """Gives a family's run with random parameters, made once."""
    made = {}
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "corpus.txt").write_text(PROSE * 20)
    vocabulary = training.train_sentencepiece(folder / "corpus.txt", folder / "v", 200)

    def get(name: str) -> str:
        if name not in made:
            words = [*FAMILIES[name], f"FILES={corpus}", f"NAME=ct2_{name}"]
            if name != "bytes":
                words += [f"VOCABULARY_FILE={vocabulary}"]
            made[name] = make_run(tmp_path_factory.mktemp(name) / "run", *words)
        return made[name]

    return get


def translate(folder: str, rows: list[list[int]], names: list[str], length: int) -> list[list[int]]:
    translator = ctranslate2.Translator(folder)
    options = dict(beam_size=1, min_decoding_length=0, max_decoding_length=length, max_input_length=0)
    found = translator.translate_batch([[names[i] for i in row] for row in rows], **options)
    return [[names.index(name) for name in result.hypotheses[0]] for result in found]


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_are_our_own(name, runs, text_file, tmp_path, capsys):
    out = str(tmp_path / "model")
    assert main(["export", "ct2", runs(name), out, "--compare", text_file, "--lines", str(LINES)]) == 0
    assert f"{out}: float32: the same greedy tokens for {LINES} lines of text" in capsys.readouterr().out
    model = t5xpg.Model.restore(runs(name), batch_size=LINES)
    vocabulary, texts = model.model.output_vocabulary, Path(text_file).read_text(encoding="utf-8").splitlines()
    rows = [[*sentinels.encode(text, vocabulary)[:255], 1] for text in texts]
    assert max(map(len, rows)) > 140
    theirs = translate(out, rows, ct2.token_names(Path(out), vocabulary.vocab_size), 64)
    ours = [text for (text,) in model.decode(rows, Search(temperature=0))]
    assert [sentinels.decode(ids, vocabulary) for ids in theirs] == ours
    tied = name == "t5_1_0"  # random embeddings that are also the logits' soon repeat themselves
    assert len(set(ours)) >= (3 if tied else LINES) and len({i for ids in theirs for i in ids}) > (3 if tied else 20)


def test_the_card_claims_what_was_compared(runs, text_file, tmp_path, capsys, monkeypatch):
    out = tmp_path / "int8"
    words = ["--quantization", "int8", "--compare", text_file, "--lines", "4"]
    assert main(["export", "ct2", runs("bytes"), str(out), *words]) == 0
    printed = capsys.readouterr().out.splitlines()
    card = (out / "README.md").read_text(encoding="utf-8")
    claims = [line.removeprefix("* ").removesuffix(".") for line in card.splitlines() if line.startswith("* ")]
    assert [f"{out}: {claim}" for claim in claims] == printed[:-1] and len(claims) == 2
    assert f"for {STEP} steps, and converted for CTranslate2 with int8 weights" in card

    trained = checkpoints.read_trained(runs("bytes"))
    texts = Path(text_file).read_text(encoding="utf-8").splitlines()[:4]
    rows = [sentinels.encode(text, trained.vocabulary)[:256] for text in texts]
    names = ct2.token_names(out, trained.vocabulary.vocab_size)
    ours, theirs = ct2.greedy(trained, rows), translate(str(out), rows, names, 64)
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    if same < 4:
        assert f"of 4 lines of text, {sum(map(len, ours))} tokens: {same} lines have the same" in claims[1]
    else:
        assert claims[1] == f"int8: the same greedy tokens for 4 lines of text, {sum(map(len, ours))} tokens"
    assert (out / "model.bin").stat().st_size < 0.6 * 4 * sum(x.size for x in trained.params.values())

    monkeypatch.chdir(tmp_path)
    exec(card.split("```python\n")[1].split("```")[0], {})
    ids = translate(str(out), [sentinels.encode("Call me <extra_id_0>.", trained.vocabulary)], names, 64)[0]
    text = capsys.readouterr().out
    assert text.replace("�", "") == sentinels.decode(ids, trained.vocabulary).replace("�", "") + "\n"


@pytest.mark.parametrize("fault", ["weight", "bias", "tokenizer"])
def test_a_model_that_differs_is_not_left(fault, runs, text_file, tmp_path, capsys, monkeypatch):
    """The checkpoint is right, and what is made of it has other weights, position biases or ids."""
    convert, write = ct2.spec, tokenizer_json.write_bytes

    def wrong(trained, *args):
        change = {"weight": ("/out/", lambda x: x * 1.1), "bias": ("relpos", lambda x: x[:, ::-1])}
        part, changed = change[fault]
        params = {name: changed(x) if part in name else x for name, x in trained.params.items()}
        return convert(dataclasses.replace(trained, params=params), *args)

    if fault == "tokenizer":
        monkeypatch.setattr(tokenizer_json, "write_bytes", lambda folder, extra_ids: write(folder, 25))
    else:
        monkeypatch.setattr(ct2, "spec", wrong)
    out = tmp_path / "model"
    assert main(["export", "ct2", runs("bytes"), str(out), "--compare", text_file, "--lines", "4"]) == 1
    error = capsys.readouterr().err
    assert "Nothing was written." in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--quantization", "int3"], "quantization is 'int3'; pass one of int8, "),
        (["--lines", "0"], "--lines is 0; pass 1 or more"),
        (["--compare", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_what_cannot_be_is_one_line(words, message, runs, tmp_path, capsys):
    assert main(["export", "ct2", runs("bytes"), str(tmp_path / "model"), *words]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_200_lines_are_compared_unless_told_otherwise():
    args = make_parser().parse_args(["export", "ct2", "run", "out"])
    assert (args.lines, args.compare, args.quantization) == (200, None, None)
    lines = sample_text.python_documentation(args.lines)
    assert len(lines) == 200 and all(line.strip() for line in lines)


def test_a_missing_package_is_named(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ct2, "NEEDED", ("a_package_that_is_not_there",))
    assert main(["export", "ct2", runs("bytes"), str(tmp_path / "model")]) == 1
    assert "This needs a_package_that_is_not_there: pip install 't5xpg[ct2]'" in capsys.readouterr().err


def test_as_likely_tokens_are_told_from_others():
    logits = np.array([[0.0, 1.0, 2.0, 3.0], [0.0, 5.0, 4.9995, 1.0]])
    assert ct2.first_difference([3, 1], [3, 1]) is None
    assert ct2.first_difference([3, 1], [3, 2]) == 1
    assert ct2.first_difference([3], [3, 2]) == 1
    assert ct2.gap(logits, [3, 1], [3, 2], 1, eos_id=1) == pytest.approx(5e-4)
    assert ct2.gap(logits, [3], [3, 2], 1, eos_id=1) == pytest.approx(5e-4)
    assert ct2.gap(logits, [3], [2], 0, eos_id=1) == pytest.approx(1.0)
