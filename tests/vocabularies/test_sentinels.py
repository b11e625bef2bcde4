"""The numbering of sentinels: T5's names, ids that count down, and as many as no text can produce."""

import pytest
import seqio

from t5xpg.vocabularies import sentinels


@pytest.mark.parametrize(("extra_ids", "count"), [(100, 100), (0, 11)])
def test_they_count_down_from_the_last_id(extra_ids, count):
    vocabulary = seqio.ByteVocabulary(extra_ids=extra_ids)
    assert sentinels.count(vocabulary) == count
    assert sentinels.to_id(0, vocabulary) == vocabulary.vocab_size - 1
    assert sentinels.to_id(count - 1, vocabulary) == sentinels.first(vocabulary)
    assert all(sentinels.to_number(sentinels.to_id(n, vocabulary), vocabulary) == n for n in range(count))


def test_without_extra_ids_no_text_has_their_bytes():
    vocabulary = seqio.ByteVocabulary()
    highest = max(max(vocabulary.encode(chr(code))) for code in (0x10FFFF, 0xFFFD, 0x7FF, 0x7F))
    assert highest < sentinels.first(vocabulary)


def test_a_vocabulary_may_have_none():
    vocabulary = seqio.PassThroughVocabulary(50)
    assert sentinels.count(vocabulary) == 0
    assert sentinels.first(vocabulary) == vocabulary.vocab_size


def test_names_are_t5s():
    assert sentinels.name(7) == "<extra_id_7>"
    assert sentinels.NAME.search("a <extra_id_12> b")[1] == "12"
    assert not sentinels.NAME.search("<extra_id_>")


def test_a_name_beyond_the_last_sentinel_is_text():
    vocabulary = seqio.ByteVocabulary(extra_ids=100)
    assert sentinels.encode("<extra_id_99>", vocabulary) == [sentinels.first(vocabulary), 1]
    assert sentinels.encode("a<extra_id_100>", vocabulary) == [*vocabulary.encode("a<extra_id_100>"), 1]
