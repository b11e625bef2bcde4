"""How fast `t5xpg cache` writes an offline cache: many rows at a time, and by tf.data one by one, by turns in one run.

    python benchmarks/caching.py [FILE.jsonl] [--megabytes 150] [--rounds 3]

Prints a table in GitHub's markdown: MB of JSONL a second, and for each second of CPU time, with SentencePiece's pieces
(at most 32,000, trained on the corpus) and with bytes, in one process and in two; medians. Tasks that `jsonl_task`
registers are cached many rows at a time, and others one by one, as all were at first; these get a tenth of the corpus.
What a process takes to start is not counted: of each way the corpus and a tenth of it are cached, and the difference
is the measure. Without FILE it makes its own text. Takes about ten minutes on two quiet cores, and four times the
corpus' size on a disk.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import data


class Way(NamedTuple):
    vocabulary: str
    many: bool  # rows at a time
    processes: int

    def __str__(self) -> str:
        processes = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return f"{self.vocabulary}, {'many rows at a time' if self.many else 'one by one'}, {processes}"


WAYS = [Way("SentencePiece", many, processes) for processes in (1, 2) for many in (False, True)]
WAYS += [Way("bytes", many, 1) for many in (False, True)]


# ---- In a process of its own ----


def register(way: Way, path: str, model: str) -> str:
    from t5xpg import tasks, vocabularies
    from t5xpg.batchwise import reading

    if not way.many:
        reading.unknown_task = lambda _: ["the task"]
    vocabulary = vocabularies.sentencepiece(model) if way.vocabulary == "SentencePiece" else None
    return tasks.jsonl_task("cached", {"train": path}, vocabulary=vocabulary, cacheable=True)


def print_seconds(way: Way, path: str, model: str) -> None:
    """Caches the corpus; prints the seconds that took, and those of CPU time."""
    from t5xpg.data import offline_cache

    add = functools.partial(register, way, path, model)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as folder:
        name, start, start_cpu = add(), time.perf_counter(), cpu_seconds()
        offline_cache.cache_tasks([name], folder, processes=way.processes, register=add)
        print(time.perf_counter() - start, cpu_seconds() - start_cpu)


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


# ---- The report ----


def measure(way: Way, whole: str, tenth: str, model: str) -> tuple[float, float]:
    """Returns MB a second, and a second of CPU time."""
    found = []
    for path in (whole, tenth):
        command = [sys.executable, __file__, "--in_process", way.vocabulary, str(int(way.many)), str(way.processes)]
        done = subprocess.run([*command, path, model], stdout=subprocess.PIPE, text=True, check=True)
        found.append([os.path.getsize(path) / 1e6, *map(float, done.stdout.split())])
    size, seconds, cpu = (of_whole - of_tenth for of_whole, of_tenth in zip(*found, strict=True))
    return size / seconds, size / cpu


def report(source: str | None, megabytes: float, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"{name}.jsonl") for name in ("whole", "tenth", "hundredth")]
        data.make_corpus(paths[2], 1000, source)
        row_bytes = os.path.getsize(paths[2]) / 1000
        for number, path in enumerate(paths):
            data.make_corpus(path, int(megabytes * 1e6 / row_bytes / 10**number), source)
        data.train_sentencepiece(paths[1], os.path.join(folder, "pieces"))
        model = os.path.join(folder, "pieces.model")
        speeds: dict[Way, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                speeds[way].append(measure(way, *(paths[:2] if way.many else paths[1:]), model))
    print(f"{megabytes:g} MB; {os.cpu_count()} cores; {rounds} rounds\n")
    print("| cache | MB/s | speed | MB for each second of CPU time | |\n|---|---:|---:|---:|---:|")
    for way in WAYS:
        rate, cpu_rate = (statistics.median(each) for each in zip(*speeds[way], strict=True))
        slow = speeds[way._replace(many=False)]
        gains = [
            statistics.median(many[number] / one[number] for many, one in zip(speeds[way], slow, strict=True))
            for number in (0, 1)
        ]
        print(f"| {way} | {rate:.2f} | {gains[0]:.1f}× | {cpu_rate:.2f} | {gains[1]:.1f}× |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="JSONL whose rows have a key 'text'")
    parser.add_argument("--megabytes", type=float, default=150, help="of the corpus, made of the file's rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in_process", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if args.in_process:
        vocabulary, many, processes, path, model = args.in_process
        print_seconds(Way(vocabulary, many == "1", int(processes)), path, model)
    else:
        report(args.file, args.megabytes, args.rounds)


if __name__ == "__main__":
    main()
