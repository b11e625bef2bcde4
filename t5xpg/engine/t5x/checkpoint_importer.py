"""Arrays that are read from a checkpoint when they are asked for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from t5x.embedded.contract import refuse_missing

refuse_missing(globals(), "checkpoint_importer")


class LazyArray:
    """An array whose shape and dtype are known, and whose values `get` reads, again at each call.

    Args:
      shape: its shape.
      dtype: what `get` casts to.
      get_fn: () -> the array, in any dtype.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    def __init__(self, shape: tuple[int, ...], dtype: Any, get_fn: Callable[[], Any]):
        self.shape, self.dtype, self._get_fn = tuple(shape), np.dtype(dtype), get_fn

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def astype(self, dtype: Any) -> LazyArray:
        return type(self)(self.shape, dtype, self._get_fn)

    def get(self) -> Any:
        values = self._get_fn()
        return values if values.dtype == self.dtype else values.astype(self.dtype)

    async def get_async(self) -> Any:
        return await asyncio.to_thread(self.get)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"
