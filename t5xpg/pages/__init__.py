"""The pages of `t5xpg inspect` and `t5xpg report`: what they share. Each is one file that needs nothing else.

They look the same (style.css), light or dark as the reader's system is, and can be read without the script. All text
of users passes through `text`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

from t5xpg.base.readable import one_line

HERE = Path(__file__).parent


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def document(title: str, body: str, sections: Sequence[tuple[str, str]], script: str = "", refresh: int = 0) -> str:
    """Returns a whole page.

    Args:
      title: as text.
      body: as HTML, from its header on.
      sections: (id, name as text) of those to link to from the top.
      script: JavaScript, of ours.
      refresh: seconds after which the browser is to load the page again; 0 for never.
    """
    links = "".join(f'<li><a href="#{id}">{text(name)}</a></li>' for id, name in sections)
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        title=text(title),
        refresh=f'<meta http-equiv="refresh" content="{refresh}">' if refresh else "",
        style=(HERE / "style.css").read_text(encoding="utf-8"),
        nav=f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if links else "",
        body=body,
        script=f"<script>\n{script}</script>" if script else "",
    )


def text(words: object) -> str:
    """Returns text as HTML: signs for control characters, and nothing that a browser would take for markup."""
    if isinstance(words, Html):
        return words
    return html.escape(one_line(str(words)))


def script_data(id: str, value: object) -> str:
    """Returns data for a script to read. In JSON < stands in texts alone, so that it can be written as \\u003c."""
    return f'<script type="application/json" id="{id}">{json.dumps(value).replace("<", chr(92) + "u003c")}</script>'


def section(id: str, name: str, body: str) -> str:
    """Returns a part of the page with its heading; "" without a body."""
    return f'<section id="{id}" aria-labelledby="{id}-h"><h2 id="{id}-h">{text(name)}</h2>{body}</section>' * bool(body)


def tiles(facts: Iterable[tuple[str, str, str]]) -> str:
    """Returns (name, number, note) each in a box."""
    boxes = (
        f'<div class="tile"><dt>{text(name)}</dt><dd class="value">{text(unbroken(value))}</dd>'
        + (f'<dd class="note">{text(note)}</dd></div>' if note else "</div>")
        for name, value, note in facts
    )
    inside = "".join(boxes)
    return f'<dl class="tiles">{inside}</dl>' if inside else ""


def unbroken(words: str) -> str:
    """Returns a few words that are to stay on one line, such as 1 min 40 s, with spaces that do not break."""
    return words.replace(" ", "\u00a0") if len(words) <= 12 else words


def listed(facts: Iterable[tuple[str, str, str]]) -> str:
    """Returns (name, words, note) in lines."""
    lines = (
        f'<div><dt>{text(name)}</dt><dd dir="auto">{text(value)}'
        + (f' <span class="note">{text(note)}</span></dd></div>' if note else "</dd></div>")
        for name, value, note in facts
    )
    inside = "".join(lines)
    return f'<dl class="list">{inside}</dl>' if inside else ""


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Returns a table of texts, the first of each row its heading; it scrolls by itself where it is too wide.

    Args:
      caption: what it shows; seen by screen readers alone where `kind` has "quiet" in it.
      header, rows: texts, or Html.
      kind: CSS classes: "numbers" aligns to the right.
    """
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in header)
    lines = "".join(
        f'<tr><th scope="row">{text(first)}</th>{"".join(f"<td>{text(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}"><table class="{kind}">'
        f"<caption>{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )
