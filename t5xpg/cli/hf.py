"""`t5xpg export hf | import hf`: to Hugging Face and back. The work is in t5xpg.hf."""

from __future__ import annotations

import argparse

from t5xpg.cli import export

EXPORT = """examples:
  t5xpg export hf runs/corpus models/corpus                      (the latest checkpoint of a run)
  t5xpg export hf runs/corpus/checkpoint_1000 models/corpus --push me/corpus
  t5xpg export hf checkpoint_1000000 models/t5 --gin t5x/examples/t5/t5_1_1/small.gin --tokenizer sentencepiece.model
"""
IMPORT = """example:
  t5xpg import hf flan-t5-small imported    (as `hf download` leaves it)
"""


def register(verbs) -> None:
    """Adds the verbs `export` and `import` to what `ArgumentParser.add_subparsers` returned."""
    formats = add_formats(verbs, "export", "write a model for Hugging Face, CTranslate2 or TensorFlow")
    export.register(formats)
    parser = export.add_format(
        *(formats, "hf", "Hugging Face", EXPORT),
        "Writes a T5 (1.0, 1.1, mT5, ByT5, umT5) or RoBERTa as a folder that Hugging Face's AutoModelForSeq2SeqLM\n"
        "or AutoModelForMaskedLM and AutoTokenizer load. Runs both models first: where logits or a beam search\n"
        "differ, nothing is written.",
    )
    parser.add_argument("model", metavar="MODEL", help="a MODEL_DIR, whose latest checkpoint is taken, or a checkpoint")
    parser.add_argument("out", metavar="OUT", help="the folder to write; must not exist")
    parser.add_argument("--gin", metavar="FILE", help="the model's gin file (the config.gin of its run)")
    parser.add_argument("--tokenizer", metavar="FILE", help="where the SentencePiece model or tokenizer.json is now")
    parser.add_argument("--push", metavar="REPO_ID", help="then upload the folder to the Hugging Face Hub, privately")
    parser.add_argument("--public", action="store_true", help="with --push: let everybody see the repository")
    export.add_trust(parser)
    parser.set_defaults(run=run_export)
    parser = export.add_format(
        *(add_formats(verbs, "import", "start from a Hugging Face model"), "hf", "Hugging Face", IMPORT),
        "Writes a Hugging Face T5 or mT5 as a T5X checkpoint to fine-tune, and OUT/model.gin for it. Reads\n"
        "safetensors only. Runs both models first: where logits or a beam search differ, nothing is written.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="has config.json, model.safetensors and the tokenizer")
    parser.add_argument("out", metavar="OUT", help="the folder to write; must not exist")
    parser.set_defaults(run=run_import)


def add_formats(verbs, verb: str, summary: str):
    """Returns what the verb's formats are added to."""
    return verbs.add_parser(verb, help=summary).add_subparsers(metavar="FORMAT", required=True)


def run_export(args: argparse.Namespace) -> int:
    hf = export.load_hf()
    found = hf.export_model(args.model, args.out, gin_file=args.gin, tokenizer=args.tokenizer, trust=args.trust)
    print(f"{args.out}: {agreement(found)}\nhow to load it: {args.out}/README.md")
    if args.push:
        print(f"uploaded to {hf.push(args.out, args.push, args.public)}")
    return 0


def run_import(args: argparse.Namespace) -> int:
    path, found = export.load_hf().import_model(args.folder, args.out)
    print(
        f"{path}: {agreement(found)}\nfine-tune it, on pairs of texts for example:\n"
        f"  t5xpg train {args.out}/model.gin t5x/configs/runs/finetune.gin configs/parts/pairs.gin \\\n"
        f"    INITIAL_CHECKPOINT_PATH={path} FILES=pairs_{{split}}.jsonl MODEL_DIR=runs/finetuned \\\n"
        "    TASK_FEATURE_LENGTHS=\"{'inputs': 256, 'targets': 64}\" USE_CACHED_TASKS=False \\\n"
        "    TRAIN_STEPS=None TRAIN_STEPS_RELATIVE=1000"
    )
    return 0


def agreement(found: dict[str, float]) -> str:
    apart, largest = found["logits"], found["largest_logit"]
    return f"logits of JAX and PyTorch differ by {apart:.1e} at most, the largest is {largest:.1f}"
