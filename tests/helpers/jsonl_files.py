"""Helpers of the tests of JSONL files: files, what json.loads makes of them, and tasks over them."""

import bz2
import functools
import gzip
import json
import lzma
import math

import seqio
import zstandard

from t5xpg.data import jsonl

COMPRESSORS = {
    "": bytes,
    ".gz": functools.partial(gzip.compress, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def write(path, texts):
    lines = [json.dumps({"text": text}) for text in texts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def texts_of(dataset):
    return [row["text"].decode() for row in dataset.as_numpy_iterator()]


def small_pieces(monkeypatch, length=100):
    monkeypatch.setattr(jsonl, "_MIN_RANGE", length)
    monkeypatch.setattr(jsonl, "_WINDOW", length)


def finite(number: str) -> float:
    if math.isinf(float(number)):
        raise ValueError("JSON's numbers are doubles here")
    return float(number)


def reference_rows(data: bytes):
    """The texts of a file's bytes by json.loads, and the number of its first bad line or None."""
    texts = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode(), parse_constant=int, parse_float=finite, parse_int=finite)
            row["text"].encode()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return texts, number
        texts.append(row["text"])
    return texts, None


def random_text(rng):
    alphabet = 'ab "\\/\t\n\r\0\x7fé\u2028\u0085\ufeff漢字🦜\U0010ffff{}[],:'
    return "".join(rng.choices(alphabet, k=int(rng.expovariate(1 / 30))))


def random_file(rng):
    parts = [b"\xef\xbb\xbf"] if rng.random() < 0.2 else []
    for _ in range(rng.randrange(1, 30)):
        row = {"text": random_text(rng), "id": rng.randrange(9), "more": [None, {"text": 1}]}
        line = json.dumps(row, ensure_ascii=rng.random() < 0.5).encode()
        parts.append(rng.choice([b"", b"", b" ", b"\t"]) + line + rng.choice([b"\n", b"\r\n"]))
        if rng.random() < 0.2:
            parts.append(rng.choice([b"\n", b"\r\n", b"  \t\n", b"\n\n\n"]))
    data = b"".join(parts)
    return data.rstrip() if rng.random() < 0.3 else data


def task_over(source, name, **kwargs):
    features = {"targets": seqio.Feature(seqio.ByteVocabulary(), add_eos=False)}
    to_targets = seqio.map_over_dataset(lambda row: {"targets": row["text"]})
    steps = [to_targets, seqio.preprocessors.tokenize]
    return seqio.Task(name, source, features, preprocessors=steps, **kwargs)


def task_texts(task, **kwargs):
    rows = task.get_dataset(None, **kwargs).as_numpy_iterator()
    return [row["targets_pretokenized"].decode() for row in rows]
