"""Damaged files through the source: every kind, thousands of them. Rows or one line that names the file, and an end.

    python benchmarks/fuzz_files.py --cases 10000 --seed 1

A case is a small file of some kind that was cut off, flipped, patched, spliced or zeroed in places. It must give

- what an independent reader gives for the same bytes, or where the kind has a checksum over its content (.gz, .bz2,
  .xz, .zst written with one): the rows that were written, all of them;
- or a JsonlError of one line that begins with the file's name;

within SECONDS and without a crash. Nothing can tell a flipped letter in a plain .jsonl, in a .zst without checksum, or
in the parts of a Parquet file that its page checksums do not cover (headers, footer): there it is counted, not failed.
In a tenth of the cases `prepare text` reads the file too, and leaves a whole output or none.
"""

from __future__ import annotations

import argparse
import bz2
import collections
import contextlib
import gzip
import io
import json
import lzma
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import zstandard

from t5xpg.data import corpora, jsonl, text_files

SECONDS = 20
ALPHABET = 'ab "\\/\t\n\r\x7fé\u2028漢字🦜{}[],:'


def as_parquet(texts: list[str], rng: random.Random) -> bytes:
    table = pyarrow.table({"id": range(len(texts)), "text": texts})
    sink = io.BytesIO()
    compression = rng.choice(["none", "snappy", "zstd", "gzip"])
    settings = {
        "compression": compression,
        "use_dictionary": rng.random() < 0.5,
        "row_group_size": rng.choice([7, 100]),
    }
    pyarrow.parquet.write_table(table, sink, write_page_checksum=True, **settings)
    return sink.getvalue()


def as_lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


# {suffix: (what writes texts, whether its checksums cover the content)}
KINDS: dict[str, tuple[Callable[[list[str], random.Random], bytes], bool]] = {
    ".jsonl": (lambda texts, _: as_lines(texts), False),
    ".json": (lambda texts, _: json.dumps({"text": texts[0], "more": texts}, indent=1).encode(), False),
    ".jsonl.gz": (lambda texts, _: gzip.compress(as_lines(texts)), True),
    ".jsonl.bz2": (lambda texts, _: bz2.compress(as_lines(texts)), True),
    ".jsonl.xz": (lambda texts, _: lzma.compress(as_lines(texts)), True),
    ".jsonl.zst": (lambda texts, _: zstandard.ZstdCompressor(write_checksum=True).compress(as_lines(texts)), True),
    ".unchecked.jsonl.zst": (lambda texts, _: zstandard.compress(as_lines(texts)), False),
    ".parquet": (as_parquet, False),
}


def truncated(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(1, max(2, len(data)))]


def flipped(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 9])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def patched(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.randbytes(rng.randrange(1, 9)) + data[start + rng.randrange(9) :]


def spliced(rng: random.Random, data: bytes) -> bytes:
    """A stretch lost, or written a second time elsewhere."""
    start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    place = rng.randrange(len(data) + 1)
    return rng.choice([data[:start] + data[end:], data[:place] + data[start:end] + data[place:]]) or b"\0"


def zeroed(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice([1, 8, 64, 4096]))
    return data[:start] + bytes(end - start) + data[end:]


DAMAGES = (truncated, flipped, patched, spliced, zeroed)


def rows_by_json(data: bytes, suffix: str) -> list[str] | None:
    """The texts that json.loads finds in plain bytes; None where they are not rows."""
    try:
        text = data.decode().removeprefix("\ufeff")
        lines = [line for line in text.split("\n") if line.strip(" \t\r\x0b\x0c")]
        with contextlib.suppress(ValueError):
            if suffix == ".json" and isinstance(row := json.loads(text), dict):
                lines = [json.dumps(row)]
        texts = [json.loads(line)["text"] for line in lines]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return texts if all(isinstance(each, str) for each in texts) else None


def run_case(folder: Path, rng: random.Random) -> str:
    """Returns what came of one case; AssertionError where it is not what must come."""
    suffix = rng.choice(list(KINDS))
    write, is_checked = KINDS[suffix]
    texts = ["".join(rng.choices(ALPHABET, k=rng.randrange(60))) for _ in range(rng.randrange(1, 40))]
    good = write(texts, rng)
    expected = texts[:1] if suffix == ".json" else texts
    data = good
    for _ in range(rng.choice([1, 1, 1, 2])):
        data = rng.choice(DAMAGES)(rng, data)
    path = folder / f"damaged{suffix}"
    path.write_bytes(data)
    if rng.random() < 0.1 and suffix.startswith(".jsonl"):
        prepare(path, folder / "out")
    try:
        found = [row["text"] for row in jsonl.read_rows(str(path))]
    except jsonl.JsonlError as error:
        message = str(error)
        assert message.startswith(str(path)) and "\n" not in message, message
        assert data != good, message
        return f"{suffix}: named"
    if found == expected:
        return f"{suffix}: all rows"
    assert not is_checked, f"{len(found)} of {len(expected)} rows, no error"
    if suffix in (".jsonl", ".json"):
        assert found == rows_by_json(data, suffix), "not what json.loads finds"
        return f"{suffix}: the rows that the damaged bytes spell"
    return f"{suffix}: other rows, which nothing can tell"


def prepare(path: Path, out: Path) -> None:
    """Runs `prepare text` on the file: a whole output, or one line and none."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            text_files.prepare_text([path], out, validation_fraction=0)
        except corpora.CorpusError as error:
            assert str(path) in str(error) or str(out) in str(error), str(error)
            assert not out.exists() or not os.listdir(out), os.listdir(out)
            return
    (written,) = out.iterdir()
    assert all("text" in json.loads(line) for line in written.read_bytes().splitlines())
    written.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()

    def give_up(*_) -> None:
        raise TimeoutError(f"does not end within {SECONDS} s")

    signal.signal(signal.SIGALRM, give_up)
    outcomes: collections.Counter[str] = collections.Counter()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in range(args.cases):
            print(f"\rcase {case}", end="", file=sys.stderr)  # the last one where the process dies
            signal.alarm(SECONDS)
            try:
                outcomes[run_case(Path(folder), random.Random(f"{args.seed}/{case}"))] += 1
            except Exception as error:
                failures += 1
                print(f"\rseed {args.seed}, case {case}: {type(error).__name__}: {error}")
            finally:
                signal.alarm(0)
    print(f"\r{args.cases} cases of seed {args.seed}, {failures} failures")
    for outcome, count in sorted(outcomes.items()):
        print(f"  {count:6} {outcome}")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
