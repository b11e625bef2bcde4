"""Curves as inline SVG, with what they show in words and as a table for readers who do not see them.

The drawing is stretched to its place while the words around it are HTML, so that they have one size at every width.
A line's run is told by its colour and its dashes; training is thin, an evaluation strong, with dots where it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from t5xpg import pages
from t5xpg.report import facts
from t5xpg.report.curves import Line, Panel

SIZE = 1000  # of the drawing's own coordinates, both ways
LOOKS = 6  # runs that have a colour of their own
MOST_POINTS = 600  # of a curve that is drawn
MOST_ROWS = 40  # of a table


def figure(panel: Panel, names: Sequence[str], number: int) -> str:
    """Returns a panel as HTML; `names` are those of the runs, `number` tells the page's panels apart."""
    drawn = [thinned(line) for line in panel.lines]
    low, high, step = y_range(panel, drawn)
    first, last = x_range(drawn)
    labels = [label(line, panel, names) for line in drawn]
    second = panel.second_unit
    unit = f"{panel.unit}; {second[0]} at the right" if second else panel.unit
    drawing = svg(panel, drawn, labels, number, (first, last), (low, high, step))
    return (
        f'<figure class="panel" data-chart="{number}" data-first="{first}" data-last="{last}"><figcaption>'
        f'<h3 id="c{number}">{pages.text(panel.title)}</h3>'
        f'<span class="unit">{pages.text(unit)}</span></figcaption>'
        f'<div class="plot{" two" if second else ""}">{drawing}'
        f"{y_labels(low, high, step, 'y')}{y_labels(low * second[1], high * second[1], step, 'y2') if second else ''}"
        f"{x_labels(first, last)}{mark_labels(panel, low, high)}</div>"
        f'<p class="when">at step <span>{last:,}</span></p>{key(drawn, labels)}'
        f"<details><summary>Numbers</summary>{numbers_table(panel, drawn, labels)}</details></figure>"
    )


def thinned(line: Line) -> Line:
    """Returns the curve with MOST_POINTS at most, and its last one."""
    every = math.ceil(len(line.steps) / MOST_POINTS)
    kept = sorted({*range(0, len(line.steps), every or 1), len(line.steps) - 1})
    return Line(line.run, line.part, [line.steps[i] for i in kept], [line.values[i] for i in kept])


def label(line: Line, panel: Panel, names: Sequence[str]) -> str:
    """Returns what tells a curve from the panel's others."""
    parts = {each.part for each in panel.lines}
    evaluated = len(parts - {"training"})
    part = line.part if line.is_training or evaluated > 1 or len(parts) == 1 else "evaluation"
    if len(names) == 1:
        return part
    return names[line.run] if len(parts) == 1 else f"{names[line.run]}, {part}"


# ---- Axes ----


def y_range(panel: Panel, lines: Sequence[Line]) -> tuple[float, float, float]:
    """Returns (lowest, highest, distance of the grid's lines), with all finite values and marks between."""
    values = [v for line in lines for v in line.values if math.isfinite(v)] + list(panel.marks.values())
    low, high = min(values), max(values)
    low = min(low, 0.0) if panel.from_zero else low
    if high - low < 1e-6 * max(abs(high), abs(low), 1e-300):
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    step = nice((high - low) / 4)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def x_range(lines: Sequence[Line]) -> tuple[int, int]:
    """Returns the first and the last step of an axis: from 0, unless a run began late, at another's checkpoint."""
    first, last = min(line.steps[0] for line in lines), max(line.steps[-1] for line in lines)
    first = 0 if 2 * first <= max(last, 2) else first
    return first, max(last, first + 1)


