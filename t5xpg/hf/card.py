"""The model card of an exported model: what it is, what its run measured, how to load it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5xpg.base import files

FAMILIES = {"t5": "T5", "mt5": "mT5", "umt5": "umT5"}
USE_T5 = """from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("{name}")  # the path of this folder
tokenizer = AutoTokenizer.from_pretrained("{name}")
inputs = tokenizer("Call me <extra_id_0>.", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))"""
USE_ROBERTA = """from transformers import pipeline

pipeline("fill-mask", "{name}")("Call me <mask>.")  # the path of this folder"""
# The metrics to list of an evaluation with teacher forcing, in this order, if a run has them.
TAGS = ("nats_per_token", "perplexity", "bits_per_byte", "accuracy")
TAGS_OF_T5X = ("accuracy", "loss_per_nonpadding_target_token")


def write(folder: Path, name: str, step: int, model_dir: str, logits: float, largest_logit: float) -> None:
    """Writes README.md.

    Args:
      folder: the model's; holds model.safetensors and config.json.
      name: of the model.
      step: the checkpoint's.
      model_dir: the run, whose evaluations are listed.
      logits, largest_logit: the largest difference between the two models' logits, and the largest logit.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    masked = config["model_type"] == "roberta"
    forced = teacher_forced(model_dir, step)
    rows = [*forced, *generated(model_dir, step)]
    table = ["| task | metric | step | value |", "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    (folder / "README.md").write_text(
        f"""---
library_name: transformers
pipeline_tag: {"fill-mask" if masked else "text2text-generation"}
tags:
- {config["model_type"]}
- t5xpg
---

# {name}

{describe_roberta(config) if masked else describe_t5(config)} Trained with t5xpg, T5X's way, for {step:,} steps.

## Evaluation

{chr(10).join(table) if rows else "The run has no evaluation up to this step."}
{measured_in_training(forced)}
## Use

```python
{(USE_ROBERTA if masked else USE_T5).format(name=name)}
```

It needs transformers 5. On the same tokens its logits and those of the T5X checkpoint, in float32, are at most
{logits:.1e} apart (the largest is {largest_logit:.1f}){"" if masked else ", and a search with 4 beams finds the same"}.
""",
        encoding="utf-8",
    )


def describe_t5(config: Mapping[str, Any]) -> str:
    """Returns "A T5 with 2 encoder and 1 decoder layers …"."""
    return (
        f"A {FAMILIES[config['model_type']]} with {config['num_layers']} encoder and {config['num_decoder_layers']} "
        f"decoder layers of {config['num_heads']} heads, width {config['d_model']}, feed-forward width "
        f"{config['d_ff']} ({config['feed_forward_proj']}) and {config['vocab_size']:,} embeddings."
    )


def describe_roberta(config: Mapping[str, Any]) -> str:
    """Returns "A RoBERTa with 12 layers …"."""
    return (
        f"A RoBERTa with {config['num_hidden_layers']} layers of {config['num_attention_heads']} heads, width "
        f"{config['hidden_size']}, feed-forward width {config['intermediate_size']} and {config['vocab_size']:,} "
        "embeddings."
    )


def teacher_forced(model_dir: str, step: int) -> list[tuple[str, str, str, str]]:
    """Returns (task, metric, step, value) of each task's last training_eval up to `step`."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    rows = []
    parent = os.path.join(model_dir, "training_eval")
    for task in [name for name in files.names_in(parent) if files.is_folder(os.path.join(parent, name))]:
        with files.local_copy(os.path.join(parent, task)) as folder:
            events = EventAccumulator(folder, size_guidance={"tensors": 0}).Reload()
        found = events.Tags()["tensors"]
        for tag in [tag for tag in (TAGS if TAGS[0] in found else TAGS_OF_T5X) if tag in found]:
            known = [event for event in events.Tensors(tag) if event.step <= step]
            if known:
                value = float(make_ndarray(known[-1].tensor_proto))
                rows.append((task, tag, f"{known[-1].step:,}", f"{value:.4f}"))
    return rows


def measured_in_training(rows: list[tuple[str, str, str, str]]) -> str:
    """Returns a paragraph on what `teacher_forced` found, or nothing where that is nothing."""
    names = ", ".join(dict.fromkeys(metric for _, metric, _, _ in rows))
    split = "of the first batches of a task's split, as many as the run's `train.eval_steps`, measured as it trained."
    return f"\n{names}: {split}\n" if rows else ""


def generated(model_dir: str, step: int) -> list[tuple[str, str, str, str]]:
    """Returns (task, metric, step, value) of each task's last inference_eval up to `step`."""
    rows = []
    parent, end = os.path.join(model_dir, "inference_eval"), "-metrics.jsonl"
    for name in [name for name in files.names_in(parent) if name.endswith(end)]:
        lines = [json.loads(line) for line in files.read_text(os.path.join(parent, name)).splitlines()]
        task, known = name.removesuffix(end), [line for line in lines if line["step"] <= step]
        for last in known[-1:]:
            at = f"{last.pop('step'):,}"
            rows += [(task, metric, at, f"{value:.4f}") for metric, value in last.items()]
    return rows
