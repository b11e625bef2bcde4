"""A T5X checkpoint as a folder that CTranslate2 loads, made from the parameters themselves and compared with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import seqio
from tokenizers import Tokenizer

from t5xpg.base import files, private
from t5xpg.hf import card, checkpoints, sample_text, t5
from t5xpg.hf.compare import TEXTS, shifted
from t5xpg.hf.tokenizer import write as write_tokenizer
from t5xpg.model import pad
from t5xpg.roberta import Roberta
from t5xpg.vocabularies import sentinels

NEEDED = ("ctranslate2",)
QUANTIZATIONS = ("int8", "int8_float16", "int8_bfloat16", "int8_float32", "int16", "float16", "bfloat16")
INPUT_TOKENS, OUTPUT_TOKENS, BATCH = 256, 64, 8  # of each line that is compared; lines at a time
# Where the two choose different tokens, ours may find them at most this many nats apart: as likely but for rounding.
TIE = 1e-3


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How far CTranslate2's greedy tokens are ours.

    Attributes:
      lines: how many texts were compared.
      tokens: how many tokens we give for them.
      equal_lines, equal_tokens: of these, the lines whose tokens are all equal, and the tokens up to the first other.
      nats: how far our log likelihoods of the first other token of a line and of ours are apart; the most of all lines.
    """

    lines: int
    tokens: int
    equal_lines: int
    equal_tokens: int
    nats: float

    def __str__(self) -> str:
        lines = f"{self.lines:,} line{'s' * (self.lines != 1)} of text, {self.tokens:,} tokens"
        if self.equal_lines == self.lines:
            return f"the same greedy tokens for {lines}"
        return (
            f"of {lines}: {self.equal_lines:,} lines have the same greedy tokens, {self.equal_tokens:,} tokens come "
            f"before a line's first other one, which the checkpoint finds at most {self.nats:.1g} nats from its own"
        )


def export_model(
    source: str,
    out: str,
    *,
    gin_file: str | None = None,
    tokenizer: str | None = None,
    quantization: str | None = None,
    texts: Sequence[str] | None = None,
    trust: bool = False,
) -> dict[str, Comparison]:
    """Writes a T5 to `out`, a folder for ctranslate2.Translator with tokenizer.json and a model card (README.md).

    Rows of the embedding that no id of the vocabulary has are left out.

    Args:
      source, out, gin_file, tokenizer, trust: as for `hf.export_model`.
      quantization: one of QUANTIZATIONS; None keeps float32.
      texts: to compare on; lines of Python's documentation if None.

    Returns:
      {"float32": how far the unquantized model agrees, quantization: the same for the quantized one}.

    Raises:
      ImportError: what t5xpg[ct2] installs is missing.
      FileExistsError: `out` exists.
      ValueError: no such checkpoint, a model that CTranslate2 has no counterpart for, or other tokens in float32.
    """
    checkpoints.check_ready(NEEDED, "ct2")
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization is {quantization!r}; pass one of {', '.join(QUANTIZATIONS)}.")
    texts = sample_text.python_documentation() if texts is None else list(texts)
    with files.make_folder_whole(out, last="model.bin") as part:
        trained = checkpoints.read_trained(source, gin_file, tokenizer, trust)
        if isinstance(trained.module, Roberta):
            raise ValueError(f"{source} is a RoBERTa; CTranslate2 takes encoder-decoders here.")
        vocabulary = write_tokenizer(trained, part, compare_tokenizer)
        names = token_names(part, vocabulary.vocab_size)
        rows = [sentinels.encode(text, vocabulary)[:INPUT_TOKENS] for text in texts]
        ours = greedy(trained, rows)
        found = {}
        for kind in ("float32", quantization) if quantization else ("float32",):
            spec(trained, names, kind).save(str(part))
            found[kind] = compare(part, names, trained, rows, ours)
        if not found["float32"].nats <= TIE:
            raise ValueError(f"CTranslate2 gives other tokens, {found['float32']}. Nothing was written.")
        write_card(part, Path(out).name, trained, found)
    return found


def compare_tokenizer(folder: Path, vocabulary: seqio.Vocabulary) -> None:
    """Raises ValueError when the folder's tokenizer.json gives other ids than the vocabulary."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        ids, theirs = sentinels.encode(text, vocabulary), tokenizer.encode(text).ids
        if ids != theirs:
            raise ValueError(f"The tokenizer makes {theirs} of {text!r}, the vocabulary {ids}. Nothing was written.")


def token_names(folder: Path, count: int) -> list[str]:
    """Returns the name of each id in the folder's tokenizer.json."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.id_to_token(i) or f"<unused_{i}>" for i in range(count)]


# ---- CTranslate2's specification ----


