"""How much text an objective puts into an example, and how long its targets become; plain Python.

Lengths are in tokens. They are what T5X calls TASK_FEATURE_LENGTHS: EOS included.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np


class SpanCorruptionLengths(NamedTuple):
    """What span corruption makes of one full example, in tokens."""

    tokens: int  # of text
    targets: int  # room that holds the targets, sentinels and EOS included
    noise_tokens: int
    spans: int  # each takes one sentinel

    @property
    def inputs(self) -> int:
        """Length of the inputs, sentinels and EOS included."""
        return self.tokens - self.noise_tokens + self.spans + 1


def span_corruption_lengths(
    inputs_length: int, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> SpanCorruptionLengths:
    """Returns how much text fills `inputs_length`, and how long its targets are.

    t5 plans lengths in float64 (`random_spans_helper`) and draws masks in float32
    (`random_spans_noise_mask`, which also never masks nothing). Tokens are the plan's, since the
    text is cut by it; noise tokens and spans are the mask's; targets are the longer of the two.
    At 39 inputs lengths from 10 to 4100 (.15, 3) that is two more than the plan: at 640, 144.

    Args:
      inputs_length: tokens, EOS included; at least 1.
      noise_density: share of the text's tokens that is masked, between 0 and 1.
      mean_noise_span_length: tokens per masked span, at least 1.
    """

    def plan(tokens: int) -> tuple[int, int]:
        noise = round(tokens * noise_density)
        spans = round(noise / mean_noise_span_length)
        return tokens - noise + spans + 1, noise + spans + 1  # inputs, targets

    tokens = next(n for n in itertools.count(inputs_length - 1) if plan(n + 1)[0] > inputs_length)
    planned_inputs, planned_targets = plan(tokens)
    if noise_density == 0.5 and planned_targets > planned_inputs:
        # t5 prefers targets as long as the inputs, often a round number, to one more token.
        tokens, planned_targets = tokens - 1, planned_targets - 1
    noise_tokens, spans = mask_counts(tokens, noise_density, mean_noise_span_length)
    targets = max(planned_targets, noise_tokens + spans + 1)
    return SpanCorruptionLengths(tokens, targets, noise_tokens, spans)


def fitted_span_corruption_lengths(
    inputs_length: int, noise_density: float, mean_noise_span_length: float
) -> SpanCorruptionLengths:
    """`span_corruption_lengths`, with less text where t5's plan overlooks a sentinel.

    For a few noise tokens t5 plans no span, then masks one. Text cut by these
    lengths loses no token, not even in shorter examples.

    Args:
      inputs_length: as in `span_corruption_lengths`, but at least 3.
      noise_density: see there.
      mean_noise_span_length: see there.
    """
    made = span_corruption_lengths(inputs_length, noise_density, mean_noise_span_length)
    while made.inputs > inputs_length:
        noise, spans = mask_counts(made.tokens - 1, noise_density, mean_noise_span_length)
        made = SpanCorruptionLengths(made.tokens - 1, noise + spans + 1, noise, spans)
    return made


def mask_counts(tokens: int, density: float, mean_span: float) -> tuple[int, int]:
    """Returns noise tokens and spans of t5's mask over `tokens`: float32, halves to even, never none.

    Neither they nor the tokens left unmasked become fewer as `tokens` grows.
    """
    length = max(tokens, 2)
    noise_tokens = int(np.rint(np.float32(length) * np.float32(density)))
    noise_tokens = min(max(noise_tokens, 1), length - 1)
    return noise_tokens, max(int(np.rint(np.float32(noise_tokens) / np.float32(mean_span))), 1)


class IidDenoisingLengths(NamedTuple):
    """What i.i.d. denoising makes of one full example, in tokens."""

    tokens: int  # of text; the inputs are never longer
    targets: int  # room for the targets of all but one example in a million
    sentinels: int  # enough for all but one example in a million


@functools.cache
def iid_denoising_lengths(inputs_length: int, noise_density: float) -> IidDenoisingLengths:
    """Returns lengths of examples in which each token is masked on its own.

    How much is masked is random, so only far too much room would always do. The distributions are
    exact: one pass over the tokens, which keeps masks that end in noise apart from the others.

    Args:
      inputs_length: tokens, EOS included; at least 2.
      noise_density: a token's chance of being masked.
    """
    tokens = inputs_length - 1
    # Targets: all masked tokens, one sentinel for each run of unmasked ones, EOS.
    targets = _one_in_a_million(tokens, noise_density, per_masked=1, per_run=1) + 1
    # The inputs have a sentinel for each run of masked tokens; there may be one more such run.
    sentinels = _one_in_a_million(tokens, noise_density, per_masked=0, per_run=1) + 1
    return IidDenoisingLengths(tokens, targets, sentinels)


def _one_in_a_million(tokens: int, density: float, per_masked: int, per_run: int) -> int:
    """Returns the cost that a random mask exceeds once in a million times; runs are of unmasked tokens."""

    def plus(chances: np.ndarray, cost: int) -> np.ndarray:
        return np.concatenate([np.zeros(cost), chances[: len(chances) - cost]])

    masked, unmasked = np.zeros((2, 2 * tokens + 1))  # chance of each cost, by the last token
    masked[0] = 1.0  # as before the first token: an unmasked one starts a run
    for _ in range(tokens):
        masked, unmasked = (
            density * plus(masked + unmasked, per_masked),
            (1 - density) * (plus(masked, per_run) + unmasked),
        )
    exceeded = 1 - np.cumsum(masked + unmasked)
    return int(np.argmax(exceeded < 1e-6))
