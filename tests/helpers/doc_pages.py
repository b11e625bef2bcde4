"""README.md and the pages of docs/ as a reader's tools see them: blocks, inline code, headings, links.

Comments of HTML, which neither GitHub nor mkdocs shows, tell the tests what a page's reader has and what a block is:

    <!-- given: books pairs runs/books -->     what is in the page's folder before its first command
    <!-- file: news.gin -->                    above a block: its text is that file's
    <!-- over: configs/byt5_tiny.gin … -->     above a block of gin: it is read after these arguments of `t5xpg train`
    <!-- output -->                            above a block of text: its lines are in what the last command printed
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NOTE = re.compile(r"<!-- (\w+)(?:: (.*?))? -->\s*$")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
      kind: the word after its fence, such as "bash".
      text: its lines, without the fence's indentation.
      line: the number of the fence's line in its page, from 1.
      note: the name and the value of the comment right above it, or ("", "").
    """

    kind: str
    text: str
    line: int
    note: tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Page:
    """A Markdown file; `name` is its path in the repository."""

    name: str
    text: str

    def blocks(self) -> list[Block]:
        found = []
        for match in FENCE.finditer(self.text):
            note = NOTE.search(self.text[: match.start()])
            indent, kind, text = match.groups()
            text = re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
            line = self.text.count("\n", 0, match.start()) + 1
            found.append(Block(kind, text, line, (note[1], note[2] or "") if note else ("", "")))
        return found

    def given(self) -> list[str]:
        """Returns what its reader has before the first command."""
        return [name for words in re.findall(r"<!-- given: (.*?) -->", self.text) for name in words.split()]

    def prose(self) -> str:
        """Returns the text without fenced blocks and comments."""
        return re.sub("<!--.*?-->", "", FENCE.sub("", self.text), flags=re.DOTALL)

    def inline_code(self) -> list[str]:
        return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", self.prose())]

    def anchors(self) -> set[str]:
        """Returns the anchors of its headings, which are the same on GitHub and in mkdocs for the headings here."""
        return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", self.prose(), re.MULTILINE)}

    def links(self) -> list[str]:
        """Returns what its links and pictures lead to, within the repository and without."""
        prose = re.sub(r"(?<!`)`[^`]+`(?!`)", "", self.prose())
        return re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r'(?:src|href)="([^"]+)"', prose)


def anchor(heading: str) -> str:
    """Returns a heading's anchor as GitHub makes it: lower case, without signs, spaces as hyphens."""
    return re.sub(r" ", "-", re.sub(r"[^\w\- ]", "", re.sub(r"`", "", heading).strip().lower()))


def commands(block: Block) -> list[str]:
    """Returns the commands of a block of bash, each on one line and without its comment."""
    lines = block.text.replace("\\\n", " ").splitlines()
    without = [re.sub(r"(^|\s+)#\s.*$", "", line).strip() for line in lines]
    return [" ".join(line.split()) for line in without if line]


def read(name: str) -> Page:
    return Page(name, (ROOT / name).read_text(encoding="utf-8"))


def pages() -> list[Page]:
    """Returns README.md and then docs/: start/ first, as it is read, and the others in the order of their paths."""
    names = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]
    return [read(name) for name in ["README.md", *sorted(names, key=lambda name: ("/start/" not in name, name))]]
