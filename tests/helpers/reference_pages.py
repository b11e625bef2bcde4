"""docs/reference/verbs.md and gin_names.md, made from the code; tests/docs/test_reference.py compares them.

PYTHONPATH=tests/helpers python tests/helpers/reference_pages.py    writes them anew
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
VERBS = """# Verbs

What `t5xpg VERB --help` prints.
"""
GIN_NAMES = """# Gin names

What gin files and `NAME=VALUE` on the command line bind. A name is written as `module.Name.parameter`; in a gin file
`train_script.train.eval_period`, on the command line `train.eval_period`. `t5xpg recipes show RECIPE` prints what one
recipe lets you set, with its values.

Macros are names in capitals. Those of T5X's runs, with their defaults; *required* is to be given:
"""
NO_MACROS = "no macros; include it for its bindings"
RUNS = ("pretrain", "finetune", "eval", "infer")
GROUPS: dict[str, tuple[str, ...]] = {  # {heading: what gin binds, as gin writes it}
    "Programs": ("train.train", "eval.evaluate", "infer.infer"),
    "Data": ("utils.DatasetConfig", "tasks.jsonl_task", "tasks.mixture", "qa.squad_task"),
    "Objectives": tuple(
        f"objectives.{name}"
        for name in ("SpanCorruption", "IidDenoising", "PrefixLM", "FullLM", "UL2", "MaskedLM", "Supervised")
    ),
    "Vocabularies": tuple(f"vocabularies.{name}" for name in ("byte_vocabulary", "sentencepiece", "byte_level_bpe")),
    "Checkpoints": ("utils.SaveCheckpointConfig", "utils.RestoreCheckpointConfig", "checkpoints.SaveBestCheckpointer"),
    "Training": ("trainer.Trainer", "utils.create_learning_rate_scheduler", "schedules.linear_decay_factor"),
    "Optimizers": ("adafactor.Adafactor", "optimizers.adamw"),
    "Models": ("models.EncoderDecoderModel", "models.DecoderOnlyModel", "mlm.EncoderOnlyModel"),
    "Networks": ("network.T5Config", "roberta.RobertaConfig"),
    "Decoding": ("decoding.beam_search", "decoding.temperature_sample"),
    "Partitioning": ("partitioning.PjitPartitioner", "partitioning.standard_logical_axis_rules"),
}
GIVEN = {  # {function: the arguments that a program gives}
    "Trainer": ("model", "train_state", "partitioner", "eval_names", "summary_dir", "train_state_axes", "rng"),
    "SaveBestCheckpointer": ("train_state", "partitioner", "checkpoints_dir", "dataset_iterator", "keep"),
    "beam_search": ("inputs", "cache", "tokens_to_logits", "eos_id", "cache_offset", "num_decodes"),
    "temperature_sample": ("inputs", "cache", "tokens_to_logits", "eos_id", "cache_offset", "num_decodes"),
}
MODEL = {  # what T5X's models have in common
    "module": "the network: @network.Transformer()",
    "input_vocabulary": "of the inputs",
    "output_vocabulary": "of the targets",
    "vocabulary": "of inputs and targets",
    "optimizer_def": "@adafactor.Adafactor(), or one of optimizers",
    "decode_fn": "how text is generated: @decoding.beam_search or @decoding.temperature_sample",
    "feature_converter_cls": "SeqIO's, in place of the model's own",
    "label_smoothing": "share of the target's probability that is spread over all ids",
    "z_loss": "weight of log(Z)², which keeps logits small",
    "loss_normalizing_factor": "what the sum over a batch is divided by: a number, None, 'NUM_REAL_TARGET_TOKENS', "
    "'NUM_TOTAL_TARGET_TOKENS' or 'AVERAGE_PER_SEQUENCE'",
    "default_decoder_params": "arguments of decode_fn where nobody gives others",
    "inputs_bidirectional_attention": "whether the inputs' positions see each other, as a prefix LM's do",
}
NOTES = {  # {function: {parameter: what its docstring does not say}}
    "Trainer": {
        "learning_rate_fn": "@utils.create_learning_rate_scheduler()",
        "num_microbatches": "parts in which a batch is computed, which take less memory; None is one",
        "weight_metrics_computer": "@trainer.WeightMetricsComputer() logs norms of weights, gradients and updates",
    },
    "linear_decay_factor": {
        "total_steps": "the step at which the rate is 0",
        "warmup_steps": "steps over which it rises",
    },
    "byte_vocabulary": {"extra_ids": "sentinels after the bytes; ByT5 itself has 0"},
    "byte_level_bpe": {"path": "the tokenizer.json that `t5xpg tokenizer train` writes; a URL too"},
    "SaveBestCheckpointer": {
        "metric_name_to_monitor": "train/NAME, training_eval/TASK/NAME or inference_eval/TASK/NAME",
        "metric_mode": "'max' or 'min'",
        "keep_checkpoints_without_metrics": "whether those stay that were not evaluated",
        "force_keep_period": "steps whose multiples are kept whatever their metric",
        "save_dtype": "of the parameters in the files",
        "restore_dtype": "of the parameters when restored",
        "keep_dataset_checkpoints": "as in SaveCheckpointConfig",
    },
    "T5Config": {
        "emb_dim": "width",
        "num_encoder_layers": "layers of the encoder",
        "num_decoder_layers": "layers of the decoder",
        "mlp_dim": "width of the hidden layer of an MLP",
        "dropout_rate": "share of activations set to 0 in training; recipes bind it to DROPOUT_RATE",
    },
    "RobertaConfig": {"num_layers": "layers", "mlp_dim": "width of an MLP", "layer_norm_epsilon": "of its norms"},
    "PjitPartitioner": {
        "num_partitions": "devices that share each layer (the axis model); the others divide the batch",
        "model_parallel_submesh": "the same as TPU axes (x, y, z, cores)",
        "backend": "'cpu', 'gpu' or 'tpu'; None is JAX's first",
        "ici_mesh_shape": "the mesh within a slice, given as it is",
        "dcn_mesh_shape": "the mesh of slices",
        "logical_axis_rules": "@partitioning.standard_logical_axis_rules()",
        "params_on_devices": "for T5X's gin files; parameters are always on the devices",
    },
    "standard_logical_axis_rules": {
        "activation_partitioning_dims": "2 divides activations' width over the axis model",
        "parameter_partitioning_dims": "2 divides parameters over the axis data too",
        "additional_rules": "(logical axis, mesh axis) pairs after the standard ones",
    },
    "EncoderDecoderModel": MODEL,
    "DecoderOnlyModel": MODEL,
    "EncoderOnlyModel": MODEL,
}
OURS = ("tasks", "qa", "objectives", "vocabularies", "schedules", "mlm", "roberta")


# ---- Verbs ----


def verbs() -> str:
    from t5xpg.cli import main

    os.environ["COLUMNS"] = "110"
    return "\n".join([VERBS, *(section(parser) for parser in leaves(main.make_parser()))])


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yields the parsers of all verbs that have none of their own, in their order."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for name in dict.fromkeys(name for action in below for name in action.choices):
        yield from leaves(below[0].choices[name])


def section(parser: argparse.ArgumentParser) -> str:
    return f"## {parser.prog}\n\n```text\n{parser.format_help().rstrip()}\n```\n"


# ---- Gin names ----


def gin_names() -> str:
    lines = [GIN_NAMES]
    for run in RUNS:
        lines += [f"## runs/{run}.gin", "", "| macro | default | |", "|---|---|---|", *macros(run), ""]
    for heading, names in GROUPS.items():
        lines += [f"## {heading}", ""]
        for name in names:
            lines += [f"### {name}", "", *table(find(name)), ""]
    return "\n".join(lines)


def macros(run: str) -> list[str]:
    from t5xpg import gin_text

    path = gin_text.find(f"t5x/configs/runs/{run}.gin", gin_text.t5x_root())
    found = [binding for binding in gin_text.read(path).values() if binding.is_macro]
    rows = [(each.name, "*required*" if each.is_required else f"`{each.value}`", each.note) for each in found]
    return [f"| `{name}` | {value} | {escaped(note)} |" for name, value, note in rows]


def find(name: str) -> Callable:
    import importlib

    module, _, attribute = name.partition(".")
    package = "t5x.examples.t5" if module == "network" else "t5xpg" if module in OURS else "t5x"
    return getattr(importlib.import_module(f"{package}.{module}"), attribute)


def table(function: Callable) -> list[str]:
    notes = documented(function)
    return ["| parameter | default | |", "|---|---|---|", *(row(each, notes) for each in parameters(function))]


def parameters(function: Callable) -> list[inspect.Parameter]:
    """Returns those that gin may bind: a program gives the others."""
    given = inspect.signature(function).parameters.values()
    bound = (each for each in given if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD))
    return [each for each in bound if each.name not in GIVEN.get(function.__name__, ())]


def row(parameter: inspect.Parameter, notes: dict[str, str]) -> str:
    default = "*required*" if parameter.default is parameter.empty else f"`{shown(parameter.default)}`"
    return f"| `{parameter.name}` | {default} | {escaped(notes.get(parameter.name, ''))} |"


def shown(default: object) -> str:
    if callable(default):
        return f"@{default.__name__}"
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", repr(default))
    return re.sub(r" at 0x\w+", "", text).replace("|", "\\|")


def documented(function: Callable) -> dict[str, str]:
    """Returns {parameter: what the docstring's Args or Attributes say of it}."""
    notes = dict(NOTES.get(function.__name__, {}))
    for text in [inspect.getdoc(function) or "", inspect.getdoc(getattr(function, "__init__", None)) or ""]:
        match = re.search(r"^(?:Args|Attributes):\n((?:  .*\n?|\n)*)", text, re.MULTILINE)
        for entry in re.split(r"\n(?=\S)", textwrap.dedent(match[1]).rstrip()) if match else []:
            names, _, note = entry.strip().partition(": ")
            for name in names.split(", "):
                notes.setdefault(name.strip(" *"), " ".join(note.split()))
    return notes


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


PAGES = {"verbs.md": verbs, "gin_names.md": gin_names}


if __name__ == "__main__":
    import t5xpg  # noqa: F401  makes `import t5x` answerable

    for name, make in PAGES.items():
        (REFERENCE / name).write_text(make().rstrip() + "\n", encoding="utf-8")
