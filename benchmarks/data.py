"""How fast text becomes batches: this package beside the generator that it began as, on one corpus, in one run.

    python benchmarks/data.py [FILE.jsonl]

Prints tables in GitHub's markdown: rows out of the files; packed examples of span corruption (512 tokens of inputs, 114
of targets) out of the whole pipeline, of bytes, of bytes out of SeqIO's offline cache, and of SentencePiece's pieces;
those of other objectives by SeqIO and in arrays; the peak memory of processes that read the corpus, and ten times the
corpus, once; and how long the first batch of a corpus of 15 MB takes, and of 1.5 GB.
CPU time is user and system time of all threads; it can be compared on a busy machine too. Without FILE it makes its own
text. Takes about five minutes on two quiet cores, and 1.5 GB of disk; each way has a process of its own.
"""

from __future__ import annotations

import argparse
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


def array_rows(path: str, shuffle: bool = True) -> Iterator[list[str]]:
    """As the embedded engine reads the same rows: Python's lists of texts, without tf.data."""
    from t5xpg.batchwise import readers
    from t5xpg.batchwise.rows import Rows
    from t5xpg.data.sources import JsonlDataSource

    source = JsonlDataSource({"train": path})
    read = Rows(
        "rows", readers.JsonlReader(source, source.pieces("train"), SEED if shuffle else None), (0, 1), keep=False
    )
    while True:
        texts = read()["text"]
        yield from (texts[start : start + ROWS_A_BATCH] for start in range(0, len(texts), ROWS_A_BATCH))


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
    """How fast elements of `size` rows or examples come, or of as many as a list has, after some that fill buffers."""
    iterator, count = iter(dataset), 0
    next(iterator)
    warm = time.perf_counter() + seconds / 4
    while time.perf_counter() < warm:
        next(iterator)
    start, start_cpu = time.perf_counter(), cpu_seconds()
    while time.perf_counter() < start + seconds:
        element = next(iterator)
        count += len(element) if isinstance(element, list) else size
    return Speed(count / (time.perf_counter() - start), (cpu_seconds() - start_cpu) / count * 1e6)


def pieces(folder: str):
    from t5xpg import vocabularies

    return vocabularies.sentencepiece(os.path.join(folder, "pieces.model"))


def objective_task(name: str, path: str) -> tuple:
    """Returns (task, lengths, class of converters) of "UL2" or "MLM"."""
    from t5xpg import mlm, objectives, tasks

    if name == "UL2":
        objective = objectives.UL2(extreme=((8, 0.5), (64, 0.15), (64, 0.5)))
        return tasks.jsonl_task(name, {"train": path}, objective), {"inputs": 512, "targets": 512}, None
    lengths = dict.fromkeys(("inputs", "targets", "selected"), 512)
    return tasks.jsonl_task(name, {"train": path}, "mlm"), lengths, mlm.MaskedLMFeatureConverter


def task(path: str, **settings) -> str:
    from t5xpg import tasks

    return tasks.jsonl_task("ours", {"train": path}, **settings)


def in_files(path: str, folder: str, count: int) -> str:
    """Deals the rows out to files; returns their pattern."""
    with open(path, encoding="utf-8") as file:
        lines = file.readlines()
    for number in range(count):
        with open(os.path.join(folder, f"part-{number:02}.jsonl"), "w", encoding="utf-8") as part:
            part.writelines(lines[number::count])
    return os.path.join(folder, "part-*.jsonl")


def bytes_of_seed(path: str) -> str:
    from t5xpg import vocabularies

    return add_seed_task("seed", path, vocabularies.byte_vocabulary())


# {table: {way: (path of the corpus, folder) -> its dataset}}; the way in bold is what the others are compared with.
WAYS = {
    "rows": {
        "**the seed's generator, in batches**": lambda path, _: seed_dataset("", True, path=path).batch(ROWS_A_BATCH),
        "JsonlDataSource, in the file's order": lambda path, _: rows(path, False).repeat().batch(ROWS_A_BATCH),
        "JsonlDataSource, shuffled": lambda path, _: rows(path).repeat().batch(ROWS_A_BATCH),
        "the same in arrays, in the file's order": lambda path, _: array_rows(path, False),
        "the same in arrays, shuffled": lambda path, _: array_rows(path),
    },
    "packed examples, bytes": {
        "**the seed's task**": lambda path, _: packed_batches(bytes_of_seed(path)),
        "jsonl_task, by SeqIO": lambda path, _: packed_batches(task(path)),
        "jsonl_task, embedded engine": lambda path, _: engine_batches(task(path)),
        "the same, one core": lambda path, _: engine_batches(task(path)),
        "the same, 64 files": lambda path, folder: engine_batches(task(in_files(path, folder, 64))),
        "jsonl_task, cached, embedded engine": lambda path, folder: engine_batches(
            make_cache(path, os.path.join(folder, "cache")), use_cached=True
        ),
    },
    "packed examples, SentencePiece": {
        "**the seed's task**": lambda path, folder: packed_batches(add_seed_task("seed", path, pieces(folder))),
        "jsonl_task, embedded engine": lambda path, folder: engine_batches(task(path, vocabulary=pieces(folder))),
    },
    **{
        f"packed examples, {name}": {
            "**jsonl_task, by SeqIO**": lambda path, _, name=name: packed_batches(*objective_task(name, path)),
            "jsonl_task, embedded engine": lambda path, _, name=name: engine_batches(*objective_task(name, path)),
        }
        for name in ("UL2", "MLM")
    },
}


