"""Ids as a text to look at."""

import pytest
import seqio

from t5xpg.base import sentinels
from t5xpg.vocabularies import byte_level_bpe, training

BYTES = seqio.ByteVocabulary(extra_ids=100)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([*BYTES.encode("the "), 358, *BYTES.encode(" fox"), 1], "the ⟨0⟩ fox"),
        ([358, *BYTES.encode("one"), 357, *BYTES.encode("two"), 356, 1, 0, 0], "⟨0⟩one⟨1⟩two⟨2⟩"),
        ([*BYTES.encode("é"), 358, 358, 400, 1, *BYTES.encode("z")], "é⟨0⟩⟨0⟩�\nz"),
        ([0, 0], ""),
        ([], ""),
    ],
)
def test_bytes(ids, text):
    assert sentinels.readable(ids, BYTES) == text


def test_subwords_keep_their_spaces(corpus, tmp_path):
    texts = corpus.format(split="train")
    pieces = seqio.SentencePieceVocabulary(str(training.train_sentencepiece(texts, tmp_path / "prose", 320)), 100)
    bpe = byte_level_bpe(training.train_byte_level_bpe(texts, tmp_path / "bpe", 320))
    text = "On clear days the water"
    for vocabulary in (pieces, bpe):
        ids = vocabulary.encode(text)
        assert sentinels.readable([*ids, vocabulary.eos_id], vocabulary) == text
    ids = pieces.encode("On clear days")
    masked = [*ids[:2], sentinels.to_id(3, pieces), *pieces.encode("the water"), 1]
    assert sentinels.readable(masked, pieces).endswith("⟨3⟩ the water")
    assert sentinels.readable([bpe.bos_id, *bpe.encode("On"), bpe.mask_id, 3, 3], bpe).startswith("On<mask>")


def test_ids_that_stand_for_no_text_are_numbers():
    assert sentinels.readable([5, 6, 60], seqio.PassThroughVocabulary(50)) == "5 6�"
