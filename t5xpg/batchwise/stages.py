"""What the way from rows to batches is made of, and how its place is kept.

A *block* is {name: array}, whose first dimension is as many rows, examples or batches. A *stage* takes a block and
gives another, and keeps what it cannot use yet; it never waits, but gives an empty block. The *place* of a stage is
what it keeps: after it is restored, the same blocks make the same blocks. What the last stage of an objective gives is
no block yet but a function that makes it, for a thread of `Portions`: all that depends on the order, such as seeds, is
in it already.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np

from t5xpg.batchwise.random_numbers import dataset_stream
from t5xpg.data.workers import cores

Block = dict[str, np.ndarray]
Place = dict[str, Any]  # of arrays, numbers, lists of them, and other places: what MessagePack knows
THREADS = ThreadPoolExecutor(cores())  # for what is long and outside of Python's lock


class Stage:
    """A part of the way.

    Attributes:
      kept: names of the attributes that are its place; arrays and lists are replaced, never written to.
      parts: stages that it is made of, whose places are in its own.
    """

    kept: ClassVar[tuple[str, ...]] = ()
    parts: Sequence[Stage] = ()

    @property
    def place(self) -> Place:
        return {name: getattr(self, name) for name in self.kept} | {"parts": [part.place for part in self.parts]}

    @place.setter
    def place(self, place: Place) -> None:
        for name in self.kept:
            setattr(self, name, place[name])
        for part, its_place in zip(self.parts, place["parts"], strict=True):
            part.place = its_place


class Way(Stage):
    """From rows to examples, rows of one length and batches: stages one after the other.

    Args:
      source: gives blocks.
      steps: what each block goes through, stages or functions.
    """

    def __init__(self, source: Any, steps: Sequence[Any]):
        self._source, self._steps = source, steps
        self.parts = [part for part in [source, *steps] if isinstance(part, Stage)]

    def __call__(self) -> Any:
        return functools.reduce(lambda block, step: step(block), self._steps, self._source())


class Portions(Stage):
    """Gives `most` examples at a time, of blocks that threads make.

    Its place is the source's before the block that it is giving, which is made again there, and how much is given.

    Args:
      source: gives functions, each of which makes a block and depends on nothing but itself.
      most: examples to give at a time.
      ahead: how many blocks are made meanwhile. What goes wrong with one is raised in its turn, behind those before it.
    """

    def __init__(self, source: Way, most: int, ahead: int = 1):
        self._source, self._most, self._ahead = source, most, ahead
        self._coming: collections.deque[tuple[Place, Future[Block]]] = collections.deque()  # each with the place before
        self._given = 0

    @property
    def place(self) -> Place:
        return {"source": self._coming[0][0] if self._coming else self._source.place, "given": self._given}

    @place.setter
    def place(self, place: Place) -> None:
        self._source.place, self._given = place["source"], place["given"]
        self._coming.clear()

    def __call__(self) -> Block:
        while len(self._coming) <= self._ahead:
            self._coming.append((self._source.place, self._begun()))
        block = self._coming[0][1].result()
        given = part(block, slice(self._given, self._given + self._most))
        self._given += self._most
        if self._given >= size(block):
            self._coming.popleft()
            self._given = 0
        return given

    def _begun(self) -> Future[Block]:
        try:
            return THREADS.submit(self._source())
        except Exception as error:
            failed: Future[Block] = Future()
            failed.set_exception(error)
            return failed


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
        self._words = dataset_stream(seed).of_iterator(0)

    def __call__(self, block: Block) -> Block:
        every = joined(self._buffer, block)
        new = size(every) - self._size
        if new <= 0:
            self._buffer = every
            return part(block, slice(0))
        oldest = (self._given + np.arange(new)) % self._size
        at = (oldest + self._words.words(self._given, new)) % self._size
        slots, chosen = list(range(self._size)), []  # places in `every`, where the new ones stand behind the buffer
        for new_one, (first, drawn) in enumerate(zip(oldest.tolist(), at.tolist(), strict=True), self._size):
            chosen.append(slots[drawn])
            slots[drawn] = slots[first]
            slots[first] = new_one
        self._given += new
        self._buffer = part(every, np.array(slots))
        return part(every, np.array(chosen))
