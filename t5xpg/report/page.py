"""The page of `t5xpg report --html`: one file that needs nothing else and no network."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import t5xpg
from t5xpg import pages
from t5xpg.base.files import write_whole
from t5xpg.report import answers, charts, curves, facts, reading
from t5xpg.report.reading import Run

SCRIPT = Path(__file__).with_name("page.js")
MOST_STEPS = 24  # evaluations whose predictions are shown
LEGEND = """<p class="legend"><mark>Highlighted</mark> words are those of the target, words with a
<span class="wrong">dotted line</span> are not; <span class="nothing">∅</span> is nothing, ␣ spaces alone.</p>"""


def write(runs: Sequence[Run], path: str, refresh: int = 0) -> None:
    """Writes the page whole or not at all; `refresh` is the seconds after which browsers load it again, 0 for never."""
    write_whole(path, page(runs, refresh))


def page(runs: Sequence[Run], refresh: int = 0, now: float | None = None) -> str:
    """Returns the page; `now` is the time in seconds since 1970, for tests."""
    now = time.time() if now is None else now
    names = reading.short_names([run.folder for run in runs])
    drawn = curves.panels(runs)
    flax = [name for name, run in zip(names, runs, strict=True) if facts.is_flax_counterpart(run)]
    if flax:
        facts.with_flax(drawn)
    about = [
        pages.section("data", "Data", facts_of(runs, names, facts.data)),
        pages.section("machine", "Machine and versions", facts_of(runs, names, facts.machine)),
    ]
    parts = [
        ("differences", "What differs", differences(runs, names)),
        ("curves", "Curves", panels(drawn, names)),
        ("predictions", "Predictions", predictions(runs, names)),
        ("flax", "Beside the Flax example", flax_words(flax, names) if flax else ""),
        ("settings", "Settings", settings(runs, names)),
    ]
    sections = {id: pages.section(id, name, content) for id, name, content in parts}
    last = sections.pop("settings")
    pair = f'<div class="{"pair" if len(runs) == 1 else ""}">{"".join(about)}</div>'
    body = (
        f"<header>{head(runs, names, now)}</header>"
        f'<main id="main">{"".join(sections.values())}{pair}{last}'
        f'</main><footer><p class="about">Made by t5xpg {t5xpg.__version__} on {utc(now)} from '
        f"{', '.join(pages.text(run.folder) for run in runs)}.</p></footer>"
        f"{pages.script_data('curve-data', charts.data_of(drawn))}"
    )
    links = [(id, name) for id, name, content in parts if content]
    links[-1:-1] = [("data", "Data"), ("machine", "Machine")]
    title = f"Report: {', '.join(names)}"
    return pages.document(title, body, links, SCRIPT.read_text(encoding="utf-8"), refresh)


def utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def head(runs: Sequence[Run], names: Sequence[str], now: float) -> str:
    """Returns the names of the runs and their main numbers: of one in boxes, of several in a table."""
    if len(runs) == 1:
        run = runs[0]
        return (
            f'<h1 dir="auto">{pages.text(names[0])}</h1><p class="about">{pages.text(facts.status(run, now))}</p>'
            f"{pages.tiles(facts.summary(run))}"
        )
    summaries = [{fact.name: fact for fact in facts.summary(run)} for run in runs]
    columns = list(dict.fromkeys(name for found in summaries for name in found))
    rows = [
        [
            pages.Html(f"{charts.sample(number, False)}{pages.text(names[number])}"),
            *(found[column].value if column in found else "" for column in columns),
            facts.status(runs[number], now),
        ]
        for number, found in enumerate(summaries)
    ]
    table = pages.table("The runs' latest numbers", ["run", *columns, "state"], rows, "wide quiet")
    return f"<h1>{len(runs)} runs</h1>{table}"


def facts_of(runs: Sequence[Run], names: Sequence[str], show: Callable[[Run], list[facts.Fact]]) -> str:
    """Returns what `show` says of each run: of one in lines, of several in a table."""
    if len(runs) == 1:
        return pages.listed(show(runs[0]))
    found = [{fact.name: fact.value for fact in show(run)} for run in runs]
    rows = [
        (name, *(each.get(name, "") for each in found)) for name in dict.fromkeys(n for each in found for n in each)
    ]
    return pages.table("Of each run", ["", *names], rows, "quiet") if rows else ""


def differences(runs: Sequence[Run], names: Sequence[str]) -> str:
    found = facts.differences(runs)
    if len(runs) == 1:
        return ""
    if not found:
        return "<p>Their config.gin bind the same values.</p>"
    return pages.table(
        "What their config.gin bind differently", ["binding", *names], [(k, *v) for k, v in found], "quiet"
    )


def panels(drawn: Sequence[curves.Panel], names: Sequence[str]) -> str:
    """Returns what tells how well the runs learn in large pictures, and how they run in small ones."""
    if not drawn:
        return '<p class="legend">No numbers yet.</p>'
    shown: dict[str, list[str]] = {"panels": [], "panels minor": []}
    for number, panel in enumerate(drawn):
        shown["panels" if panel.best else "panels minor"].append(charts.figure(panel, names, number))
    return "".join(f'<div class="{kind}">{"".join(figures)}</div>' for kind, figures in shown.items() if figures)


def flax_words(flax: Sequence[str], names: Sequence[str]) -> str:
    which = f"<p>Of these runs: {pages.text(', '.join(flax))}.</p>" if len(names) > 1 else ""
    return which + "".join(f"<p>{pages.text(words)}</p>" for words in facts.FLAX_WORDS)


def settings(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Returns each run's command, and all of its bindings to unfold."""
    found = []
    for name, run in zip(names, runs, strict=True):
        of = f" of {name}" if len(runs) > 1 else ""
        if command := facts.command(run):
            found.append(f'<h3>{pages.text(f"Command{of}")}</h3><pre class="card">{pages.text(command)}</pre>')
        if rows := [(binding.name, binding.value) for binding in run.bindings.values()]:
            table = pages.table(f"Bindings{of} in config.gin", ["binding", "value"], rows, "quiet")
            found.append(f"<details><summary>{len(rows)} bindings{pages.text(of)}</summary>{table}</details>")
    return "".join(found)


