"""What a page is made of, and what it would ask a network for."""

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Notes a page's tags, attributes and text, and whether every element is closed.

    Attributes:
      tags: all kinds of elements.
      attributes: (element, name, value) of all.
      text: all text, that of styles and scripts included.
      open: elements that were not closed.
    """

    VOID = {"meta", "br", "hr", "input"}

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.open, self.attributes, self.text = set(), [], [], ""
        self._source = text
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(tag, *attr) for attr in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def asked_for(self) -> list[str]:
        """Returns what would be loaded, or lead away, or run: anything but links within the page and to files."""
        found = re.findall(r"url\(|@import|fetch\(|XMLHttpRequest", self._source)
        for tag, name, value in self.attributes:
            is_link = tag == "a" and name == "href" and re.match("#|file:///", value)
            if (name in ("src", "href", "srcset", "action") and not is_link) or name.startswith("on"):
                found.append(f"{tag} {name}={value}")
        return found
