"""What the way from rows to batches is made of, and how its place is kept.

A *block* is {name: array}, whose first dimension is as many rows, examples or batches. A *stage* takes a block and
gives another, and keeps what it cannot use yet; it never waits, but gives an empty block. The *place* of a stage is
what it keeps: after it is restored, the same blocks make the same blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import orjson

from t5xpg.batchwise.random_numbers import WordStream, kernel_seeds

Block = dict[str, np.ndarray]
Place = dict[str, Any]  # of arrays, numbers, lists of them, and other places


class Stage:
    """A part of the way.

    Attributes:
      kept: names of the attributes that are its place; arrays and lists are replaced, never written to.
    """

    kept: ClassVar[tuple[str, ...]] = ()

    @property
    def place(self) -> Place:
        return {name: getattr(self, name) for name in self.kept}

    @place.setter
    def place(self, place: Place) -> None:
        for name in self.kept:
            setattr(self, name, place[name])


class Way(Stage):
    """From rows to examples, rows of one length and batches: stages one after the other.

    Args:
      source: gives blocks.
      steps: what each block goes through, stages or functions.
    """

    def __init__(self, source: Callable[[], Any], steps: list[Callable]):
        self._source, self._steps = source, steps
        parts: list[Any] = [source, *steps]
        self._stages = [part for part in parts if isinstance(part, Stage)]

    def __call__(self) -> Any:
        return functools.reduce(lambda block, step: step(block), self._steps, self._source())

    @property
    def place(self) -> Place:
        return {str(number): stage.place for number, stage in enumerate(self._stages)}

    @place.setter
    def place(self, place: Place) -> None:
        for number, stage in enumerate(self._stages):
            stage.place = place[str(number)]


class Portions(Stage):
    """Gives what a source gives in blocks of `most` at most.

    Its place is the source's before the block that it is giving, which is made again there, and how much is given.
    """

    def __init__(self, source: Way, most: int):
        self._source, self._most = source, most
        self._before: Place | None = None
        self._block: Block = {}
        self._given = 0

    @property
    def place(self) -> Place:
        return {"source": self._source.place if self._before is None else self._before, "given": self._given}

    @place.setter
    def place(self, place: Place) -> None:
        self._source.place, self._given = place["source"], place["given"]
        self._before = None

    def __call__(self) -> Block:
        if self._before is None:
            self._before, self._block = self._source.place, self._source()
        start, self._given = self._given, self._given + self._most
        given = part(self._block, slice(start, self._given))
        if self._given >= size(self._block):
            self._before, self._block, self._given = None, {}, 0
        return given


def to_bytes(place: Place) -> bytes:
    """Returns a place as bytes: what is in it as JSON, in which arrays are numbers, dtypes and shapes, then these."""
    arrays: list[memoryview] = []

    def described(array: object) -> dict[str, object]:
        if not isinstance(array, np.ndarray):
            raise TypeError  # as orjson asks for
        arrays.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return {"array": len(arrays) - 1, "dtype": array.dtype.str, "shape": array.shape}

    words = orjson.dumps(place, described)
    sizes = [len(words), *map(len, arrays)]
    return b"".join([orjson.dumps(sizes), b"\n", words, *arrays])


def from_bytes(content: bytes) -> Place:
    """Returns the place that `to_bytes` was given."""
    header, _, rest = content.partition(b"\n")
    ends = np.cumsum(orjson.loads(header)).tolist()
    parts = [memoryview(rest)[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def found(value: Any) -> Any:
        if isinstance(value, list):
            return [found(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "array" in value:
            return np.frombuffer(parts[1 + value["array"]], value["dtype"]).reshape(value["shape"])
        return {name: found(item) for name, item in value.items()}

    return found(orjson.loads(parts[0]))


def size(block: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(block.values())))


def joined(*blocks: Mapping[str, np.ndarray]) -> Block:
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def part(block: Mapping[str, np.ndarray], which: slice | np.ndarray) -> Block:
    return {name: array[which] for name, array in block.items()}


class Shuffle(Stage):
    """tf.data's `shuffle` of endless examples: a buffer, of which one example at random is given for each new one.

    Args:
      examples: a block without examples.
      size: of the buffer.
      seed: as `shuffle` takes it.
    """

    kept = ("_buffer", "_given")

    def __init__(self, examples: Block, size: int, seed: int):
        self._buffer, self._size, self._given = examples, size, 0
        # An iterator's own seeds are the first words of the dataset's.
        self._words = WordStream(*WordStream(*kernel_seeds(seed)).words(0, 2).tolist())

    def __call__(self, block: Block) -> Block:
        every = joined(self._buffer, block)
        new = size(every) - self._size
        if new <= 0:
            self._buffer = every
            return part(block, slice(0))
        offsets = (self._words.words(self._given, new) % self._size).tolist()
        slots, chosen = list(range(self._size)), []
        for number, offset in enumerate(offsets):
            oldest = (self._given + number) % self._size
            at = (oldest + offset) % self._size
            chosen.append(slots[at])
            slots[at] = slots[oldest]
            slots[oldest] = self._size + number
        self._given += new
        self._buffer = part(every, np.array(slots))
        return part(every, np.array(chosen))
