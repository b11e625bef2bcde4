"""Vocabularies as TensorFlow graphs, against the same in Python."""

import numpy as np
import pytest
import seqio
import tensorflow as tf
from conftest import PROSE

from t5xpg.vocabularies import in_graph, sentinels, training

TEXTS = (
    "",
    "Call me <extra_id_0>.",
    "<extra_id_3><extra_id_003>x<extra_id_10>y<extra_id_99>",
    "<extra_id_100> <extra_id_5 <extra_id_>",
    "größer 中文 🙂\n\t</s> <pad> ﬁ e\u0301 \u00a0\u3000 ▁ ...",
    "a\x00b  two  spaces \ufeff ",
)


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "corpus.txt").write_text(PROSE * 20)
    model = str(training.train_sentencepiece(folder / "corpus.txt", folder / "v", 200))
    return {
        "bytes": seqio.ByteVocabulary(100),
        "byt5": seqio.ByteVocabulary(0),
        "sentencepiece": seqio.SentencePieceVocabulary(model, 100),
    }


@pytest.mark.parametrize("name", ["bytes", "byt5", "sentencepiece"])
def test_ids_are_those_of_python(name, vocabularies):
    graph = in_graph.of(vocabularies[name])
    encode = tf.function(graph.encode, input_signature=[tf.TensorSpec([None], tf.string)])
    for count in (len(TEXTS), 1):
        expected = [sentinels.encode(text, vocabularies[name]) for text in TEXTS[:count]]
        assert encode(tf.constant(TEXTS[:count])).to_list() == expected


@pytest.mark.parametrize("name", ["bytes", "byt5", "sentencepiece"])
def test_texts_are_those_of_python(name, vocabularies):
    """Random ids, most of them with bytes that are not UTF-8, some after an EOS."""
    vocabulary = vocabularies[name]
    rng = np.random.default_rng(0)
    ids = rng.integers(0, vocabulary.vocab_size, (1000, 12), dtype=np.int32)
    high = rng.integers(0x7F + 3, min(259, vocabulary.vocab_size), ids.shape, dtype=np.int32)
    ids[:600] = np.where(rng.random((600, 12)) < 0.7, high[:600], ids[:600])
    ids[::4, 6] = vocabulary.eos_id
    decode = tf.function(in_graph.of(vocabulary).decode, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    texts = [text.decode() for text in decode(ids).numpy()]
    assert texts == [sentinels.decode(row, vocabulary) for row in ids]
    assert len(set(texts)) > 900


def test_another_vocabulary_is_refused():
    with pytest.raises(ValueError, match="A PassThroughVocabulary has no graph"):
        in_graph.of(seqio.PassThroughVocabulary(100))
