"""README.md and docs/: links and anchors lead somewhere, inline commands exist, and the site is built."""

import os
import re
import subprocess
import sys

import doc_pages
import pytest
import reference_pages
from doc_pages import ROOT

from t5xpg import name_value
from t5xpg.cli import main

PAGES = {page.name: page for page in doc_pages.pages()}
HELP = {parser.prog: parser.format_help() for parser in reference_pages.leaves(main.make_parser())}
OF_PROGRAMS = {"--help", *name_value.FLAGS_WITH_VALUE, *name_value.OWN_FLAGS}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_links_lead_somewhere(page):
    for link in page.links():
        if re.match(r"(https?|mailto):", link):
            continue
        path, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(page.name), path)) if path else page.name
        assert (ROOT / target).exists(), f"{page.name}: {link}"
        assert not anchor or anchor in doc_pages.read(target).anchors(), f"{page.name}: {link}"


def test_every_page_can_be_reached_from_the_readme():
    reached, waiting = set(), ["README.md"]
    while waiting:
        name = waiting.pop()
        if name in PAGES and name not in reached:
            reached.add(name)
            links = (link.partition("#")[0] for link in PAGES[name].links())
            waiting += [os.path.normpath(os.path.join(os.path.dirname(name), link)) for link in links if link]
    assert reached == {*PAGES} - {"docs/index.md"}  # the site's README.md


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_inline_commands_have_their_verbs_and_flags(page):
    for code in page.inline_code():
        if not re.match(r"t5xpg [a-z]", code):
            continue
        said = {verb: text for verb, text in HELP.items() if code.startswith(verb)} or {
            verb: text for verb, text in HELP.items() if verb.startswith(" ".join(code.split()[:2]))
        }
        assert said, f"{page.name}: {code}"
        for flag in set(re.findall(r" (--\w+)", code)) - OF_PROGRAMS:
            assert flag in "".join(said.values()), f"{page.name}: {code}"


def test_the_readme_is_short():
    assert PAGES["README.md"].text.count("\n") <= 150


def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    html = [*(tmp_path / "site").rglob("*.html")]
    assert len(html) > len(PAGES)
    for page in html:
        fetched = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(?:https?:)?//[^"]*"', page.read_text())
        assert fetched == [], page.name
