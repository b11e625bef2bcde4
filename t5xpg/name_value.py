"""NAME=VALUE and RECIPE.gin on the command line: as flags of T5X's programs, and checked for misspelt names."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t5xpg.base import files, nearest

DISTRIBUTED_FLAGS = {  # {T5X's flag: what clusters.join calls it}
    "--coordinator_address": "address",
    "--process_count": "count",
    "--process_index": "index",
    "--initialization_timeout": "timeout",
}
FLAGS_WITH_VALUE = {
    f"--{name}"
    for name in ("gin_file", "gin_bindings", "gin_search_paths", "tfds_data_dir", "seqio_additional_cache_dirs")
} | {"--shard_id", "--wandb", *DISTRIBUTED_FLAGS}
OWN_FLAGS = {"--allow_changes", "--multiprocess", "--wandb"}  # of the embedded engine's programs, not of T5X's
OTHER_FLAGS = {"--multiprocess_gpu"}
OWN_BINDINGS = {  # {a name that recipes can bind and T5X lacks: what it is}
    "train.allow_changes": "as --allow_changes",
    "train.num_predictions": "examples of each task that predictions.jsonl gets",
    "train.wandb": "as --wandb",
    "waiting.batch_limit.seconds": "how long to wait for a batch",
    "T5Config.fused_attention": "also of decoder_only's and scalable_t5's network",
    "T5Config.remat_policy": "T5X has it for scalable_t5's network alone",
    "T5Config.float32_attention_logits": "T5X has it for t5's network alone",
}
BINDINGS = {  # {a flag of other trainers: what does the same here}
    **dict.fromkeys(("steps", "max_steps", "train_steps", "num_train_steps"), "TRAIN_STEPS={}"),
    **dict.fromkeys(("batch_size", "train_batch_size"), "BATCH_SIZE={}"),
    "per_device_train_batch_size": "BATCH_SIZE={} (of all devices together)",
    **dict.fromkeys(
        ("learning_rate", "lr", "base_learning_rate"), "utils.create_learning_rate_scheduler.base_learning_rate={}"
    ),
    "warmup_steps": "utils.create_learning_rate_scheduler.warmup_steps={}",
    "num_train_epochs": "TRAIN_STEPS=STEPS (`t5xpg inspect` says how many steps an epoch takes)",
    "gradient_accumulation_steps": "trainer.Trainer.num_microbatches={}",
    "save_steps": "utils.SaveCheckpointConfig.period={}",
    "save_total_limit": "utils.SaveCheckpointConfig.keep={}",
    "eval_steps": "train.eval_period={}",
    "logging_steps": "train.stats_period={}",
    "weight_decay": "optimizers.adamw.weight_decay={} in a recipe with AdamW, as RoBERTa's; Adafactor's "
    "is adafactor.Adafactor.weight_decay_rate, times the learning rate with weight_decay_rate_lr_exponent = 1",
    **dict.fromkeys(
        ("bf16", "fp16"),
        "network.T5Config.dtype=bfloat16 (RoBERTa's: roberta.RobertaConfig.dtype; larger recipes have it)",
    ),
    "mlm_probability": "objectives.SpanCorruption.noise_density={0} in a recipe with objective = "
    "@objectives.SpanCorruption(), as configs/byt5_tiny.gin, and objectives.MaskedLM.noise_density={0} in RoBERTa's",
    **dict.fromkeys(
        ("max_seq_length", "max_length", "max_source_length"),
        "TASK_FEATURE_LENGTHS=\"{{'inputs': {0}, 'targets': …}}\" (RoBERTa's: \"{{'inputs': {0}, 'targets': {0}, "
        "'selected': {0}}}\"; `t5xpg check` says what does not go with it)",
    ),
    "max_target_length": "TASK_FEATURE_LENGTHS=\"{{'inputs': …, 'targets': {}}}\"",
    **dict.fromkeys(("train_file", "validation_file"), "FILES=… (with {{split}} in it, for train and validation)"),
    "dataset_name": "FILES=… after `t5xpg prepare wikitext --dataset {} --name NAME`",
    "model_name_or_path": "INITIAL_CHECKPOINT_PATH=… after `hf download {} --local-dir FOLDER` and `t5xpg import hf "
    "FOLDER OUT`, which prints the command (T5 and mT5 alone)",
    "tokenizer_name": "VOCABULARY_FILE=…, RoBERTa's TOKENIZER_FILE=… (`t5xpg tokenizer train` makes either; ByT5 needs "
    "none)",
    "resume_from_checkpoint": "nothing: with the MODEL_DIR of before a run goes on",
    "model_dir": "MODEL_DIR={}",
    "output_dir": "MODEL_DIR={0} (for eval EVAL_OUTPUT_DIR={0}, for infer INFER_OUTPUT_DIR={0})",
    "seed": "RANDOM_SEED={}",
}


def program_flags(arguments: Sequence[str], recipes: Path) -> list[str]:
    """Rewrites recipes and `NAME=VALUE` to T5X's flags, and lets gin find what ships in `recipes`/configs.

    Raises:
      ValueError: an argument is neither, or a flag of BINDINGS.
    """
    search_paths = [".", str(recipes)]
    flags = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument in FLAGS_WITH_VALUE:
            argument = f"{argument}={next(remaining, '')}"
        flag, _, value = argument.partition("=")
        if flag.startswith("-") and (binding := BINDINGS.get(flag.lstrip("-").replace("-", "_"))):
            written = binding.format(shlex.quote(value or next(remaining, "VALUE")))
            raise ValueError(f"{flag} is not a flag of T5X's programs; write {written}")
        if argument.startswith("--gin_search_paths="):
            search_paths = [*argument.partition("=")[2].split(","), search_paths[-1]]
        elif argument.startswith("-"):
            flags.append(argument)
        elif argument.endswith(".gin") and "=" not in argument:
            flags.append(f"--gin_file={argument}")
        elif "=" in argument:
            name = re.sub(r"^\w+_script\.", "", flag)  # what recipes import a program as; gin has it by its own name
            flags.append(f"--gin_bindings={name} = {gin_value(name, value)}")
        else:
            ships = files.is_file(recipes / "configs" / f"{argument}.gin")
            hint = f"; did you mean configs/{argument}.gin?" if ships else "."
            if not ships and flags and re.fullmatch(r"--?[\w-]+", flags[-1]):
                hint = (
                    f", and {flags[-1]} takes none: T5X's flags are written --flag=value, what can be set in a recipe "
                    "is NAME=VALUE, and `t5xpg recipes show RECIPE.gin` lists it"
                )
            raise ValueError(f"{argument!r} is neither a recipe (….gin) nor a binding (NAME=VALUE){hint}")
    return [f"--gin_search_paths={','.join(search_paths)}", *flags]


def gin_value(name: str, text: str) -> str:
    """Quotes `text` for gin unless it is a gin value already: a literal, a %MACRO, a @reference, a list of such.

    A number in the place of a path is a path: MODEL_DIR=2024 is a folder.
    """
    if re.match(r"[%@]", text):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text if re.match(r"[\[{(].*[%@]\w.*[\]})]$", text) else repr(text)
    is_path = re.search(r"(DIR|PATH|FILES?)$", name) is not None
    return repr(text) if is_path and isinstance(value, int | float) else text


def without_distributed_flags(flags: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Returns the other flags, and the arguments of clusters.join that these give.

    Raises:
      ValueError: a number is not one.
    """
    left: list[str] = []
    given: dict[str, Any] = {}
    for flag in flags:
        name, _, value = flag.partition("=")
        if name not in DISTRIBUTED_FLAGS:
            left.append(flag)
        elif name != "--coordinator_address" and not value.isdecimal():
            raise ValueError(f"{flag} is not a number.")
        else:
            given[DISTRIBUTED_FLAGS[name]] = value if name == "--coordinator_address" else int(value)
    return left, given


