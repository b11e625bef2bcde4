"""Lines of real text that every machine has: Python's own documentation."""

from __future__ import annotations


def python_documentation(lines: int = 200, characters: int = 300) -> list[str]:
    """Returns paragraphs of the language reference, a line each, of at most so many characters."""
    from pydoc_data import topics

    paragraphs = "\n\n".join(topics.topics[name] for name in sorted(topics.topics)).split("\n\n")
    prose = [" ".join(paragraph.split())[:characters] for paragraph in paragraphs]
    return [text for text in prose if len(text) > 60][:lines]
