"""The page of `t5xpg inspect --html`: one file that needs nothing else, light or dark as the reader's system.

All text of the corpus passes through `html.escape`.
"""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path
from string import Template

from t5xpg.inspection import Example, FeatureLengths, Inspection, histogram
from t5xpg.readable import Token

BINS = 32  # of a histogram


def write(
    inspection: Inspection,
    facts: Sequence[tuple[str, str, str]],
    path: str | os.PathLike,
    answers: Sequence[tuple[str, str, str]] = (),
    rates: Sequence[float] = (),
) -> None:
    """Writes the page whole or not at all.

    Args:
      inspection: what to show.
      facts: (name, number, what it is) in words.
      path: of the file; its folder is made if need be.
      answers: (question, answer, "file:line" of the code that does it).
      rates: the learning rate at each step from 0; none where there is no run.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(page(inspection, facts, answers, rates), encoding="utf-8")
    os.replace(part, path)


def page(
    inspection: Inspection,
    facts: Sequence[tuple[str, str, str]],
    answers: Sequence[tuple[str, str, str]] = (),
    rates: Sequence[float] = (),
) -> str:
    """Returns the page as HTML; arguments as in `write`."""
    about = "".join(f"<dt>{html.escape(k)}<dd>{html.escape(v)}" for k, v in inspection.description.items() if v)
    tiles = "".join(
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(name)}</span>'
        f"<small>{html.escape(note)}</small></div>"
        for name, value, note in facts
    )
    features = inspection.sample.features.items()
    return PAGE.substitute(
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
    """A file's address, of "file:line"."""
    path, _, line = place.rpartition(":")
    return html.escape(f"{Path(path).as_uri()}#L{line}" if os.path.isabs(path) else "#")


def rate_section(rates: Sequence[float]) -> str:
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


def one_line(text: str) -> str:
    """The text with its control characters, line ends among them, shown as signs: no terminal obeys them."""
    signs = {code: chr(0x2400 + code) for code in range(32)} | {0x0A: "⏎", 0x09: "⇥", 0x7F: "␡"}
    turning = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # they turn the direction of the text around them
    return text.translate(signs | {code: "�" for code in (*range(0x80, 0xA0), *turning)})


def visible(text: str) -> str:
    """A token's text with its spaces shown too; "·" for the further bytes of a character."""
    return one_line(text).replace(" ", "␣") or "·"


LEGEND = """<p class="legend"><span class="noise">Text in this colour</span> is what the model predicts;
<span class="sentinel">⟨n⟩</span> is a sentinel, which stands for it in the inputs; ⏎ is a line end.</p>"""

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root {
  color-scheme: light dark;
  --ground: #fbfaf7; --panel: #fff; --ink: #1d2329; --soft: #626b74; --line: #e3e0d8;
  --bar: #3b6ea5; --noise: #ffe0b8; --noise-ink: #7a3b00; --sentinel: #d9e7f7; --sentinel-ink: #174a7e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #15181c; --panel: #1d2127; --ink: #e6e4df; --soft: #99a1aa; --line: #31373f;
    --bar: #7fb0e6; --noise: #53380f; --noise-ink: #ffd49a; --sentinel: #1d3a58; --sentinel-ink: #b5d6fa;
  }
}
* { box-sizing: border-box }
body {
  margin: 0 auto; padding: 3rem 1.5rem 5rem; max-width: 62rem; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere }
h1 small { font-size: 1rem; font-weight: 400; color: var(--soft); white-space: nowrap }
h2 { font-size: 1.25rem; margin: 3rem 0 1rem }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem }
h4 { font-size: .8rem; margin: 0 0 .25rem; color: var(--soft); font-weight: 600 }
h4 small { margin-left: .75em; font-weight: 400 }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.25rem; margin: 1rem 0; font-size: .9rem }
dt { color: var(--soft) }
dd { margin: 0; overflow-wrap: anywhere }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(13.5rem, 1fr)); gap: .75rem }
.tile, section, figure { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem }
.tile { padding: .8rem 1rem; display: flex; flex-direction: column }
.tile b { font-size: 1.4rem; line-height: 1.25; font-variant-numeric: tabular-nums }
.tile span { font-size: .9rem }
.tile small { color: var(--soft); line-height: 1.35; margin-top: .2rem }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: .75rem }
figure { margin: 0; padding: .8rem 1rem }
figcaption { font-size: .85rem; color: var(--soft); margin-bottom: .6rem }
figcaption b { color: var(--ink); margin-right: .5em }
.bars { display: flex; gap: 2px; height: 7rem; border-bottom: 1px solid var(--line) }
.bars i { flex: 1; display: flex; align-items: flex-end }
.bars u { width: 100%; background: var(--bar); border-radius: 2px 2px 0 0 }
.axis { display: flex; justify-content: space-between; font-size: .75rem; color: var(--soft) }
section { padding: 1rem 1.25rem; margin-bottom: 1rem }
section h3 { margin-top: 0 }
.row { border-top: 1px solid var(--line); padding: .7rem 0 }
.ids, .chip b { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace }
.ids { margin: 0; font-size: .85rem; line-height: 1.75; white-space: pre-wrap; overflow-wrap: anywhere }
.noise, .sentinel, .special { border-radius: .2rem; padding: .1em .15em; -webkit-box-decoration-break: clone;
  box-decoration-break: clone }
.noise { background: var(--noise); color: var(--noise-ink) }
.sentinel { background: var(--sentinel); color: var(--sentinel-ink); font-weight: 600 }
.special { color: var(--soft) }
.legend { font-size: .9rem; color: var(--soft) }
details { border-top: 1px solid var(--line); padding-top: .7rem; font-size: .85rem }
summary { cursor: pointer; color: var(--soft) }
details h4 { margin-top: 1rem }
.chips { display: flex; flex-wrap: wrap; gap: 2px }
.chip { min-width: 2rem; padding: .1rem .25rem; text-align: center; font-size: .65rem; line-height: 1.3;
  border: 1px solid var(--line) }
.chip b { display: block; font-size: .85rem; font-weight: 400; white-space: pre }
</style>
</head>
<body>
<h1>$task <small>$split split</small></h1>
<dl>$about</dl>
<h2>Sample</h2>
<div class="tiles">$tiles</div>
<h2>Lengths</h2>
$histograms
<h2>Examples</h2>
$legend
$examples
$rates
$code
</body>
</html>
""")
