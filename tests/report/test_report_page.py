"""The page of `t5xpg report`: whole, escaped, and made for readers with a keyboard, a screen reader and no script."""

import itertools
import json
import re

import pytest
from conftest import TESTS
from html_pages import Page
from written_runs import HOSTILE, HOSTILE_TEXTS, START, write_run

from t5xpg import pages
from t5xpg.report import charts, curves, facts, page, reading


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    found = [
        write_run(folder / "books", texts=HOSTILE_TEXTS),
        write_run(folder / "books<b>'slow\"", rate=0.003, done=300),
    ]
    (found[1] / "starts.jsonl").write_text(json.dumps(START | {"command": HOSTILE}) + "\n", encoding="utf-8")
    config = (found[1] / "config.gin").read_text(encoding="utf-8").replace("'books'", repr("</table>" + HOSTILE))
    (found[1] / "config.gin").write_text(config, encoding="utf-8")
    return [reading.read(str(each)) for each in found]


@pytest.mark.parametrize("count", [1, 2])
def test_the_page_is_whole_escaped_and_needs_nothing_else(count, runs, tmp_path):
    page.write(runs[:count], str(tmp_path / "folder" / "report.html"))
    text = (tmp_path / "folder" / "report.html").read_text(encoding="utf-8")
    made = Page(text)
    assert made.open == [] and made.asked_for() == []
    assert not made.tags & {"img", "link", "iframe", "object"} and text.count("<script") == 2
    assert "taken" in made.text and not re.search("[\x00\x1b\u202e]", text)


def test_data_for_the_script_cannot_end_it():
    made = pages.script_data("id", {"</script>": "<!--"})
    assert made.count("<") == 2 and json.loads(made[made.index(">") + 1 : made.rindex("<")]) == {"</script>": "<!--"}


def test_without_the_script_all_steps_are_shown_and_what_needs_it_is_hidden(runs):
    text = page.page(runs[:1])
    assert re.findall(r'<tr data-step="(\d+)" data-run="0">', text) == ["100", "200", "300", "400"] * 2
    assert '<div class="slider" hidden>' in text and "<tr hidden" not in text


def test_words_are_counted_at_each_runs_last_evaluation(tmp_path):
    runs = [reading.read(str(write_run(tmp_path / name, done=done))) for name, done in (("a", 400), ("b", 300))]
    said = re.findall(r"step (\d+): (.*?) words right", page.page(runs))
    assert said == [
        ("100", "a 0 of 2, b 0 of 2"),
        ("200", "a 0 of 2, b 0 of 2"),
        ("300", "a 1 of 2, b 1 of 2"),
        ("400", "a 2 of 2, b 1 of 2"),
    ]


def test_all_values_of_evaluations_are_in_tables(runs):
    text = page.page(runs)
    for value in runs[1].series["training_eval/books", "accuracy"].values:
        assert f"<td>{100 * value:.4g}</td>" in text


def test_a_page_is_made_for_readers_who_do_not_see_it(runs):
    text = page.page(runs)
    levels = [int(level) for level in re.findall(r"<h([1-6])", text)]
    assert levels.count(1) == 1 and all(b <= a + 1 for a, b in itertools.pairwise(levels))
    for landmark in ("<header>", "<main", "<nav aria-label=", "<footer>", 'class="skip" href="#main"', 'lang="en"'):
        assert text.count(landmark) == 1
    tables = re.findall(r"<table.*?</table>", text, re.DOTALL)
    assert len(tables) > 5
    for table in tables:
        assert "<caption>" in table and 'scope="col"' in table and 'scope="row"' in table
        assert not re.search("<th>", table)
    drawings = re.findall(r"<svg[^>]*>.*?</svg>", text, re.DOTALL)
    for drawing in drawings:
        told = 'role="img"' in drawing and "<title" in drawing and "<desc" in drawing
        assert told or 'aria-hidden="true"' in drawing
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)


def test_marks_are_what_is_right_and_dotted_what_is_not(runs):
    shown = page.pieces_html(page.answers.compared("the red fox", "the big fox")[0])
    assert shown == '<mark>the</mark> <span class="wrong">big</span> <mark>fox</mark>'


