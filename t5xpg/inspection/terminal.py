"""What `t5xpg inspect` prints: examples in colour, numbers in words. Without colours, brackets mark the noise."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from t5xpg.inspection.code import Answer, notable
from t5xpg.inspection.measurements import Epoch, Example, Inspection, histogram
from t5xpg.inspection.readable import Token, one_line, visible
from t5xpg.inspection.speed import Rate, Speed, cores_for, one_core, undivided

STYLES = {"text": "", "noise": "black on yellow", "sentinel": "bold cyan", "special": "dim"}
LABEL_WIDTH = 18
SPARKS = "▁▂▃▄▅▆▇█"
TOKENS_LISTED = 24
BUSY = 0.9  # of a core, where a process computes all the time

Fact = tuple[str, str, str]  # its name, its number, what that is


def show(inspection: Inspection, console: Console | None = None) -> None:
    """Prints examples, lengths and facts; `console` is the terminal if None."""
    console = console or Console(highlight=False)
    console.print(Text.assemble((inspection.task, "bold"), f", {inspection.split} split"))
    for name, words in inspection.description.items():
        if words:
            console.print(labelled(name, Text(words)))
    for number, example in enumerate(inspection.examples, 1):
        console.print(f"\nExample {number}", style="bold")
        show_example(example, console)
    console.print("\nLengths", style="bold")
    console.print(lengths_table(inspection))
    show_facts("Sample", facts(inspection), console)


def show_facts(title: str, found: Sequence[Fact], console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    console.print(f"\n{title}", style="bold")
    for name, value, note in found:
        console.print(labelled(name, Text.assemble((value, "bold"), f"  {note}"), width=24))


def show_code(
    answers: Sequence[Answer], rates: np.ndarray | None, epoch: Epoch | None, console: Console | None = None
) -> None:
    """Prints the answers with the places of their code, and the learning rate over the steps of a run."""
    console = console or Console(highlight=False)
    console.print("\nCode", style="bold")
    for question, words, place in answers:
        console.print(labelled(question, Text.assemble(words, "\n", (place, "cyan")), width=32))
    if rates is not None:
        console.print("\nLearning rate", style="bold")
        epochs = f", {(len(rates) - 1) / epoch.steps:.1f} epochs" if epoch else ""
        console.print(Text(f"▕{curve(rates)}▏\nfrom step 0 to {len(rates) - 1:,}{epochs}"))
        console.print("\n".join(f"{step:>12,}  {rate:.4g}" for step, rate in notable(rates)))


def curve(rates: np.ndarray, bins: int = 64) -> str:
    """The rates in one line of blocks, as shares of the highest."""
    shown = rates[np.linspace(0, len(rates) - 1, bins).astype(int)]
    return "".join(SPARKS[round(share * (len(SPARKS) - 1))] for share in shown / shown.max())


def show_example(example: Example, console: Console) -> None:
    plain = console.no_color or console.color_system is None
    rows = {"text": example.text} if example.text else {}
    rows |= example.features
    for name, tokens in rows.items():
        console.print(labelled(f"{name} {len(tokens)}", coloured(tokens, plain)))
    first = next(iter(rows.values()))
    console.print(labelled("first tokens", token_list(first[:TOKENS_LISTED], plain)))


def labelled(label: str, words: Text, width: int = LABEL_WIDTH) -> Table:
    """Returns a label, and words that wrap next to it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=width, style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label), words)
    return grid


def coloured(tokens: Sequence[Token], plain: bool) -> Text:
    """The tokens as running text on one line."""
    text = Text()
    for kind, run in itertools.groupby(tokens, key=lambda token: token.kind):
        words = one_line("".join(token.text for token in run))
        text.append(f"[{words}]" if plain and kind == "noise" else words, STYLES[kind])
    return text


def token_list(tokens: Sequence[Token], plain: bool) -> Text:
    """Each token with its id."""
    text = Text()
    for token in tokens:
        shown = coloured([token._replace(text=visible(token.text))], plain)
        text.append_text(shown).append(f" {token.id}   ", "dim")
    return text


