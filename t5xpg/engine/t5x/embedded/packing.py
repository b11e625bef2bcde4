"""SeqIO's packing, a batch of examples at a time: the same rows, in a fraction of the time.

SeqIO (`seqio.utils.trim_and_pack_dataset`) appends one example after the other in a loop of TensorFlow operations,
and TensorFlow takes longer to start one than to run it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import seqio
import tensorflow as tf


def make_converter(
    converter_cls: Callable[..., seqio.FeatureConverter], *args: Any, **arguments: Any
) -> seqio.FeatureConverter:
    """Returns a converter of this class, made faster where the result is known to be the same.

    A class that packs by SeqIO's loop packs by `pack_dataset`, and one that SeqIO wrote is not converted by AutoGraph,
    which takes seconds and finds nothing to convert in it. Everything else, including what users write, runs as it is.

    Args:
      converter_cls: a seqio.FeatureConverter class, or a functools.partial of one.
      args, arguments: the converter's.
    """
    if isinstance(converter_cls, functools.partial):
        return make_converter(converter_cls.func, *converter_cls.args, *args, **{**converter_cls.keywords, **arguments})
    if isinstance(converter_cls, type) and issubclass(converter_cls, seqio.FeatureConverter):
        converter_cls = faster(converter_cls)
    return converter_cls(*args, **arguments)


@functools.cache
def faster(converter_cls: type[seqio.FeatureConverter]) -> type[seqio.FeatureConverter]:
    """Returns a subclass that packs by batches and skips AutoGraph, where either is known to change nothing."""
    methods: dict[str, Any] = {"__module__": converter_cls.__module__, "__doc__": converter_cls.__doc__}
    if converter_cls._pack_or_pad is seqio.FeatureConverter._pack_or_pad:

        def _pack_or_pad(self, ds: tf.data.Dataset, packed_lengths: Mapping[str, int]) -> tf.data.Dataset:
            if self.pack and not self._use_custom_packing_ops:
                return pack_dataset(ds, packed_lengths)
            return seqio.FeatureConverter._pack_or_pad(self, ds, packed_lengths)

        methods["_pack_or_pad"] = _pack_or_pad
    converters = [cls for cls in converter_cls.__mro__ if issubclass(cls, seqio.FeatureConverter)]
    if all(cls.__module__.startswith("seqio.") for cls in converters):
        methods["__call__"] = tf.autograph.experimental.do_not_convert(converter_cls.__call__)
    return types.new_class(converter_cls.__name__, (converter_cls,), exec_body=lambda body: body.update(methods))


def pack_dataset(dataset: tf.data.Dataset, lengths: Mapping[str, int]) -> tf.data.Dataset:
    """Packs as `seqio.utils.trim_and_pack_dataset`: row for row, quirks included.

    Args:
      dataset: {feature: int [any]}; features without a length are left out.
      lengths: {feature: length of a packed row}.

    Returns:
      {feature, feature_positions, feature_segment_ids: int32 [length]}.

    Raises:
      ValueError: a feature is missing or is not one-dimensional, in SeqIO's words.
    """
    spec = dataset.element_spec
    if any(name not in spec or not spec[name].shape.is_compatible_with([None]) for name in lengths):
        return seqio.utils.trim_and_pack_dataset(dataset, lengths)  # which raises
    # The datasets are SeqIO's one by one, so that an iterator saved over either is restored over the other, and as many
    # examples make a batch: rows end where it does.
    trimmed = dataset.map(lambda x: {name: x[name][:length] for name, length in lengths.items()}, tf.data.AUTOTUNE)
    batches = trimmed.padded_batch(max(lengths.values()))
    rows = batches.map(functools.partial(pack_batch, lengths=lengths), tf.data.AUTOTUNE).unbatch()
    return rows.map(lambda row: row, tf.data.AUTOTUNE)


def pack_batch(batch: Mapping[str, tf.Tensor], lengths: Mapping[str, int]) -> dict[str, tf.Tensor]:
    """Packs examples into rows, in their order; one with a feature that does not fit begins the next row.

    Args:
      batch: {feature: int [examples, up to length]}, padded with 0. A 0 within a text shortens it by one, as in SeqIO.
      lengths: {feature: length of a row}.

    Returns:
      {feature, feature_positions, feature_segment_ids: int32 [rows, length]}.
    """
    batch = {name: tf.cast(x, tf.int32) for name, x in batch.items()}
    sizes = {name: tf.math.count_nonzero(x, 1, dtype=tf.int32) for name, x in batch.items()}
    ends = {name: tf.cumsum(x) for name, x in sizes.items()}  # as if all examples were in one row
    first = first_of_rows({name: (ends[name] - sizes[name], ends[name], lengths[name]) for name in lengths})
    rows = tf.size(first)
    row = tf.searchsorted(first, tf.range(tf.size(ends[next(iter(ends))])), side="right") - 1  # [examples]
    packed: dict[str, tf.Tensor] = {}
    for name, length in lengths.items():
        begins = ends[name] - sizes[name]
        offset = row * length + begins - tf.gather(begins, tf.gather(first, row))  # [examples], in all rows' tokens
        position = tf.range(tf.shape(batch[name])[1])
        exists = position < sizes[name][:, None]
        where = tf.boolean_mask(offset[:, None] + position, exists)[:, None]
        values = tf.stack([batch[name], tf.broadcast_to(position, tf.shape(batch[name]))], 2)  # [examples, any, 2]
        tokens = tf.scatter_nd(where, tf.boolean_mask(values, exists), [rows * length, 2])
        ids, positions = tf.unstack(tf.reshape(tokens, [rows, length, 2]), axis=2)
        segments = tf.cumsum(tf.cast(positions == 0, tf.int32), axis=1) * tf.cast(ids != 0, tf.int32)
        packed |= {name: ids, f"{name}_positions": positions, f"{name}_segment_ids": segments}
    return packed


def first_of_rows(features: Mapping[str, tuple[tf.Tensor, tf.Tensor, int]]) -> tf.Tensor:
    """Returns the first example of each row: int32 [rows].

    Args:
      features: {feature: (begins, ends: int32 [examples], length)}, where the examples are in an endless row,
        and the length of a real row.
    """
    # For a row that begins with each example, the first example that no longer fits: [examples].
    too_much = [tf.searchsorted(ends, begins + length, side="right") for begins, ends, length in features.values()]
    after = tf.reduce_min(tf.stack(too_much), 0)
    first = tf.TensorArray(tf.int32, 0, dynamic_size=True)
    _, first = tf.while_loop(
        lambda i, first: i < tf.size(after), lambda i, first: (after[i], first.write(first.size(), i)), [0, first]
    )
    return first.stack()