def test_the_flax_recipe_is_beside_the_example(tmp_path):
    folder = write_run(tmp_path / "flax")
    with open(folder / "config.gin", "a", encoding="utf-8") as config:
        config.write("from t5xpg import schedules\nschedules.linear_decay_factor.total_steps = %TRAIN_STEPS\n")
    text = page.page([reading.read(str(folder))])
    for words in (
        "2.36 (Flax example)",
        "57.0 (Flax example)",
        "comparable only where vocabulary and text are the same",
    ):
        assert words in text


# ---- Axes ----


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([2.1, 5.9], ["2", "3", "4", "5", "6"]),
        ([0.0, 0.01], ["0", "0.0025", "0.0050", "0.0075", "0.0100"]),
        ([0.0, 3_000_000.0], ["0", "1M", "2M", "3M"]),
        ([7.0, 7.0], ["2", "4", "6", "8", "10", "12"]),
        ([0.0, 1e-7], ["0", "2.5e-08", "5e-08", "7.5e-08", "1e-07"]),
        ([-3.0, 4.0], ["-4", "-2", "0", "2", "4"]),
    ],
)
def test_an_axis_has_round_numbers(values, labels):
    line = curves.Line(0, "training", range(len(values)), values)
    low, high, step = charts.y_range(curves.Panel("", "", [line]), [line])
    assert low <= min(values) and max(values) <= high
    assert re.findall(">([^<]+)<", charts.y_labels(low, high, step, "y")) == labels


def test_a_curve_is_broken_where_it_has_no_number():
    line = curves.Line(0, "training", [0, 1, 2, 3], [1.0, float("nan"), 2.0, 3.0])
    drawn = charts.figure(curves.Panel("Loss", "", [line]), [""], 0)
    assert re.search(r'class="curve r0" d="M[^ML]+M[^ML]+L[^ML]+"', drawn)
    assert "nan" not in re.sub("<table.*?</table>", "", drawn)


def test_steps_are_counted_from_0_but_where_a_run_began_late():
    def axis(*steps):
        return charts.x_range([curves.Line(0, "training", steps, [1.0] * len(steps))])

    assert [axis(10, 400), axis(0), axis(1), axis(7)] == [(0, 400), (0, 1), (0, 1), (7, 8)]
    assert axis(1_000_010, 1_000_300) == (1_000_010, 1_000_300)


def test_a_long_curve_keeps_its_ends():
    line = charts.thinned(curves.Line(0, "training", range(10_001), [float(i) for i in range(10_001)]))
    assert len(line.steps) <= charts.MOST_POINTS + 1 and (line.steps[0], line.values[-1]) == (0, 10_000.0)


def test_of_many_evaluations_some_are_shown():
    assert page.chosen(list(range(1000)))[::23] == [0, 999] and len(page.chosen(list(range(1000)))) == page.MOST_STEPS


# ---- Colours ----


def luminance(colour: str) -> float:
    """W3C's relative luminance of #rrggbb."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_inks_can_be_read_and_curves_be_seen(theme):
    style = (TESTS.parent / "t5xpg" / "pages" / "style.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", style.split(":root {")[theme + 1]))
    grounds = [colours["ground"], colours["panel"]]
    for ink in ("ink", "soft", "accent", "wrong-ink"):
        assert min(contrast(colours[ink], ground) for ground in grounds) >= 4.5, ink
    for kind in ("right", "noise", "sentinel"):
        assert contrast(colours[f"{kind}-ink"], colours[kind]) >= 4.5, kind
    for number in range(charts.LOOKS):
        assert contrast(colours[f"run-{number}"], colours["panel"]) >= 3, number


def test_numbers_have_four_digits_that_count():
    assert [facts.number(x) for x in (1234567.8, 123.456, 0.0012345, float("nan"))] == [
        "1,234,568",
        "123.5",
        "0.001234",
        "nan",
    ]
    assert [facts.count(x) for x in (999, 12_345, 1_050_624, 2.5e9)] == ["999", "12.3k", "1.05M", "2.5G"]
