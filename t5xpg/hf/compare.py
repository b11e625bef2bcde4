"""Whether a Hugging Face folder holds the same model as flax parameters: both are run on the same tokens.

Everything is computed in float32 on made-up tokens, which reach every row of the embedding, and positions beyond the
largest distance that the relative position buckets tell apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from t5xpg.base import private
from t5xpg.hf import t5
from t5xpg.hf.folder import OURS, blamed_on
from t5xpg.roberta import Roberta
from t5xpg.vocabularies import sentinels

Outputs = dict[str, np.ndarray]

TOLERANCE = 1e-4
LENGTH = 160  # buckets end at distance 128
BEAMS, DECODED = 4, 16
LOADING = {**OURS, "use_safetensors": True}
TEXTS = ("", "The quick <extra_id_0> fox, <extra_id_1> 3.14!", " Größe\t中文 🙂\n</s> ")


def compare(folder: Path, module, params: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Compares logits, and for a T5 one beam search.

    Beams are searched without an end token and without a length penalty, because the two searches differ in how they
    rank hypotheses that have ended; hypotheses may differ where both are as likely.

    Args:
      folder: a Hugging Face model.
      module: T5X's network.Transformer, or a roberta.Roberta.
      params: {"encoder/…": array}, as flax names them.

    Returns:
      {"logits": the largest difference, "largest_logit": the largest logit}, and for a T5 "beam_search": the largest
      difference between the log likelihoods of the hypotheses found.

    Raises:
      ValueError: logits differ by more than 1e-4 of the largest (of 1 if that is smaller), or hypotheses by more than
        ten times that.
    """
    outputs = roberta_outputs if isinstance(module, Roberta) else t5_outputs
    ours, theirs = outputs(folder, module, params)
    found = {name: float(np.abs(ours[name] - theirs[name]).max()) for name in ours if name != "ids"}
    found["largest_logit"] = float(np.abs(ours["logits"]).max())
    allowed = TOLERANCE * max(1.0, found["largest_logit"])
    if not found["logits"] <= allowed:
        raise ValueError(
            f"The two models differ: logits by {found['logits']:.2g}, where {allowed:.2g} is allowed. Nothing was "
            "written."
        )
    if "ids" in ours and not (np.array_equal(ours["ids"], theirs["ids"]) or found["beam_search"] <= 10 * allowed):
        raise ValueError(
            f"The two models have equal logits and yet generate differently, {ours['ids'].tolist()} and "
            f"{theirs['ids'].tolist()}. Nothing was written."
        )
    return found


def made_up_tokens(shape: tuple[int, ...], vocab_size: int) -> np.ndarray:
    """Returns ids [..., batch, length]; of the first batch, the second half of the second row is padding."""
    tokens = np.random.default_rng(0).integers(2, vocab_size, shape, dtype=np.int32)
    tokens.reshape(-1, *shape[-2:])[0, 1, shape[-1] // 2 :] = 0
    return tokens


def roberta_outputs(folder: Path, module: Roberta, params: Mapping[str, np.ndarray]) -> tuple[Outputs, Outputs]:
    """Returns {"logits": [tokens, vocab]} of the module and of what `transformers` loads, padding left out."""
    import jax
    import jax.numpy as jnp
    import torch
    from flax import traverse_util
    from transformers import AutoModelForMaskedLM

    tokens = made_up_tokens((2, module.config.max_length), module.config.vocab_size)
    module = module.clone(config=dataclasses.replace(module.config, dtype=jnp.float32))
    nested = traverse_util.unflatten_dict(dict(params), sep="/")
    with jax.default_matmul_precision("highest"):
        ours = jax.jit(lambda p, t: module.apply({"params": p}, t, enable_dropout=False))(nested, tokens)
    with quiet_transformers(), torch.no_grad():
        model = AutoModelForMaskedLM.from_pretrained(folder, **LOADING, dtype=torch.float32).eval()
        ids = torch.tensor(tokens, dtype=torch.long)
        theirs = model(ids, attention_mask=(ids != 0).long()).logits.numpy()
    real = tokens != 0
    return {"logits": np.asarray(ours)[real]}, {"logits": theirs[real]}


def t5_outputs(folder: Path, module, params: Mapping[str, np.ndarray]) -> tuple[Outputs, Outputs]:
    """Returns `jax_outputs` and `torch_outputs` for the same tokens."""
    inputs, targets = made_up_tokens((2, 2, LENGTH), module.config.vocab_size)  # each [batch, length]
    return jax_outputs(module, params, inputs, targets), torch_outputs(folder, inputs, targets)


def jax_outputs(module, params: Mapping[str, np.ndarray], inputs, targets) -> Outputs:
    """Returns {"logits": [batch, length, vocab]} and the best beam's {"ids": [batch, decoded], "beam_search": its log
    likelihood [batch]}."""
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
        return {"logits": private.compute_logits(model, params, batch), "ids": ids, "beam_search": aux["scores"]}

    with jax.default_matmul_precision("highest"):
        return jax.tree.map(np.asarray, jax.jit(run)(checkpoints.unflatten(params)))


def torch_outputs(folder: Path, inputs, targets) -> Outputs:
    """As `jax_outputs`, for the model that `transformers` loads from `folder`."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    with quiet_transformers(), torch.no_grad():
        model = AutoModelForSeq2SeqLM.from_pretrained(folder, **LOADING, dtype=torch.float32).eval()
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
            use_cache=t5.may_cache(model.config.to_dict()),
            # A T5 made from a bare T5Config has none; T5X's start token is 0.
            decoder_start_token_id=model.generation_config.decoder_start_token_id or 0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    return {
        "logits": logits.numpy(),
        "ids": best.sequences[:, 1:].numpy(),
        "beam_search": best.sequences_scores.numpy(),
    }


def shifted(targets: np.ndarray) -> np.ndarray:
    """Returns what the decoder sees: the targets after the start token, 0."""
    return np.pad(targets[:, :-1], ((0, 0), (1, 0)))


def load_tokenizer(folder: Path):
    """Returns what AutoTokenizer makes of a folder; no code of the folder's own is run."""
    from transformers import AutoTokenizer

    names = [name for name in ("tokenizer.json", "spiece.model") if (folder / name).is_file()]
    with quiet_transformers(), blamed_on(folder / (names or ["tokenizer_config.json"])[0]):
        return AutoTokenizer.from_pretrained(folder, **OURS)


def compare_tokenizer(folder: Path, vocabulary, texts: Sequence[str] = TEXTS) -> None:
    """Raises ValueError when AutoTokenizer gives other ids than the vocabulary."""
    tokenizer = load_tokenizer(folder)
    for text in texts:
        ids, theirs = sentinels.encode(text, vocabulary), tokenizer(text).input_ids
        if ids != theirs:
            raise ValueError(
                f"{folder}: the tokenizer makes {theirs} of {text!r}, the vocabulary {ids}. Nothing was written."
            )


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hides short-lived progress bars, and the warning that an untied T5's config.json cannot avoid."""
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
