"""Texts of users made fit to be shown: in a terminal, which would obey control characters, and on a page."""

from __future__ import annotations

SIGNS = {code: chr(0x2400 + code) for code in range(32)} | {0x0A: "⏎", 0x09: "⇥", 0x7F: "␡"}
# Those that turn the direction of the text around them, C1's control characters, and halves of characters.
UNFIT = (*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF)
SHOWN = SIGNS | dict.fromkeys(UNFIT, "�")


def one_line(text: str) -> str:
    """Returns the text with control characters, line ends included, shown as signs, which no terminal obeys."""
    return text.translate(SHOWN)
