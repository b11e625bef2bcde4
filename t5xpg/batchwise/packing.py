"""Examples to rows of one length, packed or padded, and rows to what models read, as SeqIO's feature converters do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import seqio

from t5xpg.batchwise.ragged import places
from t5xpg.batchwise.stages import Block, Stage, joined, part, size

Converter = Callable[[Block], Block]


class Pack(Stage):
    """Packs as many examples at a time as `seqio.utils.trim_and_pack_dataset`, and so into the same rows.

    Args:
      examples: a block without examples.
      lengths: {feature: length of a row}.
    """

    kept = ("_waiting",)

    def __init__(self, examples: Block, lengths: Mapping[str, int]):
        self._waiting, self._lengths = examples, lengths

    def __call__(self, block: Block) -> Block:
        every, at_a_time = joined(self._waiting, block), max(self._lengths.values())
        whole = size(every) // at_a_time * at_a_time
        self._waiting = part(every, slice(whole, None))
        return pack(part(every, slice(whole)), self._lengths)


def pack(examples: Block, lengths: Mapping[str, int]) -> Block:
    """Packs examples into rows, in their order: one with a feature that does not fit begins the next row.

    So does each after as many examples as the longest feature has tokens, which are what SeqIO packs at a time.

    Args:
      examples: {feature: int32 [examples, its length]}, padded with 0. A 0 within shortens an example by one, as in
        SeqIO.
      lengths: {feature: length of a row}.

    Returns:
      {feature, feature_positions, feature_segment_ids: int32 [rows, length]}.
    """
    sizes = {name: np.count_nonzero(examples[name], 1) for name in lengths}
    first = _first_of_rows(sizes, lengths)
    packed: Block = {}
    for name, length in lengths.items():
        filled = np.add.reduceat(sizes[name], first)
        number = np.cumsum(sizes[name] > 0, dtype=np.int32)  # examples without the feature are not counted
        number -= np.repeat(number[first] - (sizes[name][first] > 0), np.diff(first, append=len(number)))
        values = examples[name][np.arange(length) < sizes[name][:, None]]
        told = values, places(sizes[name]), np.repeat(number, sizes[name]) * (values != 0)
        exists = np.arange(length) < filled[:, None]
        rows = np.zeros([3, *exists.shape], np.int32)
        for array, flat in zip(rows, told, strict=True):
            array[exists] = flat
        packed |= dict(zip((name, f"{name}_positions", f"{name}_segment_ids"), rows, strict=True))
    return packed


def _first_of_rows(sizes: Mapping[str, np.ndarray], lengths: Mapping[str, int]) -> np.ndarray:
    """Returns the first example of each row, int [rows]."""
    ends = {name: np.cumsum(sizes[name]) for name in lengths}  # as if all examples were in one row
    # For a row that begins with each example, the first example that no longer fits: [examples].
    begins = {name: ends[name] - sizes[name] for name in lengths}
    too_much = [np.searchsorted(ends[name], begins[name] + lengths[name], side="right") for name in lengths]
    at_a_time = max(lengths.values())
    next_pack = (np.arange(len(too_much[0])) // at_a_time + 1) * at_a_time
    after = np.min([*too_much, next_pack], 0).tolist()
    first, example = [], 0
    while example < len(after):
        first.append(example)
        example = after[example]
    return np.array(first, np.int64)


# ---- Rows, {feature: [rows, length]}, to what models read ----


def encoder_decoder(rows: Block) -> Block:
    encoder = {"encoder_input_tokens": rows["inputs"]}
    if "inputs_segment_ids" in rows:
        encoder |= {f"encoder_{name}": rows[f"inputs_{name}"] for name in ("segment_ids", "positions")}
    return encoder | decoder(rows)


def decoder(rows: Block) -> Block:
    targets, segments = rows["targets"], rows.get("targets_segment_ids")
    inputs = np.zeros_like(targets)
    inputs[:, 1:] = targets[:, :-1]
    made = {"decoder_target_tokens": targets, "decoder_input_tokens": inputs}
    made["decoder_loss_weights"] = (targets != 0).astype(np.int32)
    if segments is not None:
        inputs[:, 1:] *= segments[:, 1:] == segments[:, :-1]
        made |= {f"decoder_{name}": rows[f"targets_{name}"] for name in ("segment_ids", "positions")}
    return made


_BOTH, _TARGETS = frozenset(["inputs", "targets"]), frozenset(["targets"])
# {(class of converters, the task's features): the same for rows}; with the class's own settings, but for `pack`.
CONVERTERS: dict[tuple[type, frozenset[str]], Converter] = {
    (seqio.EncDecFeatureConverter, _BOTH): encoder_decoder,
    (seqio.LMFeatureConverter, _TARGETS): decoder,
    (seqio.DecoderFeatureConverter, _TARGETS): decoder,
}
