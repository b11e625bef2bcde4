"""Byte-level BPE against Hugging Face's own trainer and tokenizers, and under tf.data."""

import json
from pathlib import Path

import pytest
import tensorflow as tf
from conftest import PROSE
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoTokenizer

from t5xpg import vocabularies
from t5xpg.cli.main import main
from t5xpg.data import jsonl
from t5xpg.inspection import readable
from t5xpg.vocabularies import bpe, sentinels, training

TEXTS = (
    *("", " ", "a", "The keeper wrote down the weather.", "  two  spaces  ", "tabs\tand\nlines\r\n", "\x00\x07"),
    *("Größe, naïve café", "日本語と한국어", "👩‍👩‍👧 emoji 🇳🇴", "e\u0301 é", "ＦＵＬＬ width", "\ufeffbom \u200b"),
    *("don't can't I'll", "12,345.67 3/4", "<br> </p> <s", "__init__(self)", "word " * 50),
)
NAMED = ("<mask>", "a <mask> b", "<pad><s></s><unk>", "x</s>", "<mask><mask>", " <pad>")  # special ids' names


@pytest.fixture(scope="module")
def file(tmp_path_factory, corpus) -> str:
    folder = tmp_path_factory.mktemp("bpe") / "bpe"
    return str(training.train_byte_level_bpe(corpus.format(split="train"), folder, 320))


@pytest.fixture(scope="module")
def vocabulary(file) -> bpe.ByteLevelBPEVocabulary:
    return vocabularies.byte_level_bpe(file)


def test_training_is_hugging_faces_with_two_ids_exchanged(vocabulary, corpus):
    texts = [row["text"] for row in jsonl.read_rows(corpus.format(split="train"))]
    theirs = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    theirs.train_from_iterator(texts, 320, min_frequency=2, special_tokens=specials, show_progress=False)
    expected = theirs.get_vocab() | {"<s>": 1, "<pad>": 0}
    assert vocabulary.tokenizer.get_vocab() == expected
    assert (vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2, 3)
    assert vocabulary.mask_id == 4 and vocabulary.vocab_size == 320


def test_a_large_corpus_is_sampled_evenly_and_the_share_is_said(tmp_path, capsys):
    letters = "abcdefghijklmnopqrst"  # each text is of one letter, and each letter has a twentieth of the corpus
    path = tmp_path / "letters.txt"
    path.write_text("".join(f"{letter * 49}\n" * 1000 for letter in letters))
    made = {}
    for seed in (0, 0, 1):
        file = training.train_byte_level_bpe(path, tmp_path / "v", 320, sample_bytes=50_000, seed=seed, overwrite=True)
        assert file.read_text() == made.setdefault(seed, file.read_text())
        out = capsys.readouterr().out
        assert "training on 1,000 of 20,000 texts, 0.1 of 1.0 MB (5.00%), drawn evenly\n" in out
        pairs = {piece[:2] for piece in json.loads(file.read_text())["model"]["vocab"] if len(piece) > 1}
        assert {letter * 2 for letter in letters} <= pairs, "a text of each part of the file"
    training.train_byte_level_bpe(path, tmp_path / "v", 320, sample_bytes=1_000_000, overwrite=True)
    assert "training on 20,000 of 20,000 texts, 1.0 of 1.0 MB\n" in capsys.readouterr().out


def test_ids_are_those_of_transformers(vocabulary, file):
    theirs = AutoTokenizer.from_pretrained(file.removesuffix("tokenizer.json"), local_files_only=True)
    for text in (*TEXTS, *NAMED):
        ids = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert vocabulary.encode(text) == ids, repr(text)
    whole = theirs("The <mask> wrote")
    assert whole["input_ids"] == [1, *vocabulary.encode("The"), 4, *vocabulary.encode(" wrote"), 2]
    assert set(whole) == {"input_ids", "attention_mask"}
    roles = (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id, theirs.unk_token_id, theirs.mask_token_id)
    assert roles == (0, 1, 2, 3, 4)
    assert (theirs.cls_token_id, theirs.sep_token_id) == (1, 2)


def test_every_text_comes_back_and_none_makes_a_special_id(vocabulary):
    for text in (*TEXTS, *NAMED):
        ids = vocabulary.encode(text)
        assert vocabulary.decode(ids) == text
        assert min(ids, default=5) >= 5