def spec(trained: checkpoints.Trained, names: Sequence[str], kind: str):
    """Returns the TransformerSpec of a T5's parameters, ready to be saved.

    Args:
      trained: holds a T5 of any T5X network.
      names: of the ids, which are all that is kept of the embedding.
      kind: "float32" or one of QUANTIZATIONS.
    """
    from ctranslate2.specs import transformer_spec

    config = trained.module.config
    params = t5.unscanned(trained.params, getattr(config, "param_scan_axis", 1))
    activations = tuple(config.mlp_activations)
    result = transformer_spec.TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=True,
        activation=activation(activations),
        ffn_glu=len(activations) == 2,
        relative_attention_bias=True,
        rms_norm=True,
    )
    embedding = params["token_embedder/embedding"][: len(names)].copy()  # weights are quantized in place
    for stack, side in ((result.encoder, "encoder"), (result.decoder, "decoder")):
        embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embeddings.weight = embedding
        stack.scale_embeddings = False
        stack.layer_norm.gamma = params[f"{side}/{side}_norm/scale"]
        for i, layer in enumerate(stack.layer):
            set_layer(layer, params, side, i)
    if config.logits_via_embedding:
        result.decoder.projection.weight = embedding
        result.decoder.scale_outputs = config.emb_dim**-0.5
    else:
        result.decoder.projection.weight = params["decoder/logits_dense/kernel"].T[: len(names)].copy()
    result.register_source_vocabulary(list(names))
    result.register_target_vocabulary(list(names))
    result.config.bos_token = result.config.decoder_start_token = names[0]
    result.config.eos_token, result.config.unk_token = (
        names[trained.vocabulary.eos_id],
        names[trained.vocabulary.unk_id],
    )
    result.config.layer_norm_epsilon = 1e-6
    result.validate()
    result.optimize(quantization=kind)
    return result


def activation(activations: tuple[str, ...]):
    """Returns CTranslate2's name of a feed-forward layer's activation."""
    from ctranslate2.specs.common_spec import Activation

    t5.feed_forward(activations)  # raises ValueError for those that Hugging Face and CTranslate2 lack
    named = {"relu": Activation.RELU, "gelu_new": Activation.GELUTanh, "silu": Activation.SWISH}
    return named[t5.ACTIVATIONS[activations[0]]]


def set_layer(layer, params: Mapping[str, np.ndarray], side: str, i: int) -> None:
    """Sets the weights of layer `i` of the "encoder" or "decoder"."""
    ours = f"{side}/layers_{i}"
    own = "self_attention" if side == "decoder" else "attention"
    attention = layer.self_attention
    attention.layer_norm.gamma = params[f"{ours}/pre_{own}_layer_norm/scale"]
    attention.linear[0].weight = joined(params, f"{ours}/{own}", "query", "key", "value")
    attention.linear[1].weight = joined(params, f"{ours}/{own}", "out")
    owner = ours if f"{ours}/relpos_bias/rel_embedding" in params else side  # scanned layers may have their own
    bias = params[f"{owner}/relpos_bias/rel_embedding"]
    attention.relative_attention_bias = np.ascontiguousarray(bias.T)  # [buckets, heads]
    attention.relative_attention_max_distance = np.int32(128)
    attentions = [attention]
    if side == "decoder":
        cross, name = layer.attention, f"{ours}/encoder_decoder_attention"
        cross.layer_norm.gamma = params[f"{ours}/pre_cross_attention_layer_norm/scale"]
        cross.linear[0].weight = joined(params, name, "query")
        cross.linear[1].weight = joined(params, name, "key", "value")
        cross.linear[2].weight = joined(params, name, "out")
        attentions.append(cross)
    for one in attentions:
        one.queries_scale = np.float32(1.0)  # T5 does not divide by the square root of head_dim
    layer.ffn.layer_norm.gamma = params[f"{ours}/pre_mlp_layer_norm/scale"]
    gated = f"{ours}/mlp/wi_0/kernel" in params
    layer.ffn.linear_0.weight = joined(params, f"{ours}/mlp", "wi_0" if gated else "wi")
    if gated:
        layer.ffn.linear_0_noact.weight = joined(params, f"{ours}/mlp", "wi_1")
    layer.ffn.linear_1.weight = joined(params, f"{ours}/mlp", "wo")


def joined(params: Mapping[str, np.ndarray], name: str, *parts: str) -> np.ndarray:
    """Returns the kernels `name`/part, one after the other, as [outputs, inputs]."""
    return np.concatenate([params[f"{name}/{part}/kernel"].T for part in parts])


# ---- Whether it is the same model ----


