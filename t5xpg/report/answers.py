"""Predictions beside their targets: which words are right, and masked text with its blanks filled in."""

from __future__ import annotations

import difflib
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from t5xpg.report.reading import Prediction

LONGEST = 2000  # characters of a text that are compared and shown
AROUND = 90  # characters that are shown before and after a blank of a long text
SENTINEL = re.compile(r"<extra_id_(\d+)>|⟨(\d+)⟩")
MASK = "<mask>"
NO_WORD = "\0"  # stands for a mask where words are compared
# Words and single signs, each with the space before it; writing without spaces goes sign by sign.
WORD = re.compile(
    r"\s*(?:[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]|[^\W\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]+|[^\w\s])"
)


class Piece(NamedTuple):
    """A piece of text; `kind` is "given" (it was read), "right" or "wrong" (written), or "nothing" (no word)."""

    text: str
    kind: str


class Answer(NamedTuple):
    """What run number `run` wrote at a step: in pieces, and how many of the target's words are right."""

    run: int
    step: int
    pieces: list[Piece]
    right: int
    words: int


class Example(NamedTuple):
    """One example through training.

    Attributes:
      question: what the model read; "" where it is shown with its blanks filled in.
      truth: the target.
      answers: of each run one after the other, in order of steps.
    """

    question: str
    truth: list[Piece]
    answers: list[Answer]


def examples(predictions: Sequence[Sequence[Prediction]]) -> Iterator[Example]:
    """Yields each example of one task with all its predictions, which are given run by run in order of steps."""
    by_example: dict[tuple[int, str, str], list[tuple[int, Prediction]]] = {}
    for run, found in enumerate(predictions):
        for each in found:
            by_example.setdefault((each.index, each.inputs, each.targets), []).append((run, each))
    for (_, inputs, targets), given in sorted(by_example.items(), key=lambda item: item[0][0]):
        show = way_to_show(inputs, targets)
        truth, _, _ = show(inputs, targets, targets)
        answers = [Answer(run, each.step, *show(inputs, targets, each.prediction)) for run, each in given]
        yield Example("" if show is filled else clipped(inputs), truth, answers)


def way_to_show(inputs: str, targets: str) -> Callable[[str, str, str], tuple[list[Piece], int, int]]:
    """Returns which function below shows predictions of such an example: of blanks, of masked words, of any text."""
    if SENTINEL.search(inputs) and SENTINEL.search(targets):
        return filled
    if MASK in inputs and MASK not in targets:
        return unmasked
    return written


def written(inputs: str, targets: str, prediction: str) -> tuple[list[Piece], int, int]:  # noqa: ARG001, as filled
    """Returns what was written, how many of its words are the target's, and how many words the target has."""
    return compared(clipped(targets), clipped(prediction))


def unmasked(inputs: str, targets: str, prediction: str) -> tuple[list[Piece], int, int]:
    """As `written`, of text whose masks were replaced in place: words that stand in the inputs too are not counted."""
    return compared(clipped(targets), clipped(prediction), clipped(inputs.replace(MASK, NO_WORD)))


def filled(inputs: str, targets: str, prediction: str) -> tuple[list[Piece], int, int]:
    """Returns masked text with what was written in its blanks, as `written` does; long text only around its blanks."""
    truths, answers = spans(targets), spans(prediction)
    texts = SENTINEL.split(inputs)
    is_long = len(inputs) > LONGEST // 3
    pieces, right, total = [], 0, 0
    for at in range(0, len(texts), 3):
        first, last = at == 0, at + 3 >= len(texts)
        pieces.append(Piece(around(texts[at], first, last, AROUND) if is_long else texts[at], "given"))
        if last:
            break
        number = int(texts[at + 1] or texts[at + 2])
        found, hits, words = compared(truths.get(number, ""), answers.get(number, ""))
        pieces += found
        right, total = right + hits, total + words
    return [piece for piece in pieces if piece.text], right, total


def spans(text: str) -> dict[int, str]:
    """Returns {sentinel's number: what follows it}; of a sentinel that comes twice, the first."""
    parts = SENTINEL.split(text)
    found: dict[int, str] = {}
    for at in range(1, len(parts), 3):
        found.setdefault(int(parts[at] or parts[at + 1]), clipped(parts[at + 2]))
    return found


def compared(truth: str, answer: str, read: str = "") -> tuple[list[Piece], int, int]:
    """Returns the answer in pieces, how many of its words are right, and how many there are.

    Words of the truth that stand in what was `read`, in its order, are given, and not counted.
    """
    wanted, found = WORD.findall(truth), WORD.findall(answer)
    given = {at for _, start, size in alike(WORD.findall(read), wanted) for at in range(start, start + size)}
    counted = len(wanted) - len(given)
    if not answer.strip():
        is_right = bool(answer) and answer == truth
        return [Piece("␣" if answer else "∅", "right" if is_right else "nothing")], 0, counted
    kinds = [("wrong", 0)] * len(found)  # and the number of the run
    for number, (first, start, size) in enumerate(alike(wanted, found)):
        kinds[start : start + size] = [("given" if first + at in given else "right", number) for at in range(size)]
    runs = itertools.groupby(zip(found, kinds, strict=True), operator.itemgetter(1))
    pieces = [Piece("".join(word for word, _ in run), kind) for (kind, _), run in runs]
    right = sum(kind == "right" for kind, _ in kinds)
    space = answer[len(answer.rstrip()) :]
    return [*pieces, Piece(space, "given")] if space else pieces, right, counted


def alike(first: list[str], second: list[str]) -> list[difflib.Match]:
    """Returns the runs of equal words, (where in the first, where in the second, how many); the last has none."""
    bare = [word.strip() for word in first], [word.strip() for word in second]
    return difflib.SequenceMatcher(None, *bare, autojunk=False).get_matching_blocks()


def around(text: str, first: bool, last: bool, size: int) -> str:
    """Returns the ends of a long text, of `size` characters each, that are beside a blank."""
    if len(text) <= 2 * size:
        return text
    return f"{'' if first else text[:size]} … {'' if last else text[-size:]}"


def clipped(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
