"""`t5xpg predict`: what a trained model writes for each input."""

from __future__ import annotations

import argparse
import warnings

from t5xpg.cli import export, search_flags

EXAMPLE = """examples:
  t5xpg predict runs/books "Call me <extra_id_0>."
  t5xpg predict runs/pairs --file questions.txt --beams 4                    (a line each)
  t5xpg predict runs/pairs --file pairs.jsonl --output predictions.jsonl     (the key "inputs")
  tail -f questions.txt | t5xpg predict runs/pairs --file - --jsonl
  t5xpg predict runs/books "Call me <extra_id_0>." --samples 3 --temperature 0.8 --seed 1
"""


def register(verbs) -> None:
    """Adds the verb `predict` to what `ArgumentParser.add_subparsers` returned."""
    parser = verbs.add_parser(
        "predict",
        help="write a trained model's predictions for texts",
        description="Prints a line for each input (with --samples N, N lines), in their order, each batch as soon as\n"
        "it is done. Line ends within a prediction are printed as \\n; --jsonl prints predictions as they are.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_common(parser, "INPUT", "text to predict from")
    parser.add_argument("--key", help='the key of a row\'s input, where FILE has rows ("inputs"); makes stdin JSONL')
    parser.add_argument("--seed", type=int, help="of what is sampled (0)")
    search_flags.add_flags(parser)
    parser.set_defaults(run=run)


def add_common(parser: argparse.ArgumentParser, text: str, text_help: str) -> None:
    """Adds what `predict` and `score` share."""
    add = parser.add_argument
    add("run_dir", metavar="RUN", help="a MODEL_DIR, whose latest checkpoint is taken")
    add("what", metavar=text, nargs="*", help=text_help)
    add("--file", metavar="FILE", help="JSONL, JSON, Parquet or text by its name, a folder of rows; - reads stdin")
    add("--output", metavar="FILE", help="in place of stdout; as --jsonl does where it ends in .jsonl")
    add("--jsonl", action="store_true", help="write JSON, an object a line")
    add("--batch_size", type=int, default=8, metavar="N", help="computed at a time (8)")
    add("--step", type=int, help="the checkpoint (the latest)")
    export.add_trust(parser)


def run(args: argparse.Namespace) -> int:
    if bool(args.what) == bool(args.file):
        raise ValueError("Give texts or --file FILE, one of the two.")
    if args.key and args.what:
        raise ValueError("--key is for rows of --file; texts have none.")
    if args.seed is not None and (args.beams is not None or args.temperature == 0):
        raise ValueError("--seed is for sampling, which --beams and --temperature 0 do not do.")
    model = restore(args)
    import jax

    from t5xpg.cli import examples
    from t5xpg.data import finding

    search = search_flags.from_args(args)
    if args.what:
        found = iter([{"inputs": text} for text in args.what])
    else:
        has_rows = args.key is not None or finding.has_rows(args.file)
        found = examples.read(args.file, {"inputs": args.key or "inputs"} if has_rows else None)
    as_jsonl, done = wants_jsonl(args), 0
    # What is sampled depends on an input's place in its batch: whole batches make a seed give the same again.
    whole = args.file != "-" or search.is_random or args.seed is not None
    with examples.open_output(args.output) as file:
        for number, part in enumerate(examples.batches(found, args.batch_size, whole)):
            inputs = [example["inputs"] for example in part]
            rng = jax.random.fold_in(jax.random.PRNGKey(args.seed or 0), number)
            with examples.warnings_named(done + 1, len(part)):
                warn_of_masks(inputs)
                predictions = model.decode(inputs, search, rng)
            for text, texts in zip(inputs, predictions, strict=True):
                for prediction in texts:
                    row = {"inputs": text, "prediction": prediction}
                    file.write((examples.json_line(row) if as_jsonl else examples.one_line(prediction)) + "\n")
            file.flush()
            done += len(part)
    if args.output:
        print(f"{args.output}: the predictions for {done:,} input{'s' * (done != 1)}")
    return 0


def warn_of_masks(inputs: list[str]) -> None:
    if any("<mask>" in text for text in inputs):
        warnings.warn("<mask> is plain text; a T5 that learned span corruption fills in <extra_id_0>, …", stacklevel=2)


def wants_jsonl(args: argparse.Namespace) -> bool:
    return args.jsonl or bool(args.output and args.output.endswith(".jsonl"))


def restore(args: argparse.Namespace):
    """Returns the run's Model."""
    if args.batch_size < 1:
        raise ValueError(f"--batch_size is {args.batch_size}; pass 1 or more.")
    from t5xpg.cli import starting

    starting.load()
    import t5xpg

    return t5xpg.Model.restore(args.run_dir, args.step, args.batch_size, args.trust)
