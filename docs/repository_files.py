"""mkdocs: what pages link to outside of docs/, such as ../SECURITY.md, is in the site too, as repository/….

On GitHub such links lead to the file itself.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\()([^)\s#:]+)")


def on_files(files: Files, *, config) -> Files:
    """Adds the files that are linked to, and what those link to in turn."""
    waiting = [file for file in files if file.src_uri.endswith(".md")]
    while waiting:
        page = waiting.pop()
        for _, link in LINK.findall(page.content_string):
            path = path_of(page.src_uri, link)
            if (ROOT / path).is_file() and files.get_file_from_path(uri_of(path)) is None:
                added = File.generated(config, uri_of(path), abs_src_path=str(ROOT / path))
                files.append(added)
                waiting += [added] if path.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, *, page, **_) -> str:
    """Leads links to where their files are in the site."""
    folder = posixpath.dirname(page.file.src_uri) or "."

    def lead(link: re.Match) -> str:
        path = path_of(page.file.src_uri, link[2])
        return link[1] + posixpath.relpath(uri_of(path), folder) if (ROOT / path).is_file() else link[0]

    return LINK.sub(lead, markdown)


def path_of(src_uri: str, link: str) -> str:
    """Returns the path in the repository of what `link` of a page of the site leads to."""
    page = src_uri.removeprefix("repository/") if src_uri.startswith("repository/") else f"docs/{src_uri}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def uri_of(path: str) -> str:
    """Returns where a file of the repository is in the site."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
