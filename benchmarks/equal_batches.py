"""Random tasks by both ways to their batches: in arrays, and by SeqIO. Any difference is a failure.

    python benchmarks/equal_batches.py --cases 300 --seed 1

A case draws the rows and how they lie in files, an objective with its settings, lengths, a vocabulary, packing,
shuffling, the shard of so many, a seed, whether it is a mixture, and whether it reads an offline cache; then compares
20 batches, dtypes and shapes included. Every third case saves an iterator somewhere and goes on with another that is
restored from there.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gzip
import io
import itertools
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import sentencepiece
import seqio
import tensorflow as tf
from seqio import dataset_providers

import t5xpg  # noqa: F401  (makes `import t5x` answer)
from t5x import utils
from t5xpg import mlm, objectives, tasks, vocabularies
from t5xpg.batchwise import dataset, examples, reading, rows
from t5xpg.data import offline_cache
from t5xpg.data.sources import JsonlDataSource
from t5xpg.vocabularies import bpe

BATCHES = 20
LETTERS = "etaoin shrdlu " * 3 + "\nÄé漢字🦜<>&"


class Case(NamedTuple):
    provider: seqio.Task | seqio.Mixture
    cfg: Any
    converter_cls: type[seqio.FeatureConverter]
    shard: seqio.ShardInfo
    most_bytes_in_memory: int
    # Rows and characters that end a block, tokens of a part, and examples of a portion.
    block: tuple[int, int, int, int] = (4080, 2**21, 2**20, 4096)

    def __str__(self) -> str:
        found = [f"{task.objective} of {task.source.files}" for task in seqio.get_subtasks(self.provider)]
        return f"{found}, {self.cfg}, {self.shard}, {self.most_bytes_in_memory} bytes in memory"


# ---- Drawing ----


def text(rng: random.Random) -> str:
    length = rng.choice([0, 1, 5, 60, 300, 1000, 1000, 3000])
    return "".join(rng.choices(LETTERS, k=rng.randrange(length + 1)))


def write_corpus(folder: Path, rng: random.Random, name: str) -> list[str]:
    paths = []
    for number in range(rng.choice([1, 1, 2, 5])):
        rows = [{key: text(rng) for key in ("text", "inputs", "targets")} for _ in range(rng.choice([30, 150, 400]))]
        if rng.random() < 0.05:
            rows.append(dict.fromkeys(("text", "inputs", "targets"), "long " * 30000))
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path = folder / f"{name}_{number}.jsonl{rng.choice(['', '', '.gz'])}"
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        paths.append(str(path))
    return paths


def make_vocabularies(folder: Path, rng: random.Random) -> list[seqio.Vocabulary]:
    texts = [text(rng).replace("\n", " ") for _ in range(300)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(folder / "pieces"),
        vocab_size=300,
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "minloglevel": 2, "hard_vocab_limit": False},
    )
    bpe.train(texts, 400, 2).save(str(folder / "tokenizer.json"))
    return [
        vocabularies.byte_vocabulary(),
        vocabularies.sentencepiece(str(folder / "pieces.model")),
        vocabularies.byte_level_bpe(str(folder / "tokenizer.json")),
    ]


def draw_objective(rng: random.Random) -> objectives.Objective:
    chunk = {"select_random_chunk": rng.random() < 0.3}
    density, span = rng.choice([0.15, 0.3, 0.5]), rng.choice([1, 3, 8, 20])
    draws = [
        lambda: objectives.SpanCorruption(density, span, **chunk),
        lambda: objectives.IidDenoising(**chunk),
        lambda: objectives.UL2(regular=((3, 0.15), (span, 0.15)), extreme=((8, 0.5), (64, 0.15)), **chunk),
        lambda: objectives.PrefixLM(**chunk),
        lambda: objectives.FullLM(**chunk),
        lambda: objectives.MaskedLM(density, rng.choice([0.8, 0.5]), rng.choice([0.1, 0.5])),
        lambda: objectives.Supervised(rng.choice(["", "say: "])),
    ]
    return rng.choice(draws)()


def draw_lengths(objective: objectives.Objective, vocabulary: seqio.Vocabulary, rng: random.Random) -> dict[str, int]:
    """Returns lengths that the objective takes; ValueError where the draw has none."""
    inputs = rng.choice([8, 33, 64, 128, 300, 512, 700])
    wanted = {"inputs": inputs, "targets": inputs + 5}
    if isinstance(objective, objectives.MaskedLM):
        wanted = dict.fromkeys(objective.features, inputs)
    elif isinstance(objective, objectives.Supervised):
        wanted = {"inputs": inputs, "targets": rng.choice([2, 20, 200])}
    elif isinstance(objective, objectives.SpanCorruption):
        wanted["targets"] = objective.lengths(inputs).targets
    elif isinstance(objective, objectives.UL2):
        denoisers = objective.denoisers(inputs, vocabulary)
        wanted["targets"] = max(denoiser.targets for denoiser in denoisers)
    elif isinstance(objective, objectives.FullLM):
        wanted = {"targets": inputs}
    objective.check(wanted, vocabulary)
    return wanted


def draw(number: int, seed: int, folder: Path, known: list[seqio.Vocabulary]) -> Case:
    rng = random.Random(f"{seed} {number}")
    while True:
        with contextlib.suppress(ValueError):  # settings that do not go together
            objective, vocabulary = draw_objective(rng), rng.choice(known)
            lengths = draw_lengths(objective, vocabulary, rng)
            break
    names = [f"case_{seed}_{number}_{task}" for task in range(rng.choice([1, 1, 1, 2, 3]))]
    for name in names:
        files = {"train": write_corpus(folder, rng, name)}
        tasks.jsonl_task(name, files, objective, vocabulary, cacheable=rng.random() < 0.3)
    provider = names[0]
    if len(names) > 1:
        provider = tasks.mixture(f"case_{seed}_{number}", [(name, rng.choice([0.1, 1, 3])) for name in names])
    converter_cls = seqio.EncDecFeatureConverter
    if isinstance(objective, objectives.MaskedLM):
        converter_cls = mlm.MaskedLMFeatureConverter
    elif isinstance(objective, objectives.FullLM):
        converter_cls = rng.choice([seqio.LMFeatureConverter, seqio.DecoderFeatureConverter])
    shards = rng.choice([1, 1, 2, 3, 10])
    cfg = utils.DatasetConfig(
        provider,
        lengths,
        "train",
        shards * rng.choice([1, 4, 16]),
        shuffle=rng.random() < 0.7,
        seed=rng.choice([0, 42, rng.randrange(2**31)]),
        pack=rng.random() < 0.5,
        use_cached=rng.random() < 0.5,
    )
    cacheable = [name for name in names if seqio.get_mixture_or_task(name).supports_caching]
    if cfg.use_cached and cacheable:
        with contextlib.redirect_stdout(io.StringIO()):  # its report
            offline_cache.cache_tasks(cacheable, folder / "cache", num_shards=rng.choice([1, 5, 20]))
        seqio.add_global_cache_dirs([str(folder / "cache")])
    shard = seqio.ShardInfo(rng.randrange(shards), shards)
    memory = rng.choice([0, JsonlDataSource.MOST_BYTES_IN_MEMORY])
    most_rows, most_characters = rng.choice([60, 300, 4080]), rng.choice([3000, 30_000, 2**21])
    block = most_rows, most_characters, rng.choice([200, 5000, 2**20]), rng.choice([7, 100, 4096])
    return Case(seqio.get_mixture_or_task(provider), cfg, converter_cls, shard, memory, block)


# ---- Comparing ----


def by_seqio(case: Case) -> tf.data.Dataset:
    cfg = case.cfg
    return seqio.get_dataset(
        case.provider,
        cfg.task_feature_lengths,
        case.converter_cls(pack=cfg.pack),
        cfg.split,
        use_cached=cfg.use_cached,
        shuffle=cfg.shuffle,
        num_epochs=None,
        shard_info=case.shard,
        verbose=False,
        seed=cfg.seed,
        batch_size=cfg.batch_size // case.shard.num_shards,
    )


def in_arrays(case: Case) -> tf.data.Dataset:
    reason = reading.unknown(case.provider, case.cfg, case.converter_cls)
    if reason is not None:
        raise AssertionError(f"left to SeqIO, as it knows {reason}")
    return reading.batches(case.provider, case.cfg, case.shard, case.converter_cls, case.cfg.seed, None)


def continued(dataset: tf.data.Dataset, after: int, prefix: str):
    """Yields the dataset's batches, from the `after`-th on of an iterator that goes on where the first one was."""
    first = iter(dataset)
    for _ in range(after):
        yield {name: x.numpy() for name, x in next(first).items()}
    path = tf.train.Checkpoint(iterator=first).write(prefix)
    second = iter(dataset)
    tf.train.Checkpoint(iterator=second).read(path).assert_consumed()
    for batch in second:
        yield {name: x.numpy() for name, x in batch.items()}


