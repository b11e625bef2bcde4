"""What the readers keep from call to call: shared by threads, bounded, and still there when its turn comes."""

import threading

import numpy as np

from t5xpg.base.ranges import Status
from t5xpg.data import jsonl, sources
from t5xpg.data.kept import Kept


def test_each_is_taken_once_and_the_oldest_goes():
    kept = Kept(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        kept.put(key, value)
    assert "b" not in kept and "a" in kept
    assert [kept.take(key) for key in ("a", "a", "b", "c")] == [3, None, None, 4]
    kept.put("d", 5)
    kept.close()
    kept.put("e", 6)
    assert kept.take("d") is kept.take("e") is None


def test_threads_take_turns():
    """A key that is asked for its hash as it is put away: no other thread gets at the values until that is answered."""
    asked, answer = threading.Event(), threading.Event()

    class Slow:
        def __hash__(self):
            asked.set()
            assert answer.wait(60)
            return 0

    kept = Kept(2)
    first = threading.Thread(target=kept.put, args=(Slow(), "slow"))
    first.start()
    assert asked.wait(60)
    others = [
        threading.Thread(target=call, args=arguments)
        for call, arguments in ((kept.put, ("b", 1)), (kept.take, ("a",)), (kept.__contains__, ("a",)))
    ]
    for thread in others:
        thread.start()
        thread.join(0.2)
    waited = [thread.is_alive() for thread in others]
    answer.set()
    for thread in (first, *others):
        thread.join(60)
    assert waited == [True] * 3 and "b" in kept


def test_what_was_read_ahead_outlasts_what_iterators_left_behind(monkeypatch):
    opened, futures, in_background = [], [], sources.in_background

    def windows(piece, columns):
        opened.append(piece.path)
        for number in range(3):
            yield [np.array([f"{piece.path} {number}"], dtype=object)]

    monkeypatch.setattr(jsonl, "windows", windows)
    monkeypatch.setattr(sources, "in_background", lambda *call: futures.append(in_background(*call)) or futures[-1])
    paths = [f"gs://bucket/{number}.jsonl.gz" for number in range(5)] + [f"{number}.jsonl.gz" for number in range(40)]
    pieces = [jsonl.Piece(path, 0, jsonl.UNBOUNDED, Status(1, "")) for path in paths]
    reader = sources.WindowReader(pieces, {"text": "text"}, shuffle=False)
    reader(np.int64(0), np.int64(0), np.int64(0))
    assert len([future.result(60) for future in futures]) == 4
    for abandoned in range(5, 45):
        reader(np.int64(abandoned), np.int64(0), np.int64(0))
    for index in range(1, 5):
        rows = [reader(np.int64(index), np.int64(number), np.int64(0))[0].tolist() for number in range(4)]
        assert rows == [[f"{paths[index]} 0"], [f"{paths[index]} 1"], [f"{paths[index]} 2"], []]
    assert sorted(opened) == sorted(paths), "each from its start once"


def test_what_lets_go_may_interrupt_what_puts():
    """As the garbage collector does, in the same thread."""
    kept = Kept(2)

    class Closes:
        def __hash__(self):
            kept.close()
            return 0

    interrupting = Closes()
    kept.put(interrupting, 1)
    kept.put("a", 2)
    assert kept.take("a") is None and kept.take(interrupting) is None
