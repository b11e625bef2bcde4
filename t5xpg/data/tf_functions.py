"""Python functions inside tf.data: iterators over them can be saved, and Python can exit while they run."""

from __future__ import annotations

import atexit
import functools
import gc
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from t5xpg.base import private


def numpy_function(function: Callable, arguments: Sequence[tf.Tensor], types: Any) -> Any:
    """Returns `function` of the arguments as NumPy arrays; `types` as in tf.numpy_function.

    It is declared stateless, or tf.data would refuse to save an iterator over it.
    """
    return tf.numpy_function(function, arguments, types, stateful=False)


def without_autograph(preprocessor: Callable) -> Callable:
    """Returns the preprocessor, (dataset, …) -> dataset, with AutoGraph switched off for the functions it maps.

    AutoGraph takes seconds to convert a task's functions, and neither ours nor SeqIO's have an `if` or a `for` over
    tensors. For users' preprocessors it stays on.
    """
    if isinstance(preprocessor, functools.partial):  # which would lose its name
        return functools.partial(without_autograph(preprocessor.func), *preprocessor.args, **preprocessor.keywords)
    return tf.autograph.experimental.do_not_convert(preprocessor)


@atexit.register
def end_iterators() -> None:
    """Ends every tf.data iterator that is left when Python exits.

    An iterator that ends waits for the Python calls that it has begun, and these wait for a lock that an exiting
    interpreter no longer gives out: a script that ends while a dataset still reads ahead would hang.
    """
    things = gc.get_objects()
    kinds = {kind for kind in set(map(type, things)) if issubclass(kind, tf.data.Iterator)}
    for thing in things:
        if type(thing) in kinds:
            private.end_iterator(thing)
