"""TensorBoard's event files, read without TensorFlow: the numbers that T5X and clu write.

A file is a sequence of records: length (uint64), its checksum (uint32), that many bytes, their checksum (uint32); all
little-endian. The bytes are an `Event` protocol buffer.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from t5xpg.base import files

HEADER = struct.Struct("<QI")
CHECKSUM = 4  # bytes


class Number(NamedTuple):
    """One number of an event file; `time` is in seconds since 1970."""

    time: float
    step: int
    tag: str
    value: float


def numbers_in(folder: str) -> Iterator[Number]:
    """Yields the numbers in a folder's event files, in the order they were written; no texts, images or histograms."""
    for name in files.names_in(folder):
        if "tfevents" in name:
            yield from numbers_of(os.path.join(folder, name))


def numbers_of(path: str) -> Iterator[Number]:
    """Yields the numbers of one event file."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto import event_pb2

    for record in records(files.read_bytes(path)):
        try:
            event = event_pb2.Event.FromString(record)
        except DecodeError as error:
            raise ValueError(f"{path} is not an event file of TensorBoard: {error}") from None
        for value in event.summary.value:
            number = number_of(value)
            if number is not None:
                yield Number(event.wall_time, event.step, value.tag, number)


def number_of(value) -> float | None:
    """Returns a Summary.Value's number, as TensorFlow 1's summaries have it or 2's; None where it is something else."""
    from tensorboard.util.tensor_util import make_ndarray

    if value.HasField("simple_value"):
        return value.simple_value
    tensor = value.tensor
    if not value.HasField("tensor") or tensor.tensor_shape.dim or tensor.dtype not in (1, 2, 3, 9):
        return None  # of float, double, int32 and int64 numbers alone: a shape could ask for any amount of memory
    return float(make_ndarray(tensor))


def records(content: bytes) -> Iterator[bytes]:
    """Yields the records of an event file; of one that is being written, those that are whole."""
    at = 0
    while at + HEADER.size <= len(content):
        length, _ = HEADER.unpack_from(content, at)
        start, at = at + HEADER.size, at + HEADER.size + length + CHECKSUM
        if at > len(content):
            return
        yield content[start : start + length]
