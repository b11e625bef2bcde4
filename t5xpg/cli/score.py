"""`t5xpg score`: how likely a trained model finds given targets."""

from __future__ import annotations

import argparse

from t5xpg.cli.predict import add_common, restore, wants_jsonl

EXAMPLE = """examples:
  t5xpg score runs/pairs "how many words are these" "more than three"
  t5xpg score runs/pairs --file pairs.jsonl --output scores.jsonl            (the keys "inputs" and "targets")
"""


def register(verbs) -> None:
    """Adds the verb `score` to what `ArgumentParser.add_subparsers` returned."""
    parser = verbs.add_parser(
        "score",
        help="print how likely a trained model finds targets, given inputs",
        description="Prints the log likelihood in nats of each target, EOS included, given its input: a line for each\n"
        "pair, in their order, each batch as soon as it is done. --jsonl adds the pair, the target's tokens and the\n"
        "log likelihood of each token.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_common(parser, "TEXT", "an input, and a target")
    parser.add_argument("--inputs_key", default="inputs", metavar="KEY", help="the key of a row's input (inputs)")
    parser.add_argument("--targets_key", default="targets", metavar="KEY", help="the key of a row's target (targets)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if bool(args.what) == bool(args.file) or len(args.what) not in (0, 2):
        raise ValueError("Give an input and a target, or --file FILE with rows of both.")
    model = restore(args)
    from t5xpg.cli import examples

    if args.what:
        found = iter([dict(zip(("inputs", "targets"), args.what, strict=True))])
    else:
        found = examples.read(args.file, {"inputs": args.inputs_key, "targets": args.targets_key})
    as_jsonl, done = wants_jsonl(args), 0
    with examples.open_output(args.output) as file:
        for part in examples.batches(found, args.batch_size, wait=args.file != "-"):
            inputs, targets = ([example[name] for example in part] for name in ("inputs", "targets"))
            with examples.warnings_named(done + 1, len(part)):
                lines = rows(model, inputs, targets) if as_jsonl else map(str, model.score(inputs, targets))
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            done += len(part)
    if args.output:
        print(f"{args.output}: the scores of {done:,} target{'s' * (done != 1)}")
    return 0


def rows(model, inputs: list[str], targets: list[str]) -> list[str]:
    """Returns the line of each pair as JSON."""
    from t5xpg.cli.examples import json_line

    found = zip(inputs, targets, model.score(inputs, targets), model.token_scores(inputs, targets), strict=True)
    return [
        json_line(
            {
                "inputs": text,
                "targets": target,
                "score": float(score),
                "tokens": len(tokens),
                "token_scores": [float(token) for token in tokens],
            }
        )
        for text, target, score, tokens in found
    ]
