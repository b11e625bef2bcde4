"""What the demo says of a model: which blanks it fills in, and which of them are words."""

import pytest
import seqio

from t5xpg.cli import demo
from t5xpg.vocabularies import sentinels


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    from t5xpg.vocabularies import training

    folder = tmp_path_factory.mktemp("vocabulary")
    text = "the cat saw that cats are seen by the dog , said the cat and the dog saw the cat\n" * 99
    (folder / "text.txt").write_text(text)
    return seqio.SentencePieceVocabulary(
        str(training.train_sentencepiece(str(folder / "text.txt"), folder / "a", 60)), 100
    )


def ids_of(text, vocabulary):
    return [
        vocabulary.tokenizer.piece_to_id(piece) if piece[0] != "<" else sentinel(piece, vocabulary)
        for piece in text.split()
    ]


def sentinel(piece, vocabulary):
    return sentinels.to_id(int(piece[1:-1]), vocabulary)


def test_a_word_is_a_piece_with_spaces_around_it(vocabulary):
    assert vocabulary.unk_id not in ids_of("▁a ▁cat s ,", vocabulary)
    inputs = [*ids_of("▁a <0> <1> <2> ▁cat <3>", vocabulary), 1]
    targets = [*ids_of("<0> ▁cat <1> s <2> , <3> ▁a", vocabulary), 1]
    found = demo.blanks(inputs, targets, vocabulary)
    assert [blank.ids for blank in found.values()] == [ids_of(piece, vocabulary) for piece in ("▁cat", "s", ",", "▁a")]
    # "cat" goes on with "s", "," is a sign, and what comes after the last is not known
    assert [blank.is_word for blank in found.values()] == [False, False, False, False]
    found = demo.blanks(ids_of("▁a <0> ▁cat", vocabulary), ids_of("<0> ▁a", vocabulary), vocabulary)
    assert found[0].is_word


def test_what_fills_the_blanks_ends_with_the_sequence(vocabulary):
    ids = [*ids_of("<0> ▁the ▁cat <2> s", vocabulary), 1, *ids_of("<1> ▁dog", vocabulary)]
    assert demo.spans(ids, vocabulary) == {0: ids_of("▁the ▁cat", vocabulary), 2: ids_of("s", vocabulary)}
    assert demo.spans([*ids_of("▁the", vocabulary), vocabulary.vocab_size + 3], vocabulary) == {}


def test_the_shares_are_of_what_was_asked():
    truth = [
        {0: demo.Blank([5], True), 1: demo.Blank([6], False)},
        {0: demo.Blank([5], True), 1: demo.Blank([7], False)},
    ]
    guesses = {"trained": [{0: [5], 1: [6]}, {0: [4], 3: [7]}], "untrained": [{}, {1: [7, 7]}]}
    assert [line.split() for line in demo.summary(truth, guesses)] == [
        ["filled", "in", "as", "it", "was:", "trained", "untrained", "one", "piece"],
        ["4", "blanks", "50%", "0%", "50%"],
        ["2", "of", "them", "words", "50%", "0%", "100%"],
    ]


def test_blanks_are_filled_in_where_they_are(vocabulary):
    inputs = [*ids_of("▁a <0> ▁cat <1> s <2>", vocabulary), 1]
    truth = {0: ids_of("▁sa", vocabulary), 1: ids_of("s", vocabulary), 2: ids_of("▁a", vocabulary)}
    assert demo.filled(inputs, truth, truth, vocabulary) == "a[ sa] cat[s]s[ a]"
    guess = {0: ids_of("▁sa", vocabulary), 1: ids_of("▁cat s", vocabulary)}
    assert demo.filled(inputs, guess, truth, vocabulary, mark="✓") == "a[ sa✓] cat[ cats]s[·]"
