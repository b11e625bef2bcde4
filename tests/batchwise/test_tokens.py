"""Ids of many texts against what SeqIO's vocabularies make of each."""

import random

import numpy as np
import pytest
import sentencepiece
import seqio
from tokenizers import ByteLevelBPETokenizer

from t5xpg.batchwise import tokens
from t5xpg.vocabularies.bpe import ByteLevelBPEVocabulary

LETTERS = "etaoin shrdlu " * 3 + "\nÄé漢字🦜<>&"


def texts(count: int, length: int) -> list[str]:
    rng = random.Random(length)
    return ["".join(rng.choices(LETTERS, k=length)) for _ in range(count)]


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    corpus = [text.replace("\n", " ") for text in texts(300, 100)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_prefix=str(folder / "pieces"),
        vocab_size=300,
        hard_vocab_limit=False,
        minloglevel=2,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(corpus, 400, special_tokens=["<pad>", "</s>", "<unk>"])
    bpe.save(str(folder / "bpe.json"))
    return {
        "bytes": seqio.ByteVocabulary(),
        "sentencepiece": seqio.SentencePieceVocabulary(str(folder / "pieces.model")),
        "bpe": ByteLevelBPEVocabulary(str(folder / "bpe.json")),
    }


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "bpe"])
def test_ids_are_those_of_each_text(vocabularies, kind):
    """Also where two divisions of a text score the same, as those of "aaa" into "a" and "aa", which are in these."""
    several, vocabulary = ["", *texts(300, 5), *texts(100, 2000)], vocabularies[kind]
    found = tokens.encode(several, vocabulary)
    expected = [vocabulary.encode_tf(text).numpy() for text in several]
    assert found.sizes.tolist() == [len(ids) for ids in expected]
    np.testing.assert_array_equal(found.values, np.concatenate(expected), strict=True)


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "bpe"])
def test_no_texts_have_no_ids(vocabularies, kind):
    found = tokens.encode([], vocabularies[kind])
    assert len(found.values) == len(found.sizes) == 0 and found.values.dtype == np.int32
