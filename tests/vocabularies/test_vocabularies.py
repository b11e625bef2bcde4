"""Vocabularies against seqio and SentencePiece themselves, and what is refused.

What a tokenizer.json does with them: tests/test_tokenizer_json.py.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import pydoc_data.topics
import random
import re
import sys
import tracemalloc
import unicodedata
from collections import Counter

import pytest
import sentencepiece
import seqio
from command import run_t5xpg

from t5xpg import vocabularies
from t5xpg.cli.main import main
from t5xpg.data import jsonl
from t5xpg.vocabularies import characters, sentinels, training

UNIGRAM = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "hard_vocab_limit": False}


def train(folder, **options):
    words = ["the quick brown fox", "jumps over lazy dogs", "水と火", "seven small stones"]
    path = folder / "spm.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(words * 20),
            model_writer=file,
            vocab_size=60,
            minloglevel=2,
            **{**UNIGRAM, **options},
        )
    return str(path)


def test_bytes():
    vocabulary = vocabularies.byte_vocabulary()
    assert vocabulary == seqio.ByteVocabulary(extra_ids=100)
    assert vocabulary.vocab_size == 359
    assert vocabularies.byte_vocabulary(extra_ids=0) == seqio.ByteVocabulary()
    assert vocabularies.describe(vocabulary) == "ByteVocabulary(vocab_size=359, extra_ids=100)"


def test_no_text_reaches_a_byte_sentinel():
    surrogates = range(0xD800, 0xE000)
    text = "".join(chr(c) for c in range(sys.maxunicode + 1) if c not in surrogates)
    highest = max(text.encode()) + 3
    for extra_ids in (0, 1, 100):
        vocabulary = seqio.ByteVocabulary(extra_ids)
        assert highest < vocabulary.vocab_size - sentinels.count(vocabulary)
    assert sentinels.count(seqio.ByteVocabulary()) == 11, "0xF5 to 0xFF"
    assert sentinels.count(seqio.ByteVocabulary(100)) == 100


@pytest.mark.parametrize("extra_ids", [-1, 1.5, True, "100", None])
def test_extra_ids_refused(extra_ids):
    with pytest.raises(ValueError, match="extra_ids is a whole number"):
        vocabularies.byte_vocabulary(extra_ids)


def test_sentencepiece(tmp_path):
    path = train(tmp_path)
    pieces = sentencepiece.SentencePieceProcessor(model_file=path)
    vocabulary = vocabularies.sentencepiece(path)
    assert vocabulary == seqio.SentencePieceVocabulary(path, extra_ids=100)
    assert vocabulary.vocab_size == pieces.get_piece_size() + 100
    assert vocabulary.encode("quick fox") == pieces.encode("quick fox")
    assert vocabulary.tokenizer.id_to_piece(vocabulary.vocab_size - 1) == "▁<extra_id_0>"
    assert sentinels.count(vocabulary) == 100
    assert sentinels.count(vocabularies.sentencepiece(path, extra_ids=0)) == 0
    assert path in vocabularies.describe(vocabulary)


def test_sentencepiece_with_sentinels_of_its_own(tmp_path):
    path = tmp_path / "with_7.model"  # as T5X's cc_all.32000.100extra: the pieces are in the file
    path.write_bytes(seqio.SentencePieceVocabulary(train(tmp_path), extra_ids=7).sp_model)
    path = str(path)
    assert sentinels.count(vocabularies.sentencepiece(path, extra_ids=0)) == 7
    with pytest.raises(ValueError, match="brings 7 sentinels of its own. Pass extra_ids=0"):
        vocabularies.sentencepiece(path)


def test_missing_file(tmp_path):
    for path in (tmp_path / "none.model", tmp_path):
        with pytest.raises(FileNotFoundError, match="no SentencePiece model there. Pass .*`t5xpg tokenizer train`"):
            vocabularies.sentencepiece(str(path))


@pytest.mark.parametrize("content", [b"", b"not a model at all", b"\x0a\x02\x08"])
def test_broken_file(tmp_path, content):
    path = tmp_path / "broken.model"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="broken.model: not a SentencePiece model"):
        vocabularies.sentencepiece(str(path))


def test_ids_that_seqio_cannot_use(tmp_path):
    path = train(tmp_path, pad_id=-1, unk_id=0, bos_id=1, eos_id=2)
    with pytest.raises(ValueError, match="pad_id=-1, eos_id=2.*Train it with pad_id=0, eos_id=1"):
        vocabularies.sentencepiece(path)


# --- training ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prose(tmp_path_factory) -> str:
    """300 kB of the language reference that every Python carries, as JSONL."""
    path = tmp_path_factory.mktemp("prose") / "prose.jsonl"
    rows = itertools.islice(pydoc_data.topics.topics.values(), 40)
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return str(path)


def test_sizes_and_ids_are_t5s(prose, tmp_path, capsys):
    path = training.train_sentencepiece(prose, tmp_path / "new" / "prose", 1000)
    assert path == tmp_path / "new" / "prose.model"
    vocabulary = vocabularies.sentencepiece(str(path))
    own = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert own.get_piece_size() == 1000 and vocabulary.vocab_size == 1100
    assert (own.pad_id(), own.eos_id(), own.unk_id(), own.bos_id()) == (0, 1, 2, -1)
    assert vocabulary.encode("<extra_id_0>") == [1099]
    assert vocabulary.encode("The <extra_id_99> is")[1] == 1000
    table = [line.split("\t") for line in path.with_suffix(".vocab").read_text().splitlines()]
    assert [piece for piece, _ in table] == [own.id_to_piece(i) for i in range(1000)]
    assert [float(score) for _, score in table] == [own.get_score(i) for i in range(1000)]
    assert "asked for" not in capsys.readouterr().out
    assert sorted(os.listdir(path.parent)) == ["prose.model", "prose.vocab"]


def test_a_corpus_that_cannot_carry_the_vocabulary(prose, tmp_path, capsys):
    path = training.train_sentencepiece(prose, tmp_path / "small.model", 32000)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path)).get_piece_size()
    assert pieces < 32000
    assert f"asked for 32,000 pieces, got {pieces:,}: this text carries no more" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_bytes(prose, tmp_path, capsys):
    def model(name: str, **settings) -> bytes:
        path = training.train_sentencepiece(prose, tmp_path / name, 400, **settings)
        return path.read_bytes()

    first = model("a", sample_bytes=50_000, seed=1)
    assert "drawn evenly" in capsys.readouterr().out
    assert model("b", sample_bytes=50_000, seed=1) == first
    assert model("c", sample_bytes=50_000, seed=2) != first
    assert model("d", seed=1) == model("e", seed=2), "nothing to draw: all of it is used"


def test_options(prose, tmp_path):
    def pieces(**settings):
        path = training.train_sentencepiece(prose, tmp_path / "m", 600, overwrite=True, **settings)
        return sentencepiece.SentencePieceProcessor(model_file=str(path))

    assert pieces(lowercase=True).encode("THE ＣＬＡＳＳ") == pieces(lowercase=True).encode("the class")
    assert pieces().encode("THE") != pieces().encode("the")
    assert 2 in pieces().encode("水")
    assert pieces(byte_fallback=True).encode("水", out_type=str)[-3:] == ["<0xE6>", "<0xB0>", "<0xB4>"]
    merges = pieces(model_type="bpe")
    assert [merges.get_score(i) for i in range(3, 60)] == [-float(i) for i in range(57)]


def test_nothing_is_passed_over(tmp_path):
    """SentencePiece drops, unasked, sentences with "▅" in them or of more than 4192 bytes."""
    texts = ["a plain row", "▅ x é", "水" * 3000 + "火", "tab\t\0ø", "word " * 3000 + "ß", "一\n\n二"]
    texts.append("ж<extra_id_5>ж")
    file = tmp_path / "odd.jsonl"
    file.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    path = training.train_sentencepiece(file, tmp_path / "odd", 500, text_key="body")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert [c for c in "é水火øß一二ж" if pieces.piece_to_id(c) == 2] == []
    assert not any("extra" in pieces.id_to_piece(i) for i in range(pieces.get_piece_size()))


RARE = {"!": 3, "?": 2, "é": 2, "水": 1, "ﷺ": 1, ",": 4, '"': 5, "🦜": 1}


@pytest.fixture
def rare_characters(tmp_path) -> str:
    """40,000 plain characters, and a few others that each occur a few times, one of them decomposed."""
    rows = ["plain words and no more " * 20] * 100 + [char * count for char, count in RARE.items()]
    path = tmp_path / "rare.jsonl"
    path.write_text("".join(json.dumps({"text": row.replace("éé", "ée\u0301")}) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("settings", [{}, {"sample_bytes": 2000}, {"model_type": "bpe", "lowercase": True}])
def test_every_character_of_the_corpus_is_kept(rare_characters, tmp_path, capsys, settings):
    path = training.train_sentencepiece(rare_characters, tmp_path / "v", 100, **settings)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert all(2 not in pieces.encode(f"words {char} words") for char in RARE)
    assert "no piece" not in capsys.readouterr().out


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_what_a_lower_coverage_drops_is_printed_with_counts(rare_characters, tmp_path, capsys, byte_fallback):
    settings = {"character_coverage": 0.9995, "byte_fallback": byte_fallback}
    path = training.train_sentencepiece(rare_characters, tmp_path / "v", 350, **settings)
    own = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = {own.id_to_piece(i) for i in range(own.get_piece_size())}
    # What T5's normalization makes of the rows, by Python's own; it writes one of them in several words.
    with open(rare_characters) as file:
        text = unicodedata.normalize("NFKC", "".join(json.loads(line)["text"] for line in file))
    counts = Counter(text.replace(" ", ""))
    dropped = {char: count for char, count in counts.items() if char not in pieces}
    assert {"é", "水", "🦜"} <= set(dropped)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "no piece" in line]
    assert line.startswith(
        f"{len(dropped)} of the text's {len(counts)} characters, {sum(dropped.values())} of {sum(counts.values()):,} in"
    )
    assert ("spelled in bytes: " if byte_fallback else "unknown (--byte_fallback") in line
    listed = line.rpartition(": ")[2].split(", '")
    assert all(any(f"{char}' {count}" in entry for entry in listed) for char, count in dropped.items())


def test_the_command_keeps_every_character_unless_told_otherwise(rare_characters, tmp_path, capsys):
    words = ["tokenizer", "train", "--input", rare_characters, "--vocab_size", "100", "--output"]
    assert main([*words, f"{tmp_path}/all"]) == 0
    assert "no piece" not in capsys.readouterr().out
    pieces = sentencepiece.SentencePieceProcessor(model_file=f"{tmp_path}/all.model")
    assert all(2 not in pieces.encode(f"words {char} words") for char in RARE)
    assert main([*words, f"{tmp_path}/some", "--character_coverage", "0.9995"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "no piece" in line]
    assert all(f"'{char}' {RARE[char]}" in line for char in "?é水🦜")


def test_many_dropped_characters_are_summed_up():
    counts = {chr(0x4E00 + i): 100 - i for i in range(60)} | {"a": 5000}
    said = characters.describe_dropped(counts, {"a"}, byte_fallback=False)
    assert said.startswith(f"60 of the text's 61 characters, {sum(range(41, 101)):,} of ")
    assert "'一' 100, '丁' 99" in said and said.endswith(f" and 10 others, {sum(range(41, 51))} times")


def test_sentences_keep_all_words():
    rng = random.Random(0)
    text = "".join(rng.choice(["word ", "a\n", "x" * 700 + " ", "\u3000", "水" * 1500]) for _ in range(300))
    sentences = list(training._sentences([text, "  ", ""]))
    assert max(map(len, sentences)) <= 1000
    assert "".join("".join(sentences).split()) == "".join(text.split())


def test_the_sample_is_even_and_in_order(capsys):
    sentences = [f"{i:05d}" * (1 + i % 7) for i in range(20000)]  # 20 bytes on average
    sample = training._sample(sentences, 20 * 2000, 3, "sentences")
    assert sum(map(len, sample)) <= 20 * 2000 and 1900 < len(sample) < 2100
    assert sample == sorted(sample)
    share = f"{sum(map(len, sample)) / sum(map(len, sentences)):.2%}"
    assert re.fullmatch(
        rf"training on {len(sample):,} of 20,000 sentences, 0.0 of 0.4 MB \({share}\), drawn evenly\n",
        capsys.readouterr().out,
    )
    quarters = [sum(i * 5000 <= int(s[:5]) < (i + 1) * 5000 for s in sample) for i in range(4)]
    assert all(400 < quarter < 600 for quarter in quarters), quarters
    for budget in range(100, 20 * 2000, 997):  # the lowest draws, whatever their sizes
        smaller, larger = (training._sample(sentences[:2000], size, 3, "texts") for size in (budget, budget + 400))
        assert set(smaller) <= set(larger)


def test_memory_stays_bounded(tmp_path):
    path = tmp_path / "one_line.txt.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.writelines(f"word{i} " * 10 for i in range(200_000))  # 20 MB without a line end
    tracemalloc.start()
    sample = training._sample(training._sentences(training._texts(path, "text")), 100_000, 0, "sentences")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 90_000 < sum(map(len, sample)) <= 100_000
    assert peak < 10e6


def test_text_files_and_rows_together(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "jsonl row"}\n')
    (tmp_path / "b.txt").write_text("\ufeffplain lines\nand more\n", encoding="utf-8")
    with gzip.open(tmp_path / "c.txt.gz", "wt") as file:
        file.write("zipped lines")
    texts = training._texts([tmp_path / name for name in ("a.jsonl", "b.txt", "c.txt.gz")], "text")
    assert list(texts) == ["jsonl row", "plain lines\n", "and more\n", "zipped lines"]


@pytest.mark.parametrize(
    ("name", "content", "settings", "error"),
    [
        ("none.jsonl", None, {}, "no JSONL file for .*none.jsonl"),
        ("blank.txt", b" \n\n \n", {}, "no text in the input"),
        ("controls.txt", b"\x01\n", {}, "SentencePiece cannot train on this text: .*all_chars_count"),
        ("latin1.txt", "blåbær".encode("latin-1"), {}, "latin1.txt: cannot be read as text .*Save it as UTF-8"),
        ("broken.txt.gz", gzip.compress(b"text " * 99, mtime=0)[:-20], {}, "broken.txt.gz: cannot be read as text"),
        ("bad.jsonl", b'{"text": "a"}\n{"body": 1}\n', {}, "bad.jsonl:2: no key 'text'"),
        ("a.txt", b"abc", {"vocab_size": 20}, r"vocab_size=20 is too small: .* need \d+ pieces. Pass"),
        ("a.txt", b"abc", {"vocab_size": 3}, "vocab_size is 3; pad, eos and unk alone are 3"),
        ("a.txt", b"abc", {"model_type": "word"}, "model_type is 'word'; it must be 'unigram'"),
        ("a.txt", b"abc", {"character_coverage": 0.5}, "character_coverage is 0.5; it must be 0.98 to 1"),
        ("a.txt", b"abc", {"sample_bytes": 2}, "sample_bytes=2 holds none of the sentences"),
    ],
)
def test_bad_input(tmp_path, name, content, settings, error):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=error) as caught:
        training.train_sentencepiece(tmp_path / name, out / "v", **{"vocab_size": 100, **settings})
    assert "\n" not in str(caught.value)
    assert not out.exists() or not os.listdir(out)


def test_a_model_is_not_overwritten_unasked(prose, tmp_path):
    path = training.train_sentencepiece(prose, tmp_path / "v", 300)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="v.model: exists already"):
        training.train_sentencepiece(prose, tmp_path / "v", 400)
    with pytest.raises(jsonl.JsonlError):
        training.train_sentencepiece(tmp_path / "none.jsonl", path, 400, overwrite=True)
    assert path.read_bytes() == before
    training.train_sentencepiece(prose, path, 400, overwrite=True)
    assert vocabularies.sentencepiece(str(path), 0).vocab_size == 400


def test_a_failing_write_leaves_nothing(prose, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        training.train_sentencepiece(prose, tmp_path / "v", 300)
    assert os.listdir(tmp_path) == []


def test_the_command(prose, tmp_path):
    output = tmp_path / "v.model"
    command = ("tokenizer", "train", "--input", prose, "--output", output)
    done = run_t5xpg(*command, "--vocab_size", 999, "--sample_bytes", 200000)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["v.model", "v.vocab", "v_hf"]
    assert sorted(os.listdir(tmp_path / "v_hf")) == ["tokenizer.json", "tokenizer_config.json"]
    assert f"{output}: 999 pieces and 100 sentinels, 1,099 ids" in done.stdout
    assert f"VOCABULARY_FILE={output} network.T5Config.vocab_size=1152" in done.stdout
    noise = [line for line in done.stderr.splitlines() if line and "reading the corpus" not in line]
    assert noise == []


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    (tmp_path / "v.model").touch()
    assert main(["tokenizer", "train", "--input", "none.jsonl", "--output", str(tmp_path / "v")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"t5xpg: error: {tmp_path}/v.model: exists already") and error.count("\n") == 1


def test_a_vocabulary_on_another_machine_is_described_without_it():
    vocabulary = seqio.SentencePieceVocabulary("gs://nowhere/spiece.model", extra_ids=300)
    assert vocabularies.describe(vocabulary) == "SentencePieceVocabulary('gs://nowhere/spiece.model', extra_ids=300)"
