"""Python functions inside tf.data: iterators over them can be saved, and Python can exit beside them."""

from __future__ import annotations

import atexit
import functools
import gc
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from t5xpg.base import private


def numpy_function(function: Callable, arguments: Sequence[tf.Tensor], types: Any) -> Any:
    """Returns what `function` makes of the arguments as NumPy arrays; `types` as in tf.numpy_function.

    It passes as stateless, or tf.data would refuse to save an iterator over it.
    """
    return tf.numpy_function(function, arguments, types, stateful=False)


def without_autograph(preprocessor: Callable) -> Callable:
    """Returns a preprocessor, (dataset, …) -> dataset, whose functions tf.data takes as they are.

    AutoGraph takes seconds to convert what a task maps, and of ours and SeqIO's nothing has an `if` or a `for` over
    tensors. The preprocessors of users are not ours to switch it off for.
    """
    if isinstance(preprocessor, functools.partial):  # which would lose its name
        return functools.partial(without_autograph(preprocessor.func), *preprocessor.args, **preprocessor.keywords)
    return tf.autograph.experimental.do_not_convert(preprocessor)


@atexit.register
def end_iterators() -> None:
    """Ends every tf.data iterator that is left when Python exits.

    An iterator that ends waits for the calls of Python functions that it has begun, and these for a lock that an
    exiting interpreter no longer gives: a script that ends while a dataset still reads ahead would hang.
    """
    things = gc.get_objects()
    kinds = {kind for kind in set(map(type, things)) if issubclass(kind, tf.data.Iterator)}
    for thing in things:
        if type(thing) in kinds:
            private.end_iterator(thing)
