"""`t5xpg report`: a run, or several over each other, to look at: a page, or in the terminal. See t5xpg.report."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from t5xpg.report.reading import Run

EXAMPLES = """examples:
  t5xpg report runs/books
  t5xpg report runs/books runs/books_slow --html report.html
  t5xpg report runs/books --html report.html --follow    (while it trains)
"""
PERIOD = 5  # seconds between two looks at a run that is followed


def register(verbs) -> None:
    """Adds the verb to what `ArgumentParser.add_subparsers` returned."""
    parser = verbs.add_parser(
        "report",
        help="look at runs: curves, predictions, what differs",
        description="Shows what a run has learned so far, or several runs over each other: loss, accuracy, the tasks' "
        "metrics,\nspeed, predictions beside their targets, what differs between the runs' settings, data, machine and "
        "versions.\nReads the runs of T5X too, and folders at gs:// and s3://.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="a MODEL_DIR")
    add("--html", metavar="FILE", help="write a page to look at in a browser; it needs no other file and no network")
    add("--follow", action="store_true", help=f"look again every {PERIOD} seconds until the runs have ended, or Ctrl-C")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.html:
        write_pages(args.runs, args.html, args.follow)
    elif args.follow:
        follow_in_terminal(args.runs)
    else:
        from rich.console import Console

        from t5xpg.report import terminal

        Console(highlight=False).print(terminal.Report(read(args.runs)))
    return 0


def read(folders: Sequence[str]) -> list[Run]:
    from t5xpg.report import reading

    return [reading.read(folder) for folder in folders]


def read_again(folders: Sequence[str], before: list[Run]) -> list[Run]:
    """Returns the runs as they are now; as they were where a store does not answer or a file was just replaced."""
    try:
        return read(folders)
    except OSError:  # the next look comes soon
        return before


def have_ended(runs: Sequence[Run]) -> bool:
    return all(run.is_finished for run in runs)


def write_pages(folders: Sequence[str], path: str, follow: bool) -> None:
    """Writes the page once, or again and again until all runs have ended; the browser loads it again as often."""
    from t5xpg.report import page

    runs = read(folders)
    is_followed = follow and not have_ended(runs)
    page.write(runs, path, PERIOD if is_followed else 0)
    print(f"{path}: open it in a browser" + ("; Ctrl-C ends its renewal" if is_followed else ""), flush=True)
    try:
        while is_followed:
            time.sleep(PERIOD)
            runs = read_again(folders, runs)
            is_followed = not have_ended(runs)
            page.write(runs, path, PERIOD if is_followed else 0)
    finally:
        if is_followed:  # interrupted: the page is to stay as it is
            page.write(runs, path)


def follow_in_terminal(folders: Sequence[str]) -> None:
    """Shows the runs until all have ended; where the output is no terminal, once at the end."""
    from rich.console import Console
    from rich.live import Live

    from t5xpg.report import terminal

    runs = read(folders)
    console = Console(highlight=False)
    with Live(terminal.Report(runs), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while not have_ended(runs):
            time.sleep(PERIOD)
            runs = read_again(folders, runs)
            live.update(terminal.Report(runs), refresh=console.is_terminal)
        live.update("", refresh=True)
    console.print(terminal.Report(runs))
