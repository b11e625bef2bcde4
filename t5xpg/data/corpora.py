"""Any corpus to JSONL: one {"text": ...} per line, one file per split, `<name>_<split>.jsonl`.

Here is what writes such files, and one source: a data set on the Hugging Face Hub, WikiText-103 unless told otherwise.
`text_files` and `python_sources` are the others. A file appears whole or not at all, and one that exists already is
kept unless `overwrite` is given.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from t5xpg.base import files, nearest, stores
from t5xpg.data.corpus_report import Tally

WIKITEXT = "Salesforce/wikitext"
WIKITEXT_CONFIG = "wikitext-103-raw-v1"
SPLITS = ("train", "validation", "test")
PROSE_MIN_LENGTH = 101  # characters: WikiText's headings and blank rows, and one-line docstrings, are shorter

_SAMPLED = 16  # of so many rows of a data set one, drawn at random, is looked into for its characters' scripts


class CorpusError(ValueError):
    """A corpus that cannot be obtained or read; the message is one line: where, what was found, what to do."""


# --- writing -----------------------------------------------------------------------------------------------


def write_jsonl(path: str | os.PathLike, rows: Iterable[dict]) -> int:
    """Writes one JSON object per line, as `json.dump` writes it, and returns how many.

    The rows are taken one at a time. The file appears when the last is written: an exception or a kill before that
    leaves whatever was at `path`. Raises CorpusError when there is no row.
    """
    count = 0
    with full_disk_named(os.path.dirname(os.fspath(path)) or "."), files.open_whole(path) as handle:
        for count, row in enumerate(rows, 1):  # noqa: B007
            handle.write(json.dumps(row) + "\n")
        if not count:
            raise CorpusError(f"{path}: not written, no row is left for it. Look at the input and at --min_length.")
    return count


def json_line(text: str) -> str:
    """Returns a row without its line end, in UTF-8's own characters."""
    return json.dumps({"text": text}, ensure_ascii=False)


def write_pair(paths: dict[str, Path], rows: Iterable[tuple[bool, str]]) -> None:
    """Sends each (is it for validation?, line) to its file; both files appear together, after the last row."""
    counts = dict.fromkeys(paths, 0)
    with full_disk_named(str(paths["train"].parent)), contextlib.ExitStack() as stack:
        handles = {split: stack.enter_context(files.open_whole(path)) for split, path in paths.items()}
        for held_out, line in rows:
            split = "validation" if held_out else "train"
            handles[split].write(line + "\n")
            counts[split] += 1
        for split, count in counts.items():
            if not count:
                raise no_rows(paths[split], split, sum(counts.values()))
    for split, path in paths.items():
        report(path, counts[split])


