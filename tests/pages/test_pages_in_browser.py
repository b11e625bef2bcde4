"""The pages as Chromium shows them: at two widths, light and dark, by keyboard, without the script."""

import itertools
import json

import browser
import numpy as np
import pytest
from written_runs import HOSTILE, HOSTILE_TEXTS, write_run

from t5xpg.inspection import measurements
from t5xpg.inspection import page as inspection_page
from t5xpg.inspection.readable import Token
from t5xpg.report import page as report_page
from t5xpg.report import reading

pytestmark = pytest.mark.skipif(not browser.find(), reason="no Chromium here; `make test` installs Debian's as root")
SEEN = list(itertools.product(("report", "runs", "inspection"), (400, 1400), ("light", "dark")))

# Texts with less contrast than W3C's AA asks for, against the nearest ground behind them.
FAINT = """(() => {
  const channel = c => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const colour = words => words.match(/[\\d.]+/g).map(Number);
  const light = c => .2126 * channel(c[0]) + .7152 * channel(c[1]) + .0722 * channel(c[2]);
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const found = colour(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest("script, svg")) continue;
    const [a, b] = [light(colour(getComputedStyle(element).color)), light(ground(element))];
    if ((Math.max(a, b) + .05) / (Math.min(a, b) + .05) < 4.5) found.push(walker.currentNode.data);
  }
  return found;
})()"""
# What sticks out of the window, but for what scrolls by itself or is for screen readers alone; and texts cut off.
OUTSIDE = """[...document.body.querySelectorAll("*")].filter(element => {
  const box = element.getBoundingClientRect(), style = getComputedStyle(element);
  if (!element.checkVisibility() || element.closest(".scroll, nav, .skip, .quiet caption, .unseen, svg")) return false;
  if (style.clipPath !== "none" || element.closest("thead")) return false;
  const cut = style.overflow !== "visible" && element.scrollWidth > element.clientWidth + 1;
  return box.left < -1 || box.right > innerWidth + 1 || cut;
}).map(element => element.outerHTML.slice(0, 200))"""
# Labels of an axis, and names and values beside each other, that lie upon one another.
OVERLAPPING = """[...document.querySelectorAll(".plot, .key li, .tile")].flatMap(group => {
  const parts = [...group.querySelectorAll("span, b, dt, dd")].filter(part => part.checkVisibility());
  const boxes = parts.map(part => part.getBoundingClientRect());
  return boxes.flatMap((a, i) => boxes.slice(i + 1).map((b, j) => [a, b, parts[i], parts[i + 1 + j]]))
    .filter(([a, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1)
    .map(([, , one, other]) => one.textContent + " | " + other.textContent);
})"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The pages of one run, of several, and of an inspection, full of what would break them."""
    folder = tmp_path_factory.mktemp("pages")
    write_run(folder / "a_run_with_a_rather_long_name", texts=HOSTILE_TEXTS)
    write_run(folder / "b", rate=0.003, done=300, texts=HOSTILE_TEXTS)
    write_run(folder / "c", rate=0.02, batch_size=32, texts=HOSTILE_TEXTS)
    runs = [reading.read(str(path)) for path in sorted(folder.iterdir())]
    report_page.write(runs[:1], str(folder / "report.html"))
    report_page.write(runs, str(folder / "runs.html"))
    tokens = [Token(text, 7, kind) for text, kind in (("Some text ", "text"), (HOSTILE, "noise"), ("⟨0⟩", "sentinel"))]
    example = measurements.Example({"inputs": tokens * 9, "targets": [*tokens, Token("x" * 300, 1, "special")]}, tokens)
    lengths = measurements.FeatureLengths(512, np.arange(1, 500), np.full(90, 512))
    sample = measurements.Sample(99, {"inputs": lengths, "targets": lengths}, 100, 15, 15, np.ones(499, int), 100)
    seen = measurements.Inspection("task_" + "long_" * 20, "train", {"source": "/a/path" * 30}, [example], sample, None)
    told = [("examples", "499", "of 99 rows"), ("batches", "23,000 packed examples a second", "on one core")]
    code = [("how?", "so", f"{__file__}:1"), ("why?", HOSTILE, "/folder" * 30 + ":7")]
    inspection_page.write(seen, told, folder / "inspection.html", code, np.linspace(0, 0.01, 1001))
    return {name: folder / f"{name}.html" for name in ("report", "runs", "inspection")}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser.start(str(tmp_path_factory.mktemp("chromium"))) as page:
        yield page


