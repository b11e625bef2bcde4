"""The page of `t5xpg inspect --html`: one file that needs nothing else, light or dark like the reader's system.

All text of the corpus passes through `html.escape`.
"""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path
from string import Template

import numpy as np

from t5xpg.base.files import write_whole
from t5xpg.inspection.measurements import Example, FeatureLengths, Inspection, histogram
from t5xpg.inspection.readable import Token, one_line, visible

PAGE = Path(__file__).with_name("page.html")
BINS = 32  # of a histogram
LEGEND = """<p class="legend"><span class="noise">Text in this colour</span> is what the model predicts;
<span class="sentinel">⟨n⟩</span> is a sentinel, which stands for it in the inputs; ⏎ is a line end.</p>"""


def write(
    inspection: Inspection,
    facts: Sequence[tuple[str, str, str]],
    path: str | os.PathLike,
    answers: Sequence[tuple[str, str, str]] = (),
    rates: Sequence[float] | np.ndarray = (),
) -> None:
    """Writes the page whole or not at all.

    Args:
      inspection: what to show.
      facts: (name, number, what it is) in words.
      path: of the file; its folder is made if need be.
      answers: (question, answer, "file:line" of the code that does it).
      rates: the learning rate at each step from 0; none where there is no run.
    """
    write_whole(path, page(inspection, facts, answers, rates))


def page(
    inspection: Inspection,
    facts: Sequence[tuple[str, str, str]],
    answers: Sequence[tuple[str, str, str]] = (),
    rates: Sequence[float] | np.ndarray = (),
) -> str:
    """Returns the page as HTML; arguments as in `write`."""
    about = "".join(f"<dt>{html.escape(k)}<dd>{html.escape(v)}" for k, v in inspection.description.items() if v)
    tiles = "".join(
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(name)}</span>'
        f"<small>{html.escape(note)}</small></div>"
        for name, value, note in facts
    )
    features = inspection.sample.features.items()
    return Template(PAGE.read_text(encoding="utf-8")).substitute(
        title=html.escape(f"{inspection.task}, {inspection.split}"),
        task=html.escape(inspection.task),
        split=html.escape(inspection.split),
        about=about,
        tiles=tiles,
        histograms="".join(feature_section(name, feature) for name, feature in features),
        legend=LEGEND if any(example.text for example in inspection.examples) else "",
        examples="".join(example_section(n, e) for n, e in enumerate(inspection.examples, 1)),
        code=code_section(answers) if answers else "",
        rates=rate_section(rates) if len(rates) else "",
    )


def feature_section(name: str, feature: FeatureLengths) -> str:
    """One feature's lengths, before and after packing."""
    charts = "".join(
        f"<figure><figcaption><b>{caption}</b> mean {lengths.mean():,.1f} of {feature.room:,} tokens, "
        f"{1 - share:.1%} padding</figcaption>{chart(histogram(lengths, feature.room, BINS))}"
        f'<div class="axis"><span>1</span><span>{feature.room:,}</span></div></figure>'
        for caption, lengths, share in (
            ("Examples", feature.lengths, feature.efficiency),
            ("Packed rows", feature.packed, feature.packed_efficiency),
        )
    )
    return f'<h3>{html.escape(name)}</h3><div class="charts">{charts}</div>'


def chart(bins: Sequence[tuple[int, int, int]]) -> str:
    """Bars whose heights are shares of the highest."""
    highest = max(count for _, _, count in bins)
    bars = "".join(
        f'<i title="{first:,}–{last:,} tokens: {count:,}"><u style="height:{100 * count / highest:.2f}%"></u></i>'
        for first, last, count in bins
    )
    return f'<div class="bars">{bars}</div>'


def example_section(number: int, example: Example) -> str:
    """One example: its text with the noise marked, its features, and a table of all tokens."""
    rows = {"text": example.text} if example.text else {}
    rows |= example.features
    blocks = "".join(
        f'<div class="row"><h4>{html.escape(name)}<small>{len(tokens):,} tokens</small></h4>'
        f'<p class="ids">{token_spans(tokens)}</p></div>'
        for name, tokens in rows.items()
    )
    tables = "".join(
        f'<h4>{html.escape(name)}</h4><div class="chips">{token_chips(tokens)}</div>' for name, tokens in rows.items()
    )
    details = f"<details><summary>Tokens and ids</summary>{tables}</details>"
    return f"<section><h3>Example {number}</h3>{blocks}{details}</section>"


def code_section(answers: Sequence[tuple[str, str, str]]) -> str:
    """Questions, answers, and links to the files."""
    rows = "".join(
        f'<dt>{html.escape(question)}<dd>{html.escape(words)}<br><a href="{link(place)}">{html.escape(place)}</a>'
        for question, words, place in answers
    )
    return f"<h2>Code</h2><dl>{rows}</dl>"


def link(place: str) -> str:
    """Returns the address of the file in "file:line"."""
    path, _, line = place.rpartition(":")
    return html.escape(f"{Path(path).as_uri()}#L{line}" if os.path.isabs(path) else "#")


def rate_section(rates: Sequence[float] | np.ndarray) -> str:
    """The learning rate over the steps, as bars."""
    last, highest = len(rates) - 1, max(rates)
    steps = sorted({last * i // (2 * BINS) for i in range(2 * BINS + 1)})
    bars = "".join(
        f'<i title="step {step:,}: {rates[step]:.4g}"><u style="height:{100 * rates[step] / highest:.2f}%"></u></i>'
        for step in steps
    )
    return (
        f'<h2>Learning rate</h2><figure><figcaption>{highest:.4g} at most</figcaption><div class="bars">{bars}</div>'
        f'<div class="axis"><span>step 0</span><span>{last:,}</span></div></figure>'
    )


def token_spans(tokens: Sequence[Token]) -> str:
    """The tokens as running text; neighbours of one kind share an element."""
    parts: list[tuple[str, str]] = []
    for token in tokens:
        if parts and parts[-1][0] == token.kind and token.kind != "sentinel":
            parts[-1] = (token.kind, parts[-1][1] + one_line(token.text))
        else:
            parts.append((token.kind, one_line(token.text)))
    return "".join(
        html.escape(text) if kind == "text" else f'<span class="{kind}">{html.escape(text)}</span>'
        for kind, text in parts
    )


def token_chips(tokens: Sequence[Token]) -> str:
    """Each token with its id beneath."""
    return "".join(
        f'<span class="chip {token.kind}"><b>{html.escape(visible(token.text))}</b>{token.id}</span>'
        for token in tokens
    )