def in_new_process(*arguments: object) -> str:
    """What this program prints for `--in_process ARGUMENTS`; this one's memory and TensorFlow are not the other's.

    Python's generators in tf.data change malloc for good in their process: TensorFlow fixes M_MMAP_THRESHOLD, after
    which each large array is taken from the system anew.
    """
    command = [sys.executable, __file__, "--in_process", *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(found.stderr)
    return found.stdout


def print_speed(table: str, way: str, path: str, folder: str, seconds: str) -> None:
    if way.endswith("one core"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # TensorFlow is not loaded yet
    size = ROWS_A_BATCH if table == "rows" else EXAMPLES_A_BATCH
    print(*measure(WAYS[table][way](path, folder), size, float(seconds)))


def print_own_peak(what: str, path: str) -> None:
    """Prints the most memory that this process has had, in MiB."""
    if what == "rows":
        dataset = rows(path).batch(ROWS_A_BATCH)
    else:  # as many as one pass makes, of the bytes of rows that are almost all text
        batches = os.path.getsize(path) // (600 * EXAMPLES_A_BATCH)
        dataset = engine_batches(task(path)).take(batches)
    for _ in dataset:
        pass
    with open("/proc/self/status") as file:  # getrusage's is that of the parent, where it was larger
        print(next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) >> 10)


def print_first_batch(path: str) -> None:
    """Prints the seconds, and those of CPU time, from asking for data to train on to its first batch."""
    name = task(path)
    start, start_cpu = time.perf_counter(), cpu_seconds()
    next(iter(engine_batches(name)))
    print(f"{time.perf_counter() - start:.2f} {cpu_seconds() - start_cpu:.2f}", flush=True)
    os._exit(0)  # without waiting for what is read ahead


IN_PROCESS = {"speed": print_speed, "peak": print_own_peak, "first": print_first_batch}


# ---- The report ----


def print_table(name: str, path: str, folder: str, seconds: float, row_bytes: float) -> None:
    """One table, each way measured in a process of its own."""
    compared, of_rows = Speed(0, 0), name == "rows"
    header = [name, "a second", *(["MB/s"] if of_rows else []), "speed", "CPU µs each", "of the CPU"]
    print(f"\n| {' | '.join(header)} |\n|---{'|---:' * (len(header) - 1)}|")
    for way in WAYS[name]:
        found = Speed(*map(float, in_new_process("speed", name, way, path, folder, seconds).split()))
        compared = found if way.startswith("**") else compared
        megabytes = [f"{found.a_second * row_bytes / 1e6:.1f}"] if of_rows else []
        cells = [way, f"{found.a_second:,.0f}", *megabytes, f"{found.a_second / compared.a_second:.1f}×"]
        print(f"| {' | '.join(cells)} | {found.cpu_us:.1f} | 1/{compared.cpu_us / found.cpu_us:.1f} |", flush=True)


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
        train_sentencepiece(path, os.path.join(folder, "pieces"))
        for table in WAYS:
            print_table(table, path, folder, seconds, size / corpus_rows)
        print(f"\n| peak memory, MiB | {corpus_rows:,} rows | {10 * corpus_rows:,} rows |\n|---|---:|---:|")
        for what, name in (("rows", "JsonlDataSource, shuffled"), ("packed", "jsonl_task, packed")):
            peaks = (in_new_process("peak", what, file).strip() for file in (path, tenfold))
            print(f"| {name} | {' | '.join(peaks)} |", flush=True)
        os.remove(tenfold)
        print_first_batches(folder, path, size / corpus_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="JSONL whose rows have a key 'text'")
    parser.add_argument("--rows", type=int, default=12_000, help="SeqIO holds fewer than 10,000 in memory")
    parser.add_argument("--seconds", type=float, default=4, help="that each way is measured for")
    parser.add_argument("--in_process", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if args.in_process:
        IN_PROCESS[args.in_process[0]](*args.in_process[1:])
    else:
        report(args.file, args.rows, args.seconds)


if __name__ == "__main__":
    main()
