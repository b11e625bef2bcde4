"""How fast text becomes batches: this package beside the generator that it began as, on one corpus, in one run.

    python benchmarks/data.py [FILE.jsonl]

Prints tables in GitHub's markdown: rows out of the files; packed examples of span corruption (512 tokens of inputs, 114
of targets) out of the whole pipeline, of bytes, of bytes out of SeqIO's offline cache, and of SentencePiece's pieces;
those of other objectives by SeqIO and in arrays; the peak memory of processes that read the corpus, and ten times the
corpus, once; and how long the first batch of a corpus of 15 MB takes, and of 1.5 GB.
CPU time is user and system time of all threads; it can be compared on a busy machine too. Without FILE it makes its own
text. Takes about five minutes on two quiet cores, and 1.5 GB of disk.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

LENGTHS = {"inputs": 512, "targets": 114}
ROWS_A_BATCH, EXAMPLES_A_BATCH = 128, 64
SEED = 0


# ---- The corpus ----


def make_corpus(path: str, rows: int, source: str | None) -> None:
    """Writes `rows` rows: those of `source` over and over, or made-up {"text"} of about 700 bytes."""
    lines = list(given_lines(source)) if source else list(made_up_lines(min(rows, 20_000)))
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(lines[row % len(lines)] + "\n" for row in range(rows))


def given_lines(path: str) -> Iterator[str]:
    with open(path, encoding="utf-8") as file:
        yield from (line.rstrip("\n") for line in file if not line.isspace())


def made_up_lines(rows: int) -> Iterator[str]:
    rng = random.Random(SEED)
    words = ["".join(rng.choices("etaoinshrdlucm", k=rng.randrange(2, 11))) for _ in range(5000)]
    for _ in range(rows):
        yield json.dumps({"text": " ".join(rng.choices(words, k=rng.randrange(20, 180)))})


# ---- The first t5xpg ----


def seed_rows(path: str) -> Iterator[str]:
    while True:
        with open(path, encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)["text"]


def seed_dataset(split: str, shuffle_files: bool, seed: int | None = None, *, path: str):
    import tensorflow as tf

    del split, shuffle_files, seed  # it knew neither shuffling nor seeds
    texts = tf.TensorSpec([], tf.string)
    return tf.data.Dataset.from_generator(functools.partial(seed_rows, path), output_signature=texts)


def add_seed_task(name: str, path: str, vocabulary) -> str:
    """Its task, with what it lacked to be trained on: the feature "inputs", and sentinels that are not text."""
    import seqio
    from t5.data import preprocessors

    from t5xpg import tasks

    empty = {"inputs": None, "targets": None}
    seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(functools.partial(seed_dataset, path=path), splits=["train"]),
        preprocessors=[
            functools.partial(tasks.target_to_key, key_map=empty, target_key="targets"),
            seqio.preprocessors.tokenize,
            preprocessors.span_corruption,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features={feature: seqio.Feature(vocabulary, add_eos=True) for feature in LENGTHS},
    )
    return name


# ---- This package ----


def rows(path: str, shuffle: bool = True):
    from t5xpg.data.sources import JsonlDataSource

    return JsonlDataSource({"train": path}).get_dataset("train", shuffle, SEED)


def packed_batches(task: str, lengths: dict[str, int] = LENGTHS, converter_cls=None):
    """What a model reads, of either task: shuffled, corrupted, packed, padded; as SeqIO does it for T5X."""
    import seqio

    return seqio.get_dataset(
        task,
        lengths,
        dataset_split="train",
        shuffle=True,
        num_epochs=None,
        feature_converter=(converter_cls or seqio.EncDecFeatureConverter)(pack=True),
        seed=SEED,
        batch_size=EXAMPLES_A_BATCH,
    )


def engine_batches(task: str, lengths: dict[str, int] = LENGTHS, converter_cls=None, use_cached: bool = False):
    """The same batches as the embedded engine makes them."""
    import seqio

    import t5xpg  # noqa: F401  (makes `import t5x` answer)
    from t5x import utils

    cfg = utils.DatasetConfig(
        task, lengths, "train", EXAMPLES_A_BATCH, shuffle=True, seed=SEED, use_cached=use_cached, pack=True
    )
    return utils.get_dataset(cfg, 0, 1, converter_cls or seqio.EncDecFeatureConverter)


def train_sentencepiece(path: str, prefix: str, pieces: int = 32_000):
    """Returns a vocabulary of at most so many pieces of the corpus."""
    import itertools

    import sentencepiece

    from t5xpg import vocabularies
    from t5xpg.data import jsonl

    texts = (row["text"].replace("\n", " ")[:4000] for row in itertools.islice(jsonl.read_rows(path), 10_000))
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_prefix=prefix, vocab_size=pieces, hard_vocab_limit=False, minloglevel=2, **ids
    )
    return vocabularies.sentencepiece(f"{prefix}.model")


def make_cache(path: str, folder: str) -> str:
    """Registers and caches a task over the file; returns its name."""
    import seqio

    from t5xpg import tasks
    from t5xpg.data import offline_cache

    name = tasks.jsonl_task("cached", {"train": path}, cacheable=True)
    offline_cache.cache_tasks([name], folder, num_shards=16)
    seqio.set_global_cache_dirs([folder])
    return name


# ---- Measuring ----


class Speed(NamedTuple):
    a_second: float
    cpu_us: float  # microseconds of CPU time each


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(dataset, size: int, seconds: float) -> Speed:
    """How fast elements of `size` rows or examples come, after some that fill the buffers."""
    iterator, count = iter(dataset), 0
    next(iterator)
    warm = time.perf_counter() + seconds / 4
    while time.perf_counter() < warm:
        next(iterator)
    start, start_cpu = time.perf_counter(), cpu_seconds()
    while time.perf_counter() < start + seconds:
        next(iterator)
        count += size
    return Speed(count / (time.perf_counter() - start), (cpu_seconds() - start_cpu) / count * 1e6)


def compare_sources(path: str, seconds: float) -> dict[str, Speed]:
    seed = seed_dataset("train", True, path=path)
    ways = {
        "the seed's generator, row by row": (seed, 1),
        "**the seed's generator, in batches**": (seed.batch(ROWS_A_BATCH), ROWS_A_BATCH),
        "JsonlDataSource, in the file's order": (rows(path, False).repeat().batch(ROWS_A_BATCH), ROWS_A_BATCH),
        "JsonlDataSource, shuffled": (rows(path).repeat().batch(ROWS_A_BATCH), ROWS_A_BATCH),
    }
    return {name: measure(*way, seconds) for name, way in ways.items()}


def compare_pipelines(path: str, folder: str, seconds: float) -> dict[str, Speed]:
    from t5xpg import tasks, vocabularies

    ways = {
        "**the seed's task**": packed_batches(add_seed_task("seed", path, vocabularies.byte_vocabulary())),
        "jsonl_task, by SeqIO": packed_batches(tasks.jsonl_task("ours", {"train": path})),
        "jsonl_task, embedded engine": engine_batches("ours"),
        "jsonl_task, cached, embedded engine": engine_batches(make_cache(path, folder), use_cached=True),
    }
    return {name: measure(way, EXAMPLES_A_BATCH, seconds) for name, way in ways.items()}


def compare_pieces(path: str, folder: str, seconds: float) -> dict[str, Speed]:
    from t5xpg import tasks

    vocabulary = train_sentencepiece(path, os.path.join(folder, "pieces"))
    ways = {
        "**the seed's task, SentencePiece**": packed_batches(add_seed_task("seed_pieces", path, vocabulary)),
        "jsonl_task, SentencePiece, embedded engine": engine_batches(
            tasks.jsonl_task("pieces", {"train": path}, vocabulary=vocabulary)
        ),
    }
    return {name: measure(way, EXAMPLES_A_BATCH, seconds) for name, way in ways.items()}


def compare_objectives(path: str, seconds: float) -> Iterator[dict[str, Speed]]:
    from t5xpg import mlm, objectives, tasks

    ul2 = objectives.UL2(extreme=((8, 0.5), (64, 0.15), (64, 0.5)))
    room = {
        "UL2": (ul2, {"inputs": 512, "targets": 512}, None),
        "MLM": ("mlm", dict.fromkeys(("inputs", "targets", "selected"), 512), mlm.MaskedLMFeatureConverter),
    }
    for name, (objective, lengths, converter_cls) in room.items():
        task = tasks.jsonl_task(name, {"train": path}, objective)
        yield {
            f"**{name}, by SeqIO**": measure(packed_batches(task, lengths, converter_cls), EXAMPLES_A_BATCH, seconds),
            f"{name}, embedded engine": measure(
                engine_batches(task, lengths, converter_cls), EXAMPLES_A_BATCH, seconds
            ),
        }


def in_new_process(measure: str, path: str) -> str:
    """What this program prints for `--in_process MEASURE PATH`."""
    command = [sys.executable, __file__, "--in_process", measure, path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def print_own_peak(what: str, path: str) -> None:
    from t5xpg import tasks

    if what == "rows":
        dataset = rows(path).batch(ROWS_A_BATCH)
    else:  # as many as one pass makes, of the bytes of rows that are almost all text
        batches = os.path.getsize(path) // (600 * EXAMPLES_A_BATCH)
        dataset = engine_batches(tasks.jsonl_task("ours", {"train": path})).take(batches)
    for _ in dataset:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)))


def print_first_batch(path: str) -> None:
    """Prints the seconds, and those of CPU time, from asking for data to train on to its first batch."""
    from t5xpg import tasks

    task = tasks.jsonl_task("ours", {"train": path})
    start, start_cpu = time.perf_counter(), cpu_seconds()
    next(iter(engine_batches(task)))
    print(f"{time.perf_counter() - start:.2f} {cpu_seconds() - start_cpu:.2f}", flush=True)
    os._exit(0)  # without waiting for what is read ahead


# ---- The report ----


def print_table(what: str, speeds: dict[str, Speed], row_bytes: float = 0) -> None:
    """One table; the way in bold is what the others are compared with."""
    compared = next(speed for name, speed in speeds.items() if name.startswith("**"))
    header = [what, "a second", *(["MB/s"] if row_bytes else []), "speed", "CPU µs each", "of the CPU"]
    print(f"\n| {' | '.join(header)} |\n|---{'|---:' * (len(header) - 1)}|")
    for name, (a_second, cpu_us) in speeds.items():
        megabytes = [f"{a_second * row_bytes / 1e6:.1f}"] if row_bytes else []
        cells = [name, f"{a_second:,.0f}", *megabytes, f"{a_second / compared.a_second:.1f}×"]
        print(f"| {' | '.join(cells)} | {cpu_us:.1f} | 1/{compared.cpu_us / cpu_us:.1f} |", flush=True)


def print_first_batches(folder: str, source: str, row_bytes: float) -> None:
    print("\n| first batch of | s | CPU, s |\n|---|---:|---:|")
    for megabytes in (15, 1500):
        path = os.path.join(folder, f"{megabytes}.jsonl")
        make_corpus(path, int(megabytes * 1e6 / row_bytes), source)
        seconds, cpu = in_new_process("first", path).split()
        print(f"| {megabytes:,} MB | {seconds} | {cpu} |", flush=True)


def report(source: str | None, corpus_rows: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, tenfold = (os.path.join(folder, f"{name}.jsonl") for name in ("corpus", "tenfold"))
        make_corpus(path, corpus_rows, source)
        make_corpus(tenfold, 10 * corpus_rows, path)
        size = os.path.getsize(path)
        print(f"{corpus_rows:,} rows, {size / 1e6:.1f} MB; {os.cpu_count()} cores")
        print_table("rows", compare_sources(path, seconds), size / corpus_rows)
        print_table("packed examples", compare_pipelines(path, os.path.join(folder, "cache"), seconds))
        print_table("packed examples", compare_pieces(path, folder, seconds))
        for speeds in compare_objectives(path, seconds):
            print_table("packed examples", speeds)
        print(f"\n| peak memory, MiB | {corpus_rows:,} rows | {10 * corpus_rows:,} rows |\n|---|---:|---:|")
        for what, name in (("rows", "JsonlDataSource, shuffled"), ("packed", "jsonl_task, packed")):
            peaks = (in_new_process(what, file).strip() for file in (path, tenfold))
            print(f"| {name} | {' | '.join(peaks)} |", flush=True)
        os.remove(tenfold)
        print_first_batches(folder, path, size / corpus_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="JSONL whose rows have a key 'text'")
    parser.add_argument("--rows", type=int, default=12_000, help="SeqIO holds fewer than 10,000 in memory")
    parser.add_argument("--seconds", type=float, default=4, help="that each way is measured for")
    parser.add_argument("--in_process", choices=["rows", "packed", "first"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if args.in_process:
        with contextlib.redirect_stderr(None):
            if args.in_process == "first":
                print_first_batch(args.file)
            print_own_peak(args.in_process, args.file)
    else:
        report(args.file, args.rows, args.seconds)


if __name__ == "__main__":
    main()
