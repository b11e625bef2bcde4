"""`t5xpg qa MODEL_DIR`: a fine-tuned model's scores over its steps, its answer to a question, or to a file of them."""

from __future__ import annotations

import argparse
import statistics
import sys

from t5xpg.cli import export

EXAMPLE = """examples:
  t5xpg qa runs/squad                                                         (the scores of each evaluation)
  t5xpg qa runs/squad --question "Who wrote it?" --context "Anna wrote it in 1911."
  t5xpg qa runs/squad --file dev-v2.0.json --predictions predictions.json    (for the official scorer, too)
"""


def register(verbs) -> None:
    """Adds the verb `qa` to what `ArgumentParser.add_subparsers` returned."""
    parser = verbs.add_parser(
        "qa",
        help="ask a model that was fine-tuned on questions and answers",
        description="Asks a model fine-tuned with configs/squad_*.gin. An empty answer means that the context has\n"
        "none. With neither a question nor a file: the scores of the run's evaluations, step by step.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model_dir", metavar="MODEL_DIR", help="the run")
    add("--question", help="to answer; needs --context")
    add("--context", help="the text to answer it from")
    add("--file", metavar="FILE", help="SQuAD's JSON, or JSONL rows: answer all of its questions and score the answers")
    add("--predictions", metavar="FILE", help="with --file: write {id: answer} there, for the official scorer")
    add("--batch_size", type=int, default=4, metavar="N", help="questions answered at a time (4)")
    add("--step", type=int, help="the checkpoint (the latest)")
    export.add_trust(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if (args.question is None) != (args.context is None) or (args.predictions and not args.file):
        raise ValueError("--question and --context go together, and --predictions needs --file.")
    if args.question is None and not args.file:
        return show_scores(args.model_dir)
    from t5xpg.cli import starting

    starting.load()
    import t5xpg

    model = t5xpg.Model.restore(args.model_dir, args.step, args.batch_size, args.trust)
    if args.question is not None:
        answer = model.answer(args.question, args.context)
        print(answer)
        if not answer:
            print("The model finds no answer in the context.", file=sys.stderr)
    if args.file:
        answer_file(model, args.file, args.predictions)
    times = model.batch_seconds
    print(
        f"{len(times):,} batch{'es' * (len(times) > 1)} of {args.batch_size}, "
        f"{statistics.median(times):.2f} s {'each (median)' if len(times) > 1 else ''}".rstrip(),
        file=sys.stderr,
    )
    return 0


def answer_file(model, path: str, predictions_path: str | None) -> None:
    """Answers a file's questions, saves the answers if asked, and prints the official numbers."""
    from t5xpg import qa

    questions = qa.read_questions(path)
    answers = model.answers([(q.question, q.context) for q in questions])
    if predictions_path:
        qa.write_predictions({q.id: a for q, a in zip(questions, answers, strict=True)}, predictions_path)
        print(f"{predictions_path}: {{id: answer}} of {len(answers):,} questions")
    for name, value in qa.squad_v2([q.answers for q in questions], answers).items():
        print(f"{name:<13}{value:>9,.2f}" if isinstance(value, float) else f"{name:<13}{value:>6,}")


def show_scores(model_dir: str) -> int:
    from t5xpg.cli import scores

    if not scores.show(model_dir):
        raise ValueError(f"{model_dir} has no inference_eval/<task>-metrics.jsonl: no evaluation has been scored yet.")
    return 0