def lengths_table(inspection: Inspection) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", overflow="fold")
    for column in ("room", "mean", "shortest", "longest", "padding"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("lengths, 1 to room", no_wrap=True)
    for name, feature in inspection.sample.features.items():
        for kind, lengths in (("", feature.lengths), (", packed", feature.packed)):
            padding = 1 - lengths.mean() / feature.room
            numbers = (f"{feature.room:,}", f"{lengths.mean():,.1f}", f"{lengths.min():,}", f"{lengths.max():,}")
            table.add_row(Text(name + kind), *numbers, f"{padding:.1%}", f"▕{sparks(lengths, feature.room)}▏")
    return table


def sparks(lengths: np.ndarray, room: int, bins: int = 16) -> str:
    """A histogram in one line of blocks; a space for none."""
    counts = [count for _, _, count in histogram(lengths, room, bins)]
    steps = (len(SPARKS) - 1) / max(counts)
    return "".join(SPARKS[round(count * steps)] if count else " " for count in counts)


def facts(inspection: Inspection) -> list[Fact]:
    """What is known of the sample and of an epoch, and the remarks."""
    sample, epoch = inspection.sample, inspection.epoch
    rows = "of a mixture" if sample.rows is None else f"of {sample.rows:,} rows"
    per_row = sample.examples / sample.packed_rows
    found = [
        ("examples", f"{sample.examples:,}", rows),
        ("packed rows", f"{sample.packed_rows:,}", f"{per_row:.2f} examples in each"),
    ]
    if sample.noise_density is not None:
        found.append(("noise density", f"{sample.noise_density:.2%}", "of the text's tokens are predicted"))
    if sample.mean_span is not None:
        used = f"on average, {sample.sentinels.max()} at most, of {sample.sentinels_available}"
        found.append(("sentinels in an example", f"{sample.sentinels.mean():.1f}", used))
        found.append(("noise span", f"{sample.mean_span:.2f}", "tokens on average"))
    if epoch:
        counted = f"{epoch.packed_rows:,} packed rows" if epoch.pack else f"{epoch.examples:,} examples, not packed"
        whole = "" if sample.rows == epoch.corpus_rows else "about "
        note = f"for {epoch.corpus_rows:,} rows: {whole}{counted}, batch size {epoch.batch_size}"
        found.append(("steps in an epoch", f"{epoch.steps:,}", note))
    return found + [("note", "", remark) for remark in inspection.remarks]


def speed_facts(speed: Speed, wanted: float | None) -> list[Fact]:
    """How fast batches are made, and how many cores make as many examples a second as are wanted."""
    kind = "packed examples" if speed.pack else "examples"
    first, *others = speed.rates
    more = "".join(f", {about(speed.rates[cores].examples)} {_amounts(speed, cores)}" for cores in others)
    note = f"{_amounts(speed, first)}{more}; made {speed.rates[first].path}"
    found = [("batches", f"{about(speed.rates[first].examples)} {kind} a second", note)]
    if wanted is not None:
        found.append((f"to feed {wanted:,.10g} a second", *_cores_for(wanted, speed.rates)))
    if first == 1 and speed.rates[first].cores < BUSY:
        note = f"the one core was used to {speed.rates[first].cores:.0%}: other programs, or files, were waited for"
        found.append(("note", "", note))
    return found


def _amounts(speed: Speed, cores: int) -> str:
    tokens = speed.rates[cores].tokens
    text = "" if speed.text_bytes is None else f", {about(tokens * speed.text_bytes / 1e6)} MB of text"
    counted = f"{about(tokens / 1e6)}M" if tokens >= 1e6 else about(tokens)
    return f"({counted} tokens{text}) on {'one core' if cores == 1 else f'{cores} cores'}"


def _cores_for(wanted: float, rates: Mapping[int, Rate]) -> tuple[str, str]:
    examples = {cores: rate.examples for cores, rate in rates.items()}
    cores, here = cores_for(wanted, examples), max(examples)
    if cores is None:
        limit = about(one_core(examples) / undivided(examples))
        note = f"by the rates on 1 and {here} cores, no number of cores makes more than {limit}; hosts share the work"
        if examples[here] <= one_core(examples):
            note = f"{here} cores make no more than one"
        return "more than a process makes", note
    value = "1 core" if cores == 1 else f"{cores:,} cores"
    if cores > here:
        return value, f"extrapolated: there {'is 1' if here == 1 else f'are {here}'} here"
    return value, f"of {here} here" + (", if each adds as much" if 1 < here == min(examples) else "")


def about(number: float) -> str:
    """Two digits of a number: 23,000 for 23,412, and 0.53 for 0.526."""
    rounded = float(f"{number:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"