def gin_arguments(flags: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Returns (files, bindings, search paths) of a program's flags; its other flags are left out."""
    given: dict[str, list[str]] = {"gin_file": [], "gin_bindings": [], "gin_search_paths": []}
    for flag in flags:
        name, _, value = flag.partition("=")
        if name.lstrip("-") in given:
            given[name.lstrip("-")].append(value)
        elif name not in FLAGS_WITH_VALUE | OWN_FLAGS | OTHER_FLAGS:
            raise ValueError(f"{flag} is not a flag of T5X's programs.")
    paths = [path for value in given["gin_search_paths"] for path in value.split(",")]
    engine = importlib.import_module("t5x").__path__[0]
    return given["gin_file"], given["gin_bindings"], [*paths, str(Path(engine).parent)]


def given_bindings(flags: Sequence[str]) -> list[str]:
    """Returns the gin bindings of a program's flags."""
    prefixes = ("--gin_bindings=", "--gin.")
    return [flag.removeprefix(prefix) for flag in flags for prefix in prefixes if flag.startswith(prefix)]


def check_macros_when_parsed(bindings: Sequence[str]) -> None:
    """Makes gin check the macros of `bindings` when either engine's program has parsed its files."""
    import gin

    gin.config.register_finalize_hook(lambda _: check_macros(bindings))


def check_macros(bindings: Sequence[str]) -> None:
    """Checks the macros of `NAME = value` bindings; gin itself lets a misspelt TRAIN_STEPS pass.

    Raises:
      ValueError: the parsed configuration does not refer to one, but does to a similar name, or it is one of BINDINGS.
        Without either it only prints a warning.
    """
    import gin

    used = set(re.findall(r"%(\w+)", gin.config_str()))
    given = [match.groups() for binding in bindings if (match := re.match(r"\s*(\w+)\s*=\s*(.*)", binding))]
    for name, value in given:
        if name in used:
            continue
        written = BINDINGS.get(name.casefold(), "")
        if written and name.casefold() not in map(str.casefold, used) and not written.startswith(f"{name}="):
            raise ValueError(f"The recipe has no use for {name}; write {written.format(value)}")
        if hint := nearest.hint(name, used):
            raise ValueError(f"The recipe has no use for {name}{hint}")
        print(f"Warning: the recipe has no use for {name}; it uses {', '.join(sorted(used))}.", file=sys.stderr)
