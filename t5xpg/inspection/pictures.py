"""Pictures of what a model sees and learns, for notebooks: examples token by token, masks, and curves.

    seen = measurements.inspect("wikitext_span_corruption")
    pictures.tokens({"text": seen.examples[0].text, **seen.examples[0].features})

Each function returns a matplotlib figure (`pip install 't5xpg[docs]'`). Colours are those of the page that
`t5xpg inspect --html` writes (pages/style.css).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from t5xpg.inspection.readable import Token, visible

WIDTH, DPI = 10.0, 100  # inches of a picture, and dots of an inch
COLUMNS = 112  # characters of a line of tokens
INK, SOFT, LINE, BAR = "#1d2329", "#626b74", "#e3e0d8", "#3b6ea5"
FILLS = {"text": "#ffffff", "noise": "#fde7c8", "sentinel": "#dfeaf7", "special": "#f1efe9"}
LABEL = 16  # characters that a row's name has room for
LINE_HEIGHT = 0.42  # inches


def tokens(rows: Mapping[str, Sequence[Token]], shades: Mapping[str, Sequence[float]] | None = None) -> Figure:
    """Draws each row's tokens in boxes, their ids beneath.

    Args:
      rows: {name of the row: its tokens}, as `readable.tokens` and `measurements.take_apart` make them.
      shades: {name of the row: a number from 0 to 1 for each token}, drawn light to dark in place of its kind's colour.
    """
    laid = {name: lay_out(row) for name, row in rows.items()}
    lines = [max((line for line, _, _ in places), default=0) + 1 for places in laid.values()]
    figure = Figure(dpi=DPI, figsize=(WIDTH, LINE_HEIGHT * (sum(lines) + 0.5 * len(lines))), layout="constrained")
    axes = figure.add_subplot(xlim=(-LABEL, COLUMNS), ylim=(sum(lines) + 0.5 * (len(lines) - 1), 0))
    axes.set_axis_off()
    top = 0.0
    for (name, places), count in zip(laid.items(), lines, strict=True):
        axes.text(-LABEL, top + 0.42, name, color=SOFT, size=9, va="center")
        shade = (shades or {}).get(name)
        for i, (token, (line, column, width)) in enumerate(zip(rows[name], places, strict=True)):
            fill = FILLS[token.kind] if shade is None else colormaps["Blues"](0.85 * float(shade[i]))
            draw_token(axes, token, column, top + line, width, fill, dark=shade is not None and shade[i] > 0.6)
        top += count + 0.5
    return figure


def lay_out(row: Sequence[Token]) -> list[tuple[int, float, float]]:
    """Returns (line, column, width) of each token's box, in lines and characters from the left."""
    places, line, column = [], 0, 0.0
    for token in row:
        width = max(len(visible(token.text)), 0.8 * len(str(token.id))) + 1.0
        if column + width > COLUMNS and column:
            line, column = line + 1, 0.0
        places.append((line, column, width))
        column += width + 0.3
    return places


def draw_token(axes: Axes, token: Token, column: float, top: float, width: float, fill, dark: bool) -> None:
    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(
        FancyBboxPatch((column, top + 0.06), width, 0.78, style, mutation_aspect=1, fc=fill, ec=LINE, lw=0.8)
    )
    ink = "#ffffff" if dark else INK
    middle = column + width / 2
    axes.text(middle, top + 0.33, visible(token.text), color=ink, size=8, family="monospace", ha="center", va="center")
    axes.text(middle, top + 0.67, str(token.id), color=ink if dark else SOFT, size=5.5, ha="center", va="center")


def masks(rows: Sequence[Sequence[Token]]) -> Figure:
    """Draws one line for each text, dark where the model has to predict; `rows` are texts of measurements.Example."""
    length = max(map(len, rows))
    drawn = np.full((len(rows), length), np.nan)
    for line, row in enumerate(rows):
        drawn[line, : len(row)] = [token.kind == "noise" for token in row]
    figure = Figure(dpi=DPI, figsize=(WIDTH, 0.6 + 0.09 * len(rows)), layout="constrained")
    axes = figure.add_subplot(xlabel="token", ylabel="example")
    axes.imshow(drawn, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0, vmax=1.3)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def curve(values: Mapping[str, Sequence[float]], x: str = "step", y: str = "") -> Figure:
    """Draws numbers over their places, {name: one number for each step from 0}; a name is shown where there are more.

    Args:
      values: what to draw.
      x, y: what the axes are called.
    """
    figure = Figure(dpi=DPI, figsize=(WIDTH, 2.8), layout="constrained")
    axes = figure.add_subplot(xlabel=x, ylabel=y)
    for (name, numbers), color in zip(values.items(), (BAR, "#b8651b", "#4b7f52", SOFT), strict=False):
        axes.plot(np.asarray(numbers), color=color, lw=1.6, label=name)
    axes.grid(color=LINE, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if len(values) > 1:
        axes.legend(frameon=False)
    return figure
