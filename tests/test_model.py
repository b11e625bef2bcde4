"""Text to ids and back, with sentinels by name."""

import pytest
import seqio

from t5xpg.model import decode, encode


@pytest.mark.parametrize(("extra_ids", "first"), [(100, 358), (0, 258)])
def test_sentinels_of_bytes_by_name(extra_ids, first):
    vocabulary = seqio.ByteVocabulary(extra_ids=extra_ids)
    text = "Call me <extra_id_0>, størst<extra_id_1>"
    ids = encode(text, vocabulary)
    head, middle = vocabulary.encode("Call me "), vocabulary.encode(", størst")
    assert ids == [*head, first, *middle, first - 1, 1]
    assert decode([*ids, 0, 0], vocabulary) == text


def test_plain_text_is_the_vocabularys_own():
    vocabulary = seqio.ByteVocabulary(extra_ids=100)
    assert encode("größer", vocabulary) == [*vocabulary.encode("größer"), 1]
    assert encode("", vocabulary) == [1]
    assert encode([5, 6], vocabulary) == [5, 6]


def test_decoding_stops_at_eos():
    vocabulary = seqio.ByteVocabulary(extra_ids=100)
    assert decode([*vocabulary.encode("yes"), 1, *vocabulary.encode("no")], vocabulary) == "yes"
