"""Predictions beside their targets."""

import pytest
from written_runs import INPUTS, TARGETS

from t5xpg.report import answers
from t5xpg.report.answers import Piece
from t5xpg.report.reading import Prediction


@pytest.mark.parametrize(
    ("truth", "answer", "pieces", "right", "words"),
    [
        ("the red fox", "the red fox", [("the red fox", "right")], 3, 3),
        ("the red fox", "the big fox", [("the", "right"), (" big", "wrong"), (" fox", "right")], 2, 3),
        ("fox ", "fox ", [("fox", "right"), (" ", "given")], 1, 1),
        ("the red fox", "", [("∅", "nothing")], 0, 3),
        ("the red fox", "  ", [("␣", "nothing")], 0, 3),
        (" ", " ", [("␣", "right")], 0, 0),
        ("", "fox", [("fox", "wrong")], 0, 0),
        ("fox.", "fox!", [("fox", "right"), ("!", "wrong")], 1, 2),
        ("重要的人", "重要人", [("重要", "right"), ("人", "right")], 3, 4),
    ],
)
def test_words_are_right_where_they_are_the_targets_in_its_order(truth, answer, pieces, right, words):
    assert answers.compared(truth, answer) == ([Piece(*piece) for piece in pieces], right, words)


@pytest.mark.parametrize(
    ("prediction", "pieces", "right"),
    [
        (
            "The old lighthouse is far, far away.",
            [
                ("The", "given"),
                (" old lighthouse", "right"),
                (" is", "given"),
                (" far", "right"),
                (", far away.", "given"),
            ],
            3,
        ),
        (
            "The grey lighthouse is not, far away.",
            [
                ("The", "given"),
                (" grey", "wrong"),
                (" lighthouse", "right"),
                (" is", "given"),
                (" not", "wrong"),
                (", far away.", "given"),
            ],
            1,
        ),
        ("", [("∅", "nothing")], 0),
    ],
)
def test_of_text_with_masks_only_the_words_that_were_not_read_count(prediction, pieces, right):
    inputs, targets = "The<mask> light<mask> is wide, far away.", "The old lighthouse is far, far away."
    made = Prediction(1, "task", 0, inputs, targets, prediction)
    (example,) = answers.examples([[made]])
    (answer,) = example.answers
    assert (answer.pieces, answer.right, answer.words) == ([Piece(*piece) for piece in pieces], right, 3)
    assert [piece.text for piece in example.truth if piece.kind == "right"] == [" old lighthouse", " far"]
    assert example.question == inputs


@pytest.mark.parametrize("form", ["<extra_id_{}>", "⟨{}⟩"], ids=["T5's sentinels", "inspect's sentinels"])
def test_blanks_are_filled_with_what_follows_their_sentinels(form):
    inputs, targets = (text.replace("<extra_id_", "\0").replace(">", "\1") for text in (INPUTS, TARGETS))
    inputs, targets = (
        text.replace("\0", form.partition("{}")[0]).replace("\1", form.partition("{}")[2]) for text in (inputs, targets)
    )
    guess = f"{form.format(1)}evening sun{form.format(0)}weather{form.format(1)}again"
    pieces, right, words = answers.filled(inputs, targets, guess)
    assert (right, words) == (2, 2)
    text = "".join(piece.text for piece in pieces)
    assert text == "The lighthouse keeper wrote down the weather every morning, and every evening sun he read it."
    assert [piece.text for piece in pieces if piece.kind == "wrong"] == [" sun"]


def test_of_a_long_text_the_parts_beside_its_blanks_are_shown():
    inputs = "a" * 1000 + "<extra_id_0>" + "b" * 1000
    pieces, _, _ = answers.filled(inputs, "<extra_id_0>x", "<extra_id_0>x")
    assert [len(piece.text) < 120 for piece in pieces] == [True] * 3
    assert pieces[0].text.endswith("a") and pieces[2].text.startswith("b")


def test_examples_have_all_runs_predictions_and_differ_by_what_they_are_given():
    def of(step, index, inputs, prediction):
        return Prediction(step, "task", index, inputs, "yes", prediction)

    runs = [[of(1, 0, "q", "no"), of(2, 0, "q", "yes")], [of(2, 0, "q", "yes"), of(2, 1, "other", "yes")]]
    first, second = answers.examples(runs)
    assert [(each.run, each.step, each.right) for each in first.answers] == [(0, 1, 0), (0, 2, 1), (1, 2, 1)]
    assert (first.question, second.question) == ("q", "other")
