"""Thousands of damaged files: the source gives exactly the good rows or names the line, and always ends.

`T5XPG_FUZZ_SEED=…` repeats a run; an assertion names its seed and its case.
"""

import collections
import json
import os
import random
import re
import signal

import pytest
from jsonl_files import COMPRESSORS, random_file, random_text, reference_rows, small_pieces

from t5xpg.data import jsonl
from t5xpg.data.jsonl import JsonlError

SEED = int(os.environ.get("T5XPG_FUZZ_SEED", random.randrange(10**6)))
CASES = 1500  # of each kind
CPU_SECONDS = 60  # of one case; processor time, since a machine may be busy


def cases(count=CASES):
    """(rng, name) of each case; a case that does not end fails."""

    def give_up(*_):
        raise TimeoutError(f"{name} does not end")

    handler = signal.signal(signal.SIGPROF, give_up)
    try:
        for case in range(count):
            name = f"T5XPG_FUZZ_SEED={SEED}, case {case}"
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            yield random.Random(f"{SEED}/{case}"), name
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)


# ---- What happens to files ----


def patched(rng, data):
    """A few bytes replaced, added or lost."""
    data = bytearray(data)
    patches = [b"", b"x", b" ", b"\n", b"{", b'"', b"\xff", b"\xc3\xa9", b"\\", b"\0", rng.randbytes(2)]
    for _ in range(rng.randrange(1, 3)):
        start = rng.randrange(len(data) + 1)
        data[start : start + rng.randrange(3)] = rng.choice(patches)
    return bytes(data)


def truncated(rng, data):
    return data[: rng.randrange(len(data))]


def with_zeros(rng, data):
    """As after a crash: a stretch, often the end, was never written."""
    start = rng.randrange(len(data))
    end = rng.choice([len(data), start + rng.randrange(200)])
    return data[:start] + bytes(len(data[start:end])) + data[end:]


def with_other_line_ends(rng, data):
    """Some line ends become others, or are lost."""
    ends = [b"\n", b"\r\n", b"\r", b"\n\r", b"", b"\x0b\n", b"\x0c\n", b"\xc2\x85", "\u2028".encode(), b"\n\n"]
    return re.sub(b"\n", lambda _: rng.choice(ends) if rng.random() < 0.3 else b"\n", data)


def with_line(rng, data):
    """One odd line among the others."""
    line = rng.choice(ODD_LINES)
    lines = data.split(b"\n")
    lines.insert(rng.randrange(len(lines) + 1), line(rng) if callable(line) else line)
    return b"\n".join(lines)


def with_other_encoding(rng, data):
    encoding = rng.choice(["utf-16", "utf-16-le", "utf-32", "latin-1", "cp037"])
    return data.decode().encode(encoding, "replace")


ODD_LINES = [
    *(b" ", b"\r", b"\t\t", b"\x0b", b"\x0c", b"\x1c", b"\0", b"\0" * 500, b"\xef\xbb\xbf", "\u2028\u3000".encode()),
    *(b"{}", b"[]", b"null", b"0", b'"text"', b"NaN", b"-", b"{", b"}", b",", b"//", b"\xff", b"\x1f\x8b\x08"),
    *(b'{"text": "a"},', b'{"text": "a"}{"text": "b"}', b'[{"text": "a"}]', b"{'text': 'a'}", b'{"text": "a",}'),
    *(b'{"text": 1}', b'{"text": null}', b'{"text": ["a"]}', b'{"text": {"text": "a"}}', b'{"Text": "a"}', b'{"text"}'),
    *(b'{"text": "\\ud800"}', b'{"text": "\\udc00\\ud800"}', b'{"text": "\xed\xa0\x80"}'),
    *(b'{"text": "a", "text": "b"}', b'{"text": 1, "text": "b"}', b'{"text": "a", "text": 1}', b'{"\\u0074ext": "a"}'),
    *(b'{"text": "a\tb"}', b'{"text": "a\0b"}', b'{"text": "a\\u0000b"}', b'{"text": "\\x41"}'),
    *(b'{"text": "a", "n": 1e999}', b'{"text": "a", "n": -0}', b'{"text": "a", "n": 01}'),
    *(b'{"text": "a", "n": ' + b"9" * 400 + b"}", b'{"text": "a"} \t ', b'{"text": "a"}\x0b', b'{"text": "a"}\x0c'),
    *(b'{"text": "\\ud83d\\ude00"}', b'{"text": "\xc0\x80"}', b'{"text": "a", "n": Infinity}'),
    *(b"\xef\xbb\xbf" + b'{"text": "a"}', '{"text": "a"}\u00a0'.encode(), '{"text": "\u2028\u2029\u0085"}'.encode()),
    lambda rng: b'{"text": "a", "deep": %b%b}' % (b"[" * (n := rng.randrange(400)), b"]" * n),
    lambda rng: b'{"text": "a", "deep": ' + b'{"a":' * rng.randrange(5, 100_000),
    lambda rng: json.dumps({"text": random_text(rng) * rng.randrange(1000)}).encode(),
]
DAMAGE = [patched, patched, truncated, with_zeros, with_other_line_ends, with_line, with_line, with_other_encoding]


