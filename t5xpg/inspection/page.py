"""The page of `t5xpg inspect --html`: one file that needs nothing else, in the style of t5xpg.pages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from t5xpg import pages
from t5xpg.base.files import write_whole
from t5xpg.inspection.measurements import Example, FeatureLengths, Inspection, histogram
from t5xpg.inspection.readable import Token, visible
from t5xpg.report import charts, curves

BINS = 32  # of a histogram
LEGEND = """<p class="legend"><span class="noise">Underlined text</span> is what the model predicts;
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
    notes = [note for name, _, note in facts if name == "note"]
    numbers = pages.tiles(fact for fact in facts if fact[0] != "note")
    examples = "".join(example_section(n, e) for n, e in enumerate(inspection.examples, 1))
    legend = LEGEND if any(example.text for example in inspection.examples) else ""
    parts = [
        ("sample", "Sample", numbers + "".join(f'<p class="remark">{pages.text(note)}</p>' for note in notes)),
        ("examples", "Examples", legend + examples),
        ("lengths", "Lengths", lengths_figures(inspection.sample.features)),
        ("code", "Code", code_list(answers)),
        ("rate", "Learning rate", rate_figure(rates) if len(rates) else ""),
    ]
    about = pages.listed((name, words, "") for name, words in inspection.description.items() if words)
    body = (
        f'<header><h1 dir="auto">{pages.text(inspection.task)}</h1>'
        f'<p class="about">{pages.text(inspection.split)} split</p>{about}</header>'
        f'<main id="main">{"".join(pages.section(*part) for part in parts)}</main>'
    )
    links = [(id, name) for id, name, content in parts if content]
    return pages.document(f"{inspection.task}, {inspection.split}", body, links)


def lengths_figures(features: Mapping[str, FeatureLengths]) -> str:
    """Each feature's lengths, before and after packing."""
    shown = [
        (caption, feature.room, lengths, share)
        for name, feature in features.items()
        for caption, lengths, share in (
            (name, feature.lengths, feature.efficiency),
            (f"{name}, packed", feature.packed, feature.packed_efficiency),
        )
    ]
    figures = "".join(
        f'<figure class="panel"><figcaption><h3 dir="auto">{pages.text(caption)}</h3><span class="unit">mean '
        f"{lengths.mean():,.1f} of {room:,} tokens, {1 - share:.1%} padding</span></figcaption>"
        f"{bars(histogram(lengths, room, BINS), caption)}</figure>"
        for caption, room, lengths, share in shown
    )
    return f'<div class="charts">{figures}</div>'


def bars(bins: Sequence[tuple[int, int, int]], what: str) -> str:
    """Returns a histogram of (first length, last length, how many) with its numbers as a table."""
    highest = max(count for _, _, count in bins)
    width = charts.SIZE / len(bins)
    drawn = "".join(
        f'<rect class="bar" x="{i * width + 1.5:.1f}" width="{width - 3:.1f}" '
        f'y="{charts.SIZE * (1 - count / highest):.1f}" height="{charts.SIZE * count / highest:.1f}">'
        f"<title>{first:,}–{last:,} tokens: {count:,}</title></rect>"
        for i, (first, last, count) in enumerate(bins)
    )
    rows = [(f"{first:,}–{last:,}", f"{count:,}") for first, last, count in bins if count]
    least, most = rows[0][0], rows[-1][0]
    table = pages.table(f"{what} by their length", ["tokens", "how many"], rows, "numbers quiet")
    return (
        f'<div class="plot bars"><svg viewBox="0 0 {charts.SIZE} {charts.SIZE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{pages.text(f"{what}: from {least} to {most} tokens")}">{drawn}'
        f'<path class="axis" d="M0 {charts.SIZE}H{charts.SIZE}"/></svg><span class="x first">1 token</span>'
        f'<span class="x last" style="left:100%">{bins[-1][1]:,}</span></div>'
        f"<details><summary>Numbers</summary>{table}</details>"
    )


def example_section(number: int, example: Example) -> str:
    """One example: its text with the noise marked, its features, and all tokens with their ids."""
    rows = {"text": example.text} if example.text else {}
    rows |= example.features
    blocks = "".join(
        f'<h4>{pages.text(name)} <span class="unit">{len(tokens):,} tokens</span></h4>'
        f'<p class="ids" dir="auto">{token_spans(tokens)}</p>'
        for name, tokens in rows.items()
    )
    tables = "".join(
        f'<h4>{pages.text(name)}</h4><ol class="chips">{token_chips(tokens)}</ol>' for name, tokens in rows.items()
    )
    details = f"<details><summary>Tokens and ids of example {number}</summary>{tables}</details>"
    return f'<article class="card"><h3>Example {number}</h3>{blocks}{details}</article>'


def code_list(answers: Sequence[tuple[str, str, str]]) -> str:
    """Questions, answers, and links to the files."""
    return pages.listed(
        (question, pages.Html(f'{pages.text(words)}<br><a href="{link(place)}">{pages.text(place)}</a>'), "")
        for question, words, place in answers
    )


def link(place: str) -> str:
    """Returns the address of the file in "file:line"."""
    path, _, line = place.rpartition(":")
    return pages.text(f"{Path(path).as_uri()}#L{line}" if os.path.isabs(path) else "#")


def rate_figure(rates: Sequence[float] | np.ndarray) -> str:
    """The learning rate over the steps."""
    line = curves.Line(0, "training", range(len(rates)), [float(rate) for rate in rates])
    panel = curves.Panel("Learning rate", f"{max(rates):.4g} at most", [line], from_zero=True)
    return f'<div class="panels">{charts.figure(panel, [""], 0)}</div>'


def token_spans(tokens: Sequence[Token]) -> str:
    """The tokens as running text; neighbours of one kind share an element."""
    parts: list[tuple[str, str]] = []
    for token in tokens:
        if parts and parts[-1][0] == token.kind and token.kind != "sentinel":
            parts[-1] = (token.kind, parts[-1][1] + token.text)
        else:
            parts.append((token.kind, token.text))
    return "".join(
        pages.text(text) if kind == "text" else f'<span class="{kind}">{pages.text(text)}</span>'
        for kind, text in parts
    )


def token_chips(tokens: Sequence[Token]) -> str:
    """Each token with its id beneath."""
    return "".join(
        f'<li class="chip {token.kind}"><b>{pages.text(visible(token.text))}</b>{token.id}</li>' for token in tokens
    )