def difference(case: Case, prefix: str, continue_after: int | None) -> str | None:
    """Returns what differs; None if nothing does."""
    most_rows, most_characters, most_tokens, most_examples = case.block
    rows_in_memory = min(case.most_bytes_in_memory, 10_000)
    with (
        mock.patch.object(dataset_providers, "_MAX_EXAMPLES_TO_MEM_CACHE", rows_in_memory),
        mock.patch.object(dataset, "MOST_ROWS_IN_MEMORY", rows_in_memory),
        mock.patch.object(JsonlDataSource, "MOST_BYTES_IN_MEMORY", case.most_bytes_in_memory),
        mock.patch.multiple(rows, _ROWS=most_rows, _CHARACTERS=most_characters),
        mock.patch.object(examples, "_TOKENS", most_tokens),
        mock.patch.object(dataset, "_EXAMPLES", most_examples),
    ):
        return _difference(case, prefix, continue_after)


def _difference(case: Case, prefix: str, continue_after: int | None) -> str | None:
    theirs, ours = by_seqio(case), in_arrays(case)
    if theirs.element_spec != ours.element_spec:
        return f"{ours.element_spec} is not {theirs.element_spec}"
    found = ours.as_numpy_iterator() if continue_after is None else continued(ours, continue_after, prefix)
    expected = list(itertools.islice(theirs.as_numpy_iterator(), BATCHES))
    if len(expected) < BATCHES:  # SeqIO's data end where a share of a task has no row
        return raises_no_row(found)
    for number, (a, b) in enumerate(zip(itertools.islice(found, BATCHES), expected, strict=True)):
        for name in b:
            if not np.array_equal(a[name], b[name]):
                return f"batch {number}, {name}: {a[name]} is not {b[name]}"
    return None


def raises_no_row(found: Iterator) -> str | None:
    try:
        return f"{len(list(itertools.islice(found, BATCHES)))} batches, more than SeqIO's"
    except tf.errors.OpError as error:
        return None if "share has no row" in str(error) else str(error)


def run(cases: int, seed: int, folder: Path) -> list[str]:
    """Returns a line for each case that failed."""
    known = make_vocabularies(folder, random.Random(seed))
    failed, kinds = [], collections.Counter()
    for number in range(cases):
        case = draw(number, seed, folder, known)
        after = random.Random(number).randrange(BATCHES) if number % 3 == 0 else None
        found = difference(case, str(folder / f"place_{number}"), after)
        kinds[type(seqio.get_subtasks(case.provider)[0].objective).__name__] += 1
        if found:
            failed.append(f"case {number} of seed {seed}: {case}: {found}")
            print(failed[-1], flush=True)
    print(f"{cases} cases of seed {seed}, {len(failed)} failures; {dict(kinds)}")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(bool(run(args.cases, args.seed, Path(folder))))


if __name__ == "__main__":
    main()