def greedy(trained: checkpoints.Trained, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Returns our greedy tokens in float32 for each row of ids, without EOS."""
    from t5xpg.search import Search

    search = Search(temperature=0)
    found = run(trained, lambda model, params, batch: search(model, params, batch, None)[:, 0], rows)
    return [up_to(row, trained.vocabulary.eos_id) for row in found.tolist()]


def run(trained: checkpoints.Trained, step, rows: Sequence[Sequence[int]], decoded=None) -> np.ndarray:
    """Returns what `step(model, params, batch)` gives for each row of ids and what was decoded of it, in float32."""
    import jax

    from t5x import checkpoints as t5x_checkpoints
    from t5x import models

    module = trained.module.clone(config=trained.module.config.replace(dtype="float32"))
    model = models.EncoderDecoderModel(module, trained.vocabulary, trained.vocabulary, None)
    jitted = jax.jit(lambda params, batch: step(model, params, batch))
    params, found = jax.device_put(t5x_checkpoints.unflatten(trained.params)), []
    for start in range(0, len(rows), BATCH):
        targets = pad((decoded or [])[start : start + BATCH], (BATCH, OUTPUT_TOKENS))
        batch = {
            "encoder_input_tokens": pad(rows[start : start + BATCH], (BATCH, INPUT_TOKENS)),
            "decoder_input_tokens": shifted(targets),
            "decoder_target_tokens": np.ones_like(targets),  # a 0 among them would not be seen by those after it
        }
        with jax.default_matmul_precision("highest"):
            found.append(np.asarray(jitted(params, batch)))
    return np.concatenate(found)[: len(rows)]


def up_to(row: list[int], eos_id: int) -> list[int]:
    return row[: row.index(eos_id)] if eos_id in row else row


def compare(
    folder: Path,
    names: Sequence[str],
    trained: checkpoints.Trained,
    rows: Sequence[Sequence[int]],
    ours: Sequence[Sequence[int]],
) -> Comparison:
    """Compares what CTranslate2 finds with the folder, greedily, with `ours`; see `Comparison`."""
    import ctranslate2

    ids = {name: i for i, name in enumerate(names)}
    translator = ctranslate2.Translator(str(folder), device="cpu")
    results = translator.translate_batch(
        [[names[i] for i in row] for row in rows],
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=OUTPUT_TOKENS,
        max_input_length=0,
    )
    theirs = [[ids[name] for name in result.hypotheses[0]] for result in results]
    places = [first_difference(*pair) for pair in zip(ours, theirs, strict=True)]
    other = {i: at for i, at in enumerate(places) if at is not None}
    gaps = []
    if other:
        logits = run(trained, private.compute_logits, [rows[i] for i in other], [ours[i] for i in other])
        gaps = [
            gap(row, ours[i], theirs[i], other[i], trained.vocabulary.eos_id)
            for i, row in zip(other, logits, strict=True)
        ]
    return Comparison(
        lines=len(rows),
        tokens=sum(map(len, ours)),
        equal_lines=places.count(None),
        equal_tokens=sum(len(row) if at is None else at for row, at in zip(ours, places, strict=True)),
        nats=max(gaps, default=0.0),
    )


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Returns the place of the first token that differs, EOS included; None if all are equal."""
    if list(ours) == list(theirs):
        return None
    return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))


def gap(logits: np.ndarray, ours: Sequence[int], theirs: Sequence[int], at: int, eos_id: int) -> float:
    """Returns by how many nats our logits [tokens, vocab] find their token at place `at` other than ours."""
    first, second = (tokens[at] if at < len(tokens) else eos_id for tokens in (ours, theirs))
    return abs(float(logits[at, first] - logits[at, second]))


# ---- The model card ----

CARD = """---
library_name: ctranslate2
tags:
- ctranslate2
- t5xpg
---

# {name}

{described} Trained with t5xpg, T5X's way, for {step:,} steps, and converted for CTranslate2{quantized}.

## Use

```python
import ctranslate2
from tokenizers import Tokenizer

translator = ctranslate2.Translator("{name}")  # this folder
tokenizer = Tokenizer.from_file("{name}/tokenizer.json")
inputs = [tokenizer.encode("Call me <extra_id_0>.").tokens]
options = dict(beam_size=1, min_decoding_length=0, max_decoding_length=64, max_input_length=0)
best = translator.translate_batch(inputs, **options)
print(tokenizer.decode([tokenizer.token_to_id(token) for token in best[0].hypotheses[0]], skip_special_tokens=False))
```

## What was compared

Greedy search on the CPU, up to {inputs} tokens in and {outputs} out, with the T5X checkpoint in float32:

{claims}

Beam search ranks by other length penalties than T5X's, so that its beams need not be the same.
"""


def write_card(folder: Path, name: str, trained: checkpoints.Trained, found: Mapping[str, Comparison]) -> None:
    """Writes README.md, whose claims are those of `found`."""
    config = t5.hf_config(trained.module.config, False, trained.vocabulary.eos_id)
    kind = list(found)[-1]
    text = CARD.format(
        name=name,
        described=card.describe_t5(config),
        step=trained.step,
        quantized="" if kind == "float32" else f" with {kind} weights",
        inputs=INPUT_TOKENS,
        outputs=OUTPUT_TOKENS,
        claims="\n".join(f"* {kind}: {comparison}." for kind, comparison in found.items()),
    )
    files.write_whole(folder / "README.md", text)
