"""Compiles a training step, and says how long that took and whether JAX had it from before."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from t5x.embedded import console
from t5xpg.base import compilation_cache


class Compilation(NamedTuple):
    """A compiled program.

    Attributes:
      program: jax.stages.Compiled, or a function as it was where the partitioner does not compile.
      seconds: how long that took.
      was_kept: whether JAX's cache had it.
    """

    program: Any
    seconds: float
    was_kept: bool


def shapes(tree: Any) -> Any:
    """Returns the tree with jax.ShapeDtypeStruct in each array's place.

    To compile for arrays would give JAX's cache another key than to compile for their shapes, and a new run has no more
    than shapes when it compiles.
    """
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def timed(compile_program: Callable[[], Any]) -> Compilation:
    compilation_cache.listen()
    before, tick = compilation_cache.hits(), time.time()
    program = compile_program()
    return Compilation(program, time.time() - tick, compilation_cache.hits() > before)


def say(done: Compilation) -> None:
    if done.was_kept:
        console.say(
            f"Loaded the training step, compiled before, in {done.seconds:.1f} s ({compilation_cache.folder_in_use()})"
        )
    else:
        console.say(f"Compiled the training step in {done.seconds:.1f} s")
