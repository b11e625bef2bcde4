"""Examples to rows of one length, packed or padded, and rows to what models read, as SeqIO's feature converters do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import seqio

from t5xpg.batchwise.stages import Block, Stage, joined, part, size

Converter = Callable[[Block], Block]


class Pack(Stage):
    """Packs as `seqio.utils.trim_and_pack_dataset`: as many examples at a time, and so the same rows.

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
        parts = [slice(start, start + at_a_time) for start in range(0, whole, at_a_time)]
        return joined(*(pack(part(every, which), self._lengths) for which in [slice(0), *parts]))


def pack(examples: Block, lengths: Mapping[str, int]) -> Block:
    """Packs examples into rows, in their order; one with a feature that does not fit begins the next row.

    Args:
      examples: {feature: int32 [examples, its length]}, padded with 0. A 0 within shortens an example by one, as in
        SeqIO.
      lengths: {feature: length of a row}.

    Returns:
      {feature, feature_positions, feature_segment_ids: int32 [rows, length]}.
    """
    sizes = {name: np.count_nonzero(examples[name], 1) for name in lengths}
    begins = {name: np.cumsum(x) - x for name, x in sizes.items()}  # as if all examples were in one row
    first = _first_of_rows(sizes, begins, lengths)
    row = np.searchsorted(first, np.arange(size(examples)), side="right") - 1  # of each example
    packed: Block = {}
    for name, length in lengths.items():
        place = np.arange(length)
        exists = place < sizes[name][:, None]
        offset = row * length + begins[name] - begins[name][first[row]]
        where = (offset[:, None] + place)[exists]  # among all rows' tokens
        ids, positions = np.zeros([2, len(first) * length], np.int32)
        ids[where] = examples[name][exists]
        positions[where] = np.broadcast_to(place, exists.shape)[exists]
        ids, positions = ids.reshape(-1, length), positions.reshape(-1, length)
        segments = np.cumsum(positions == 0, 1, np.int32) * (ids != 0)
        packed |= {name: ids, f"{name}_positions": positions, f"{name}_segment_ids": segments}
    return packed


def _first_of_rows(
    sizes: Mapping[str, np.ndarray], begins: Mapping[str, np.ndarray], lengths: Mapping[str, int]
) -> np.ndarray:
    """Returns the first example of each row, int [rows]."""
    ends = {name: begins[name] + sizes[name] for name in lengths}
    # For a row that begins with each example, the first example that no longer fits: [examples].
    too_much = [np.searchsorted(ends[name], begins[name] + lengths[name], side="right") for name in lengths]
    after = np.min(too_much, 0).tolist()
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