def test_tf_data_gives_the_same_ids(vocabulary):
    texts = [*TEXTS, *NAMED]
    ds = tf.data.Dataset.from_tensor_slices(texts).map(vocabulary.encode_tf, tf.data.AUTOTUNE)
    assert ds.element_spec == tf.TensorSpec([None], tf.int32)
    made = [ids.tolist() for ids in ds.as_numpy_iterator()]
    assert made == [vocabulary.encode(text) for text in texts]
    assert vocabulary.encode_tf(tf.constant(texts[3])).numpy().tolist() == made[3]
    rows = tf.constant([vocabulary.encode("the sea"), vocabulary.encode("the sea")])
    assert vocabulary.decode_tf(rows).numpy().tolist() == [b"the sea"] * 2
    assert vocabulary.decode_tf(rows[0]).numpy() == b"the sea"


def test_same_file_same_vocabulary(vocabulary, file, tmp_path, corpus):
    again = training.train_byte_level_bpe(corpus.format(split="train"), tmp_path / "again", 320)
    assert again.read_bytes() == Path(file).read_bytes()
    assert vocabularies.byte_level_bpe(str(again)) == vocabulary
    smaller = training.train_byte_level_bpe(corpus.format(split="train"), tmp_path / "smaller", 300)
    assert vocabularies.byte_level_bpe(str(smaller)) != vocabulary
    assert vocabularies.describe(vocabulary) == f"ByteLevelBPEVocabulary({file!r}, vocab_size=320, extra_ids=0)"
    assert sentinels.count(vocabulary) == 0


def test_special_ids_are_read_by_name(vocabulary):
    read = readable.tokens([1, *vocabulary.encode("sea"), 4, 2, 0], vocabulary)
    assert "".join(token.text for token in read) == "<s>sea<mask></s><pad>"
    assert {token.kind for token in read} == {"special", "text"}


def test_a_small_corpus_gives_fewer_pieces_and_says_so(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("sea sea shore\n")
    path = training.train_byte_level_bpe(tmp_path / "a.txt", tmp_path / "bpe")
    size = vocabularies.byte_level_bpe(str(path)).vocab_size
    assert size < 270 and f"{size} ids of the 50,265 asked for" in capsys.readouterr().out
    rare = training.train_byte_level_bpe(tmp_path / "a.txt", tmp_path / "rare", min_frequency=9)
    assert vocabularies.byte_level_bpe(str(rare)).vocab_size == 261


def test_what_is_refused(tmp_path, file):
    (tmp_path / "a.txt").write_text(PROSE)
    (tmp_path / "empty.txt").write_text(" \n\n")
    train = training.train_byte_level_bpe
    with pytest.raises(FileExistsError, match="exists already"):
        train(tmp_path / "a.txt", file.removesuffix("tokenizer.json"))
    with pytest.raises(ValueError, match="bytes alone are 261"):
        train(tmp_path / "a.txt", tmp_path / "small", 260)
    with pytest.raises(ValueError, match="no text in the input"):
        train(tmp_path / "empty.txt", tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "empty.txt"]
    with pytest.raises(FileNotFoundError, match="no tokenizer there"):
        vocabularies.byte_level_bpe(str(tmp_path / "nothing.json"))
    with pytest.raises(FileNotFoundError, match=f"is a folder; pass {file}"):
        vocabularies.byte_level_bpe(str(Path(file).parent))
    with pytest.raises(ValueError, match="not a tokenizer.json"):
        vocabularies.byte_level_bpe(str(tmp_path / "a.txt"))
    roberta = json.loads(Path(file).read_text().replace('"id": 0', '"id": 1000'))  # as if pad were elsewhere
    roberta["model"]["vocab"]["<pad>"] = 1000
    (tmp_path / "other.json").write_text(json.dumps(roberta))
    with pytest.raises(ValueError, match="SeqIO pads with 0"):
        vocabularies.byte_level_bpe(str(tmp_path / "other.json"))


def test_the_command(tmp_path, capsys):
    (tmp_path / "a.txt").write_text(PROSE)
    command = ["tokenizer", "train", "--input", str(tmp_path / "a.txt"), "--output", str(tmp_path / "bpe")]
    assert main([*command, "--model_type", "byte_level_bpe", "--vocab_size", "270"]) == 0
    out = capsys.readouterr().out
    assert "270 ids" in out and f"TOKENIZER_FILE={tmp_path}/bpe/tokenizer.json" in out
    assert main([*command, "--model_type", "byte_level_bpe", "--lowercase"]) == 1
    assert "--lowercase is not a setting" in capsys.readouterr().err
    assert main([*command, "--min_frequency", "3"]) == 1
    assert "--min_frequency is not a setting" in capsys.readouterr().err
