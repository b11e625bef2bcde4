"""Whether a Hugging Face folder holds the same model as T5X's parameters: both are run on the same tokens.

Everything is computed in float32 on made-up tokens, which reach every row of the embedding, and positions beyond the
largest distance that the relative position buckets tell apart.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from t5xpg import hf_weights

TOLERANCE = 1e-4
LENGTH = 160  # buckets end at distance 128
BEAMS, DECODED = 4, 16
TEXTS = ("", "The quick <extra_id_0> fox, <extra_id_1> 3.14!", " Größe\t中文 🙂\n</s> ")


def compare(folder: Path, module, params: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Compares logits and one beam search.

    Beams are searched without an end token and without a length penalty, because the two searches differ in how they
    rank hypotheses that have ended; hypotheses may differ where both are as likely.

    Args:
      folder: a Hugging Face model.
      module: T5X's network.Transformer.
      params: {"encoder/…": array}, as T5X names them.

    Returns:
      {"logits": the largest difference, "largest_logit": the largest logit, "beam_search": the largest difference of
      the log likelihoods of what both found}.

    Raises:
      ValueError: logits differ by more than 1e-4 of the largest (of 1 if that is smaller), or hypotheses by more than
        ten times that.
    """
    rng = np.random.default_rng(0)
    vocab_size = module.config.vocab_size
    inputs, targets = rng.integers(2, vocab_size, (2, 2, LENGTH), dtype=np.int32)  # each [batch, length]
    inputs[1, LENGTH // 2 :] = 0  # padding
    logits, ids, scores = jax_outputs(module, params, inputs, targets)
    their_logits, their_ids, their_scores = torch_outputs(folder, inputs, targets)
    found = {
        "logits": float(np.abs(logits - their_logits).max()),
        "largest_logit": float(np.abs(logits).max()),
        "beam_search": float(np.abs(scores - their_scores).max()),
    }
    allowed = TOLERANCE * max(1.0, found["largest_logit"])
    if not found["logits"] <= allowed:
        raise ValueError(
            f"The two models differ: logits by {found['logits']:.2g}, where {allowed:.2g} is allowed. Nothing was "
            "written."
        )
    if not (np.array_equal(ids, their_ids) or found["beam_search"] <= 10 * allowed):
        raise ValueError(
            f"The two models have equal logits and yet generate differently, {ids.tolist()} and {their_ids.tolist()}. "
            "Nothing was written."
        )
    return found


def jax_outputs(module, params: Mapping[str, np.ndarray], inputs, targets) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns logits [batch, length, vocab], and the best beam's ids [batch, decoded] and log likelihoods [batch]."""
    import jax
    import jax.numpy as jnp
    import seqio

    from t5x import checkpoints, decoding, models

    vocabulary = seqio.PassThroughVocabulary(module.config.vocab_size)
    module = module.clone(config=module.config.replace(dtype=jnp.float32))
    model = models.EncoderDecoderModel(module, vocabulary, vocabulary, None, decode_fn=decoding.beam_search)
    never = module.config.vocab_size  # an id that does not occur, as end token

    def run(params):
        batch = {
            "encoder_input_tokens": inputs,
            "decoder_target_tokens": targets,
            "decoder_input_tokens": shifted(targets),
        }
        prompt = {**batch, "decoder_input_tokens": np.zeros((len(inputs), DECODED), np.int32)}
        ids, aux = model.predict_batch_with_aux(
            params, prompt, num_decodes=BEAMS, decoder_params={"alpha": 0.0, "eos_id": never}
        )
        return model._compute_logits(params, batch), ids, aux["scores"]

    with jax.default_matmul_precision("highest"):
        return tuple(np.asarray(x) for x in jax.jit(run)(checkpoints.unflatten(params)))


def torch_outputs(folder: Path, inputs, targets) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `jax_outputs`, of the model that `transformers` loads from `folder`."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    with quiet_transformers(), torch.no_grad():
        model = AutoModelForSeq2SeqLM.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, dtype=torch.float32
        ).eval()
        tokens = torch.tensor(inputs, dtype=torch.long)
        given = {"input_ids": tokens, "attention_mask": (tokens != 0).long()}
        logits = model(**given, decoder_input_ids=torch.tensor(shifted(targets), dtype=torch.long)).logits
        best = model.generate(
            **given,
            num_beams=BEAMS,
            max_new_tokens=DECODED,
            do_sample=False,
            length_penalty=0.0,
            eos_token_id=None,
            use_cache=hf_weights.may_cache(model.config.to_dict()),
            # A T5 made from a bare T5Config has none; T5X's start token is 0.
            decoder_start_token_id=model.generation_config.decoder_start_token_id or 0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    return logits.numpy(), best.sequences[:, 1:].numpy(), best.sequences_scores.numpy()


def shifted(targets: np.ndarray) -> np.ndarray:
    """What the decoder sees: the targets after the start token, 0."""
    return np.pad(targets[:, :-1], ((0, 0), (1, 0)))


def compare_tokenizer(folder: Path, vocabulary) -> None:
    """Raises ValueError when AutoTokenizer gives other ids than the vocabulary, or another text back."""
    from transformers import AutoTokenizer

    from t5xpg import model

    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for text in TEXTS:
        ids, theirs = model.encode(text, vocabulary), tokenizer(text).input_ids
        if ids != theirs:
            raise ValueError(f"The tokenizer makes {theirs} of {text!r}, the vocabulary {ids}. Nothing was written.")


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keeps back progress bars of a second, and the warning that untied T5s get for what config.json must say."""
    from transformers.utils import logging as their_logging

    level, bars = their_logging.get_verbosity(), their_logging.is_progress_bar_enabled()
    their_logging.set_verbosity(logging.ERROR)
    their_logging.disable_progress_bar()
    try:
        yield
    finally:
        their_logging.set_verbosity(level)
        if bars:
            their_logging.enable_progress_bar()