def nice(step: float) -> float:
    """Returns the least of 1, 2, 2.5, 5 times a power of ten that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))


def ticks(low: float, high: float, step: float) -> list[float]:
    return [low + i * step for i in range(math.floor((high - low) / step + 1e-9) + 1)]


def short(value: float, step: float) -> str:
    """Returns a number beside an axis, with as many digits as its grid needs: 2.5k, 0.025, 1e-05."""
    largest = max(abs(value), step)
    if abs(value) < step / 1e6:
        return "0"
    if largest >= 1e4:
        return facts.count(value) if value > 0 else f"{value:,.0f}"
    digits = max(0, -math.floor(math.log10(step)))
    digits += abs(step * 10**digits - round(step * 10**digits)) > 1e-6  # 0.25 needs one more than 0.2
    return f"{value:,.{digits}f}" if digits <= 4 else f"{value:.2g}"


def y_labels(low: float, high: float, step: float, side: str) -> str:
    """Labels an axis from `low` to `high` at the multiples of `step`."""
    return "".join(
        f'<span class="{side}" aria-hidden="true" style="bottom:{100 * (tick - low) / (high - low):.2f}%">'
        f"{short(tick, step)}</span>"
        for tick in ticks(math.ceil(low / step - 1e-9) * step, high, step)
    )


def x_labels(first: int, last: int) -> str:
    step = max(1, round(nice((last - first) / 4)))
    marks = [tick for tick in range(first, last + 1, step) if last - tick > 0.45 * step] + [last]
    return "".join(
        f'<span class="x{" first" if tick == first else " last" if tick == last else ""}" aria-hidden="true" '
        f'style="left:{100 * (tick - first) / (last - first):.2f}%">{"step " if tick == first else ""}{tick:,}</span>'
        for tick in marks
    )


def mark_labels(panel: Panel, low: float, high: float) -> str:
    return "".join(
        f'<span class="mark" style="top:{100 * (high - value) / (high - low):.2f}%">{pages.text(words)}</span>'
        for words, value in panel.marks.items()
    )


# ---- Drawing ----


def svg(panel: Panel, lines, labels, number: int, across: tuple[int, int], up: tuple[float, float, float]) -> str:
    """Returns the grid and the curves; the words in it are for screen readers."""
    (first, last), (low, high, step) = across, up

    def place(x: float, y: float) -> str:
        return f"{SIZE * (x - first) / (last - first):.1f} {SIZE * (high - y) / (high - low):.1f}"

    grid = "".join(f"M{place(first, tick)}H{SIZE}" for tick in ticks(low, high, step))
    marks = "".join(f'<path class="compare" d="M{place(first, value)}H{SIZE}"/>' for value in panel.marks.values())
    curves = "".join(curve(line, place) for line in sorted(lines, key=lambda line: not line.is_training))
    told = "; ".join(described(line, words) for line, words in zip(lines, labels, strict=True))
    return (
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" aria-labelledby="t{number} d{number}">'
        f'<title id="t{number}">{pages.text(f"{panel.title} over {last:,} steps")}</title>'
        f'<desc id="d{number}">{pages.text(told)}</desc><path class="grid" d="{grid}"/>'
        f'{marks}{curves}<line class="cursor" y1="0" y2="{SIZE}"/></svg>'
    )


def curve(line: Line, place) -> str:
    """Returns one curve, interrupted where its value is no number, and dots where an evaluation was."""
    points = [(x, y) if math.isfinite(y) else None for x, y in zip(line.steps, line.values, strict=True)]
    path = "".join(f"{'L' if i and points[i - 1] else 'M'}{place(*point)}" for i, point in enumerate(points) if point)
    look = f"r{line.run % LOOKS}"
    if line.is_training:
        return f'<path class="curve {look}" d="{path}"/>'
    dots = "".join(f"M{place(*point)}h0" for point in points if point) if len(points) <= MOST_ROWS else ""
    return f'<path class="curve strong {look}" d="{path}"/><path class="dots {look}" d="{dots}"/>'


def described(line: Line, name: str) -> str:
    """Says in words what a curve does."""
    values = [value for value in line.values if math.isfinite(value)]
    if not values:
        return f"{name}: no number"
    between = f"; {facts.number(min(values))} to {facts.number(max(values))} in between" if len(values) > 2 else ""
    return (
        f"{name}: {facts.number(values[0])} at step {line.steps[0]:,}, {facts.number(values[-1])} at the end{between}"
    )


def key(lines: Sequence[Line], labels: Sequence[str]) -> str:
    """Returns what each line is, with its last value."""
    entries = "".join(
        f'<li>{sample(line.run, line.is_training)}<span dir="auto">{pages.text(name)}</span>'
        f"<b>{facts.number(line.values[-1])}</b></li>"
        for line, name in zip(lines, labels, strict=True)
    )
    return f'<ul class="key">{entries}</ul>'


def sample(run: int, is_training: bool) -> str:
    """Returns a piece of a run's curve, to stand beside its name."""
    look = f"r{run % LOOKS}"
    drawn = f'<path class="curve {look}" d="M0 5H30"/>'
    if not is_training:
        drawn = f'<path class="curve strong {look}" d="M0 5H30"/><path class="dots {look}" d="M15 5h0"/>'
    return f'<svg viewBox="0 0 30 10" aria-hidden="true" focusable="false">{drawn}</svg>'


def numbers_table(panel: Panel, lines: Sequence[Line], labels: Sequence[str]) -> str:
    """Returns the values as a table, of MOST_ROWS steps at most: those of evaluations before others."""
    evaluated = {step for line in lines if not line.is_training for step in line.steps}
    steps = sorted(evaluated or {step for line in lines for step in line.steps})
    every = math.ceil(len(steps) / MOST_ROWS)
    steps = steps[:: every or 1]
    columns = [dict(zip(line.steps, line.values, strict=True)) for line in lines]
    rows = [[f"{s:,}", *(facts.number(c[s]) if s in c else "" for c in columns)] for s in steps]
    unit = f", {panel.unit}" if panel.unit else ""
    return pages.table(f"{panel.title}{unit}", ["step", *labels], rows, "numbers quiet")


def data_of(panels: Sequence[Panel]) -> list[list[dict]]:
    """Returns the curves for the script, which shows the values at a step: [panel][line]{"x", "y"}."""
    return [
        [
            {"x": list(line.steps), "y": [facts.number(value) for value in line.values]}
            for line in map(thinned, panel.lines)
        ]
        for panel in panels
    ]