def damaged(rng):
    data = random_file(rng)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        try:
            data = rng.choice(DAMAGE)(rng, data) or b" "
        except UnicodeDecodeError:  # another encoding of what is damaged already
            continue
    return data


def in_pieces(path, data, rng, monkeypatch):
    """Reads `data`, written to `path`, in byte ranges of some length: (texts up to the first error, it or None)."""
    path.write_bytes(data)
    small_pieces(monkeypatch, rng.choice([1 + len(data) // 1000, 20 + len(data) // 100, 300, 10**6]))
    texts = []
    try:
        for piece in jsonl.cut([str(path)]):
            for (window,) in jsonl.windows(piece, {"text": "text"}):
                texts += window.tolist()
    except JsonlError as error:
        return texts, str(error)
    return texts, None


# ---- Tests ----


def test_damaged_files_give_their_rows_or_name_the_line(tmp_path, monkeypatch):
    outcomes = collections.Counter()
    path = tmp_path / "a.jsonl"
    for rng, name in cases():
        data = damaged(rng)
        expected, bad = reference_rows(data)
        texts, error = in_pieces(path, data, rng, monkeypatch)
        assert texts == expected[: len(texts)], name
        if bad is None:
            assert error is None and texts == expected, f"{error}, {name}"
            assert jsonl.count_rows(str(path)) == len(expected), name
        else:
            assert error is not None, f"line {bad} passed, {name}"
            assert error.startswith(f"{path}:{bad}: ") and "\n" not in error, f"{error}, not line {bad}, {name}"
        outcomes[bad is None] += 1
    assert min(outcomes.values()) > CASES / 30, outcomes


def test_one_bad_line_costs_no_other(tmp_path, monkeypatch):
    """Whoever deletes the lines that are named, one by one, keeps every good row."""
    path = tmp_path / "a.jsonl"
    for rng, name in cases(CASES // 5):
        good = [json.dumps({"text": f"{number} {random_text(rng)}"}).encode() for number in range(12)]
        lines = good.copy()
        for _ in range(4):
            odd = rng.choice(ODD_LINES)
            lines.insert(rng.randrange(len(lines) + 1), odd(rng) if callable(odd) else odd)
        texts, error = [], "not read yet"
        while error:
            texts, error = in_pieces(path, b"\n".join(lines), rng, monkeypatch)
            if error:
                del lines[int(error.removeprefix(f"{path}:").split(":")[0]) - 1]
        assert set(good) <= set(lines), name
        assert {json.loads(line)["text"] for line in good} <= set(texts), name


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESSORS if suffix])
def test_damaged_compressed_files_never_pass_as_whole(tmp_path, monkeypatch, suffix):
    """Of one stream or of several, as parallel compressors and `cat` write them."""
    path = tmp_path / f"a.jsonl{suffix}"
    outcomes = collections.Counter()
    for rng, name in cases(CASES // 3):
        parts = [random_file(rng).rstrip() + b"\n" for _ in range(rng.randrange(1, 4))]
        parts = [part.removeprefix(b"\xef\xbb\xbf") for part in parts]
        whole = b"".join(COMPRESSORS[suffix](part) for part in parts)
        data = rng.choice([patched, truncated, with_zeros, lambda _, whole: whole])(rng, whole) or b"x"
        expected, _ = reference_rows(b"".join(parts))
        texts, error = in_pieces(path, data, rng, monkeypatch)
        assert texts == expected[: len(texts)], name
        if error:
            # The line is one of the damaged text, which may have more of them than the whole one had.
            assert re.match(rf"{re.escape(str(path))}:[1-9]\d*: ", error), f"{error}, {name}"
            assert data != whole and "\n" not in error, f"{error}, {name}"
        else:  # a header's free fields may change unnoticed, or the file end, or be padded, where a stream ends
            ends = [sum(len(COMPRESSORS[suffix](part)) for part in parts[:n]) for n in range(1, len(parts))]
            assert texts == expected or not all(data[end:].strip(b"\0") for end in ends), name
        outcomes[error is None] += 1
    assert min(outcomes.values()) > 20, outcomes