# ---- Predictions ----


def predictions(runs: Sequence[Run], names: Sequence[str]) -> str:
    tasks = dict.fromkeys(each.task for run in runs for each in run.predictions)
    return LEGEND * bool(tasks) + "".join(of_task(runs, names, task, len(tasks) > 1) for task in tasks)


def of_task(runs: Sequence[Run], names: Sequence[str], task: str, is_named: bool) -> str:
    """Returns the examples of one task, with a slider over the steps that the script brings to life."""
    mine = [[each for each in run.predictions if each.task == task] for run in runs]
    steps = chosen(sorted({each.step for found in mine for each in found}))
    shown = list(answers.examples([[each for each in found if each.step in steps] for found in mine]))
    said = json.dumps([[step, said_of(step, shown, names)] for step in steps])
    last = len(steps) - 1
    slider = (
        f'<div class="slider" hidden><label>Step <input type="range" min="0" max="{last}" value="{last}"></label>'
        f'<output aria-live="polite"></output><button type="button" aria-pressed="false">All steps</button></div>'
    )
    level = "h4" if is_named else "h3"
    cards = "".join(card(example, f"Example {number}", level, names) for number, example in enumerate(shown, 1))
    heading = f'<h3 dir="auto">{pages.text(task)}</h3>' if is_named else ""
    if not last:
        return heading + cards
    return f'<div data-steps="{pages.text(said)}">{heading}{slider}{cards}</div>'


def said_of(step: int, shown: Sequence[answers.Example], names: Sequence[str]) -> str:
    """Says how many words are right at a step or at a run's last evaluation before, over all examples."""
    said = []
    for run, name in enumerate(names):
        by_example = [[each for each in example.answers if each.run == run and each.step <= step] for example in shown]
        found = [given[-1] for given in by_example if given]
        if found:
            counts = f"{sum(each.right for each in found):,} of {sum(each.words for each in found):,}"
            said.append(f"{name} {counts}" if len(names) > 1 else counts)
    return f"step {step:,}: {', '.join(said)} words right"


def chosen(steps: list[int]) -> list[int]:
    """Returns MOST_STEPS of the steps at most, evenly, the first and the last among them."""
    if len(steps) <= MOST_STEPS:
        return steps
    return [steps[math.floor(i * (len(steps) - 1) / (MOST_STEPS - 1))] for i in range(MOST_STEPS)]


def card(example: answers.Example, name: str, level: str, names: Sequence[str]) -> str:
    """Returns one example: what was read, the target, and what was written at each step."""
    question = f'<p class="text given" dir="auto">{pages.text(example.question)}</p>' if example.question else ""
    rows = "".join(answer_row(answer, names) for answer in example.answers)
    return (
        f'<article class="card"><{level}>{name}</{level}>{question}<table class="writing quiet">'
        f"<caption>{name}: what was written at each step</caption>"
        '<thead><tr><th scope="col">Step</th><th scope="col">Text</th><th scope="col">Words right</th></tr></thead>'
        '<tbody><tr class="truth"><th scope="row">Target</th>'
        f'<td class="text" dir="auto">{pieces_html(example.truth)}</td><td></td></tr>{rows}</tbody></table></article>'
    )


def answer_row(answer: answers.Answer, names: Sequence[str]) -> str:
    name = f'<small dir="auto">{pages.text(names[answer.run])}</small>' if len(names) > 1 else ""
    return (
        f'<tr data-step="{answer.step}" data-run="{answer.run}"><th scope="row">{answer.step:,}{name}</th>'
        f'<td class="text" dir="auto">{pieces_html(answer.pieces)}</td>'
        f"<td>{answer.right:,} of {answer.words:,}</td></tr>"
    )


def pieces_html(pieces: Sequence[answers.Piece]) -> str:
    """Returns pieces of text, each as what it is; the space before a piece stays outside of its marking."""
    found = []
    for piece in pieces:
        words = piece.text.lstrip()
        space, inner = piece.text[: len(piece.text) - len(words)], pages.text(words)
        if piece.kind == "right":
            inner = f"<mark>{inner}</mark>"
        elif piece.kind != "given":
            inner = f'<span class="{piece.kind}">{inner}</span>'
        found.append(pages.text(space) + inner)
    return "".join(found)
