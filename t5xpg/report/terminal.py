"""What `t5xpg report` prints: runs in words, numbers and small curves, within 80 columns."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from t5xpg.base.readable import one_line
from t5xpg.report import answers, charts, curves, facts, reading
from t5xpg.report.reading import Run

SPARKS = "▁▂▃▄▅▆▇█"
WIDTH = 80  # columns at most
BINS = 28  # of a curve
NAME = 24  # columns of a name
STEPS = 3  # whose predictions are shown: the first, one between, the last
AROUND = 30  # characters of a text that are shown before and after a blank
TRUTH = {"right": ("[", "]", "bold")}
MARKS = {"right": ("[", "]", "bold underline"), "wrong": ("[", " ✗]", "italic"), "nothing": ("[", "]", "dim")}


class Report:
    """What rich prints of runs; `now` is the time in seconds since 1970."""

    def __init__(self, runs: Sequence[Run], now: float | None = None):
        self._runs, self._now = runs, time.time() if now is None else now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts = Group(*report(self._runs, self._now))
        yield from console.render(parts, options.update_width(min(options.max_width, WIDTH)))


def report(runs: Sequence[Run], now: float) -> Iterator[RenderableType]:
    """Yields the parts of the report, one below the other."""
    names = [one_line(name) for name in reading.short_names([run.folder for run in runs])]
    for name, run in zip(names, runs, strict=True):
        yield Text.assemble((name, "bold"), f": {facts.status(run, now)}")
        yield listed(facts.summary(run))
        yield ""
    if len(runs) > 1:
        yield from differences(runs, names)
    panels = curves.panels(runs)
    if any(map(facts.is_flax_counterpart, runs)):
        facts.with_flax(panels)
    for panel in panels:
        yield curves_table(panel, names)
        yield ""
    yield from predictions(runs, names)
    for name, run in zip(names, runs, strict=True):
        of = f" of {name}" if len(runs) > 1 else ""
        for title, show in (("Data", facts.data), ("Machine and versions", facts.machine)):
            told = [] if run is runs[0] else show(runs[0])
            if found := [fact for fact in show(run) if fact not in told]:
                yield Text(title + of, style="bold")
                yield listed(found)
                yield ""
        if command := facts.command(run):
            yield Text.assemble((f"Command{of}\n", "bold"), one_line(command), "\n")
    if any(map(facts.is_flax_counterpart, runs)):
        yield Text("Beside the Flax example", style="bold")
        yield from map(Text, facts.FLAX_WORDS)


def listed(found: Sequence[facts.Fact]) -> Table:
    """Returns names, and numbers or words with what they are, which wrap beside them."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=NAME, style="dim")
    grid.add_column(overflow="fold")
    for name, value, note in found:
        grid.add_row(
            Text(one_line(name)), Text.assemble((one_line(value), "bold"), f"  {one_line(note)}" if note else "")
        )
    return grid


def differences(runs: Sequence[Run], names: Sequence[str]) -> Iterator[RenderableType]:
    """Yields what the bindings differ in: each binding, and below it its value in each run."""
    yield Text("What differs", style="bold")
    found = facts.differences(runs)
    for binding, values in found:
        yield Text(f"  {one_line(binding)}")
        yield listed([facts.Fact(f"    {name}", value) for name, value in zip(names, values, strict=True)])
    yield "" if found else "Their config.gin bind the same values.\n"


# ---- Curves ----


def curves_table(panel: curves.Panel, names: Sequence[str]) -> Table:
    """Returns a line for each curve: its name, its course over the steps, its first and its last value."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    unit = f", {one_line(panel.unit)}" if panel.unit else ""
    title = Text.assemble((one_line(panel.title), "bold not dim"), unit)
    low, high, _ = charts.y_range(panel, panel.lines)
    first, last = charts.x_range(panel.lines)
    steps = f"steps {first:,} to {last:,}"
    table.add_column(title, width=NAME + 6, overflow="fold")
    table.add_column(steps, width=BINS + 2, no_wrap=True)
    table.add_column("first", justify="right", width=9, no_wrap=True)
    table.add_column("last", justify="right", width=9, no_wrap=True)
    for line in panel.lines:
        ends = (facts.number(value) for value in (line.values[0], line.values[-1]))
        name = Text(f"  {one_line(charts.label(line, panel, names))}", overflow="ellipsis", no_wrap=True)
        table.add_row(name, f"▕{sparks(line, first, last, low, high)}▏", *ends)
    for words, value in panel.marks.items():
        table.add_row(Text(f"  {words}"), "", "", facts.number(value))
    return table


def sparks(line: curves.Line, first: int, last: int, low: float, high: float) -> str:
    """Returns a curve in one line of blocks from step `first` to `last`; a space where it has no value."""
    drawn, at = "", -1
    for number in range(BINS):
        end = first + (last - first) * (number + 1) / BINS
        while at + 1 < len(line.steps) and line.steps[at + 1] <= end:
            at += 1
        value = line.values[at] if at >= 0 else math.nan
        has_ended = at == len(line.steps) - 1 and line.steps[at] < end - (last - first) / BINS
        if has_ended or not math.isfinite(value):
            drawn += " "
        else:
            drawn += SPARKS[round((value - low) / (high - low) * (len(SPARKS) - 1))]
    return drawn


# ---- Predictions ----


def predictions(runs: Sequence[Run], names: Sequence[str]) -> Iterator[RenderableType]:
    """Yields the examples of each task with what was written at a few steps."""
    for task in dict.fromkeys(each.task for run in runs for each in run.predictions):
        yield Text.assemble((f"Predictions for {one_line(task)}\n", "bold"), "[as in the target], [not ✗], [∅] nothing")
        mine = [few([each for each in run.predictions if each.task == task]) for run in runs]
        for example in answers.examples(mine):
            yield ""
            if example.question:
                yield beside("input", Text(one_line(example.question), style="dim"))
            yield beside("target", pieces_text(example.truth, TRUTH))
            for answer in example.answers:
                name = f"step {answer.step:,}"
                name += f" {names[answer.run]}" if len(names) > 1 else ""
                share = Text(f"  {answer.right:,} of {answer.words:,} words", style="dim")
                yield beside(name, pieces_text(answer.pieces, MARKS) + share)
        yield ""


def few(predictions: Sequence[reading.Prediction]) -> list[reading.Prediction]:
    """Returns the predictions of STEPS steps, the first and the last among them."""
    steps = sorted({each.step for each in predictions})
    kept = {steps[i * (len(steps) - 1) // (STEPS - 1)] for i in range(STEPS)} if steps else set()
    return [each for each in predictions if each.step in kept]


def beside(label: str, words: Text) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=NAME - 8, style="dim", overflow="ellipsis", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label), words)
    return grid


def pieces_text(pieces: Sequence[answers.Piece], marks: dict[str, tuple[str, str, str]]) -> Text:
    """Returns pieces of text, those that were written in brackets."""
    text = Text()
    for number, piece in enumerate(pieces):
        words = one_line(piece.text)
        if piece.kind == "given":
            text.append(answers.around(words, number == 0, number == len(pieces) - 1, AROUND), "dim")
        elif piece.kind in marks:
            opening, closing, style = marks[piece.kind]
            inner = words.lstrip()
            text.append(words[: len(words) - len(inner)] + opening).append(inner, style).append(closing)
        else:
            text.append(words)
    return text