@contextlib.contextmanager
def full_disk_named(folder: str, needs: str = "What was there stays") -> Iterator[None]:
    """Raises a CorpusError that names the folder where its disk is full; `needs` says what there is to know of that."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise CorpusError(f"{folder}: its disk is full ({error.strerror}). {needs}; make room for it.") from error


def no_rows(path: Path, split: str, rows: int) -> CorpusError:
    return CorpusError(
        f"{path}: not written, {rows} rows leave none for {split}. Look at the input, --min_length, "
        "--validation_fraction (0 writes train alone) and, for text, --rows lines."
    )


def report(path: Path, rows: int, note: str = "") -> None:
    print(f"{path}: {rows:,} rows, {in_words(files.size(path))}{note}", flush=True)


def in_words(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e4 else f"{size:,} bytes"


def report_kept(path: Path) -> None:
    with files.open_binary(path) as handle:
        rows = sum(1 for _ in handle)
    report(path, rows, ", already there and kept (--overwrite writes it again)")


def split_paths(output_dir: str | os.PathLike, name: str, splits: Sequence[str]) -> dict[str, Path]:
    folder = stores.path_of(output_dir, "--output_dir")
    return {split: folder / f"{name}_{split}.jsonl" for split in splits}


def plan_pair(output_dir: str | os.PathLike, name: str, fraction: float, overwrite: bool) -> tuple[dict, bool]:
    """({split: path}, whether to write them). Raises if a new file would be next to an older one."""
    check_fraction(fraction)
    both = split_paths(output_dir, name, ("train", "validation"))
    paths = both if fraction else {"train": both["train"]}
    if not overwrite and all(map(files.exists, paths.values())):
        for path in paths.values():
            report_kept(path)
        return paths, False
    rewritten = paths.values() if overwrite else ()
    if standing := [path for path in both.values() if files.exists(path) and path not in rewritten]:
        raise CorpusError(
            f"{standing[0]} exists, and a new file next to it could repeat its rows. Remove it, write both again "
            "(--overwrite and a --validation_fraction above 0), or pass another --name."
        )
    return paths, True


def check_fraction(fraction: float) -> None:
    if not 0 <= fraction < 1:
        raise CorpusError(f"validation_fraction is {fraction}; it must be at least 0 and below 1.")


# --- the Hugging Face Hub ----------------------------------------------------------------------------------


def prepare_hub(
    output_dir: str | os.PathLike = ".",
    *,
    dataset: str = WIKITEXT,
    config: str | None = None,
    text_column: str = "text",
    splits: Sequence[str] = SPLITS,
    min_length: int = PROSE_MIN_LENGTH,
    name: str = "wikitext",
    overwrite: bool = False,
) -> dict[str, Path]:
    """Writes the splits of a Hugging Face data set (a name on the Hub or a local folder), one file each.

    Rows whose `text_column` has fewer than `min_length` characters are left out; other columns are not written.
    `config` None means WikiText-103 for WikiText and the data set's own default otherwise. Splits that exist already
    are kept; if all do, the network is not used. The rows come from the memory-mapped files of the
    `datasets` cache, so memory does not grow with the corpus.

    Returns {split: path}. Raises CorpusError; when the Hub cannot be reached, after one quick attempt.
    """
    paths = split_paths(output_dir, name, splits)
    wanted = {split: path for split, path in paths.items() if overwrite or not files.exists(path)}
    for split in paths.keys() - wanted:
        report_kept(paths[split])
    if wanted:
        loaded = _load_from_hub(dataset, config or (WIKITEXT_CONFIG if dataset == WIKITEXT else None))
        for split in wanted:
            _check_split(loaded, dataset, split, text_column)
        tally = Tally()
        for split, path in wanted.items():
            texts = tallied(_hub_texts(loaded[split], split, text_column, min_length), split, tally, _SAMPLED)
            kept = write_jsonl(path, ({"text": text} for text in texts))
            report(path, kept, f" (of {len(loaded[split]):,}, those of {min_length} characters or more)")
        print("\n".join(tally.report()), flush=True)
    return paths


def tallied(texts: Iterable[str], where: str, tally: Tally, sampled: int = 1) -> Iterator[str]:
    """Yields the texts and counts them; of `sampled` of them one is looked into for its scripts."""
    draw = random.Random(0).random
    for text in texts:
        tally.taken[where] += 1
        tally.add(text, where, draw() * sampled < 1)
        yield text


def _load_from_hub(dataset: str, config: str | None):
    """Returns the data set's splits, from the Hub or, if that cannot be reached, from the cache of `datasets`.

    The client itself makes six attempts over 23 seconds when there is no network, hence the one made here first.
    """
    import datasets

    trouble = None if os.path.isdir(dataset) else _hub_trouble()
    offline_before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = offline_before or trouble is not None
    try:
        return datasets.load_dataset(dataset, config)
    except Exception as error:  # the client lets through errors of its own, of its HTTP library and of Arrow
        label = f"{dataset} ({config})" if config else dataset
        if trouble is None:
            raise CorpusError(f"{label}: {_one_line(error)}") from error
        raise CorpusError(
            f"{label} is not in the local cache and the Hugging Face Hub cannot be reached ({trouble}). Connect and "
            "run this again, or take a corpus that needs no network: t5xpg prepare python-docs"
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = offline_before


def _hub_trouble() -> str | None:
    """Returns what keeps a request from reaching the Hub (HF_ENDPOINT, proxies included); None when it answers."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception as error:  # of whichever HTTP library the installed client is built on
        return f"{constants.ENDPOINT}: {_one_line(error)}"
    return None


def _one_line(error: BaseException) -> str:
    """Returns an exception's message and its cause's, which is where `datasets` puts the reason, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    cause = _one_line(error.__cause__) if error.__cause__ else text
    return text if cause in text else f"{text} ({cause})"


def _check_split(loaded, dataset: str, split: str, column: str) -> None:
    """Raises CorpusError unless the data set has the split, and in it a column of text."""
    if split not in loaded:
        found = f"found {' '.join(loaded)}. Name the ones to write: --splits{nearest.hint(split, loaded)}"
        raise CorpusError(f"{dataset}: no split {split!r}; {found}")
    features = loaded[split].features
    if getattr(features.get(column), "dtype", None) not in ("string", "large_string"):
        found = ", ".join(f"{key} ({getattr(value, 'dtype', 'nested')})" for key, value in features.items())
        raise CorpusError(
            f"{dataset}, {split}: no text column {column!r}; found {found}. Name one of type string: --text_column"
        )


def _hub_texts(rows, split: str, column: str, min_length: int) -> Iterator[str]:
    from tqdm import tqdm

    with tqdm(total=len(rows), desc=f"writing {split} split", unit=" rows") as bar:
        for batch in rows.select_columns([column]).iter(batch_size=1000):
            yield from (text for text in batch[column] if text is not None and len(text) >= min_length)
            bar.update(len(batch[column]))