@pytest.mark.parametrize(("name", "width", "theme"), SEEN)
def test_nothing_sticks_out_or_is_faint_or_complains(name, width, theme, files, chromium, tmp_path):
    chromium.look(files[name], width, dark=theme == "dark")
    assert chromium.run("[innerWidth, document.scrollingElement.scrollWidth]") == [width, width]
    assert chromium.run(OUTSIDE) == []
    assert chromium.run(OVERLAPPING) == []
    assert chromium.run(FAINT) == []
    assert chromium.run("document.title").startswith(("Report: ", "task_"))
    ground = chromium.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 150) == (theme == "dark")
    assert chromium.complaints == []
    (tmp_path / f"{name}-{width}-{theme}.png").write_bytes(picture := chromium.picture())
    assert picture.startswith(b"\x89PNG") and len(picture) > 20_000


@pytest.mark.parametrize(
    ("style", "found"),
    [
        (".tile { width: 30rem }", OUTSIDE),
        (".unit { white-space: nowrap; overflow: hidden; display: block; width: 3rem }", OUTSIDE),
        (".plot .x { left: 0 !important }", OVERLAPPING),
        (".about { color: #888 }", FAINT),
    ],
    ids=["beyond the edge", "cut off", "upon each other", "faint"],
)
def test_what_is_looked_for_would_be_found(style, found, files, chromium):
    chromium.look(files["report"], 400)
    chromium.run(f"document.head.insertAdjacentHTML('beforeend', {json.dumps(f'<style>{style}</style>')}), 0")
    assert chromium.run(found) != []


def test_a_slider_goes_through_the_steps_of_all_runs(files, chromium):
    chromium.look(files["runs"], 1400)
    rows = '[...document.querySelectorAll("table.writing")[0].querySelectorAll("tr[data-step]")].filter(r => !r.hidden)'
    steps = f"{rows}.map(row => [row.dataset.run, row.dataset.step])"
    assert chromium.run(steps) == [["0", "400"], ["1", "300"], ["2", "400"]]
    chromium.run('document.querySelector(".slider input").focus()')
    chromium.press("Home")
    assert chromium.run(steps) == [["0", "100"], ["1", "100"], ["2", "100"]]
    assert "step 100: " in chromium.run('document.querySelector(".slider output").textContent')
    chromium.press("Tab")
    chromium.run("document.activeElement.click()")  # all steps
    assert len(chromium.run(steps)) == 11
    assert chromium.complaints == []


def test_by_keyboard_the_content_and_the_values_of_each_step_are_reached(files, chromium):
    chromium.look(files["report"], 1400)
    chromium.press("Tab")
    focused = "document.activeElement.textContent + getComputedStyle(document.activeElement).outlineStyle"
    assert chromium.run(focused) == "Skip to the contentsolid"
    plot, value = 'document.querySelector(".plot")', 'document.querySelector(".key b").textContent'
    last = chromium.run(value)
    chromium.run(f"{plot}.focus()")
    chromium.press("Home")
    assert chromium.run('document.querySelector(".when span").textContent') == "10"
    assert chromium.run(value) not in (last, "")
    chromium.press("ArrowRight")
    assert chromium.run('document.querySelector(".when span").textContent') == "20"
    chromium.run(f"{plot}.blur()")
    assert chromium.run(value) == last


@pytest.mark.parametrize("width", [400, 1400])
def test_without_the_script_all_is_there(width, files, chromium):
    chromium.look(files["report"], width, script=False)
    chromium.call("Emulation.setScriptExecutionDisabled", value=False)
    shown = '[...document.querySelectorAll("tr[data-step]")].every(row => row.checkVisibility())'
    assert chromium.run(shown) is True
    assert chromium.run('document.querySelector(".slider").checkVisibility()') is False
    assert chromium.run("document.scrollingElement.scrollWidth") == width
