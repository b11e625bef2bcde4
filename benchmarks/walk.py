"""The README's commands one after another, with every path at an emulated gs:// or s3://: text to exported models.

    python benchmarks/walk.py [--scheme gs] [--every 10] [--seed 0]

Prints each command with its exit status, seconds and last line, and ends with what the commands left on the disk. The
second training is killed by SIGKILL and started again; the proxy before the store spoils every n-th request (0: none).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).parents[1]
sys.path[:0] = [str(REPO), str(REPO / "tests"), str(REPO / "tests" / "helpers")]
os.environ |= {"T5XPG_ENGINE": "embedded", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}

NAMES = ("Ishmael", "Ahab", "Starbuck", "Queequeg", "Stubb", "Flask")
DEEDS = ("wrote down the weather", "counted the boats", "mended the nets", "called the watch", "looked for the whale")
LENGTHS = "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}"
TINY = "network.T5Config.num_encoder_layers=1 network.T5Config.num_decoder_layers=1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheme", choices=("gs", "s3"), default="gs")
    parser.add_argument("--every", type=int, default=0, help="spoil every n-th request; 0 for none")
    parser.add_argument("--seed", type=int, default=0, help="decides when the kill comes")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="walk-") as folder:
        sys.exit(walk(args, Path(folder)))


def walk(args: argparse.Namespace, folder: Path) -> int:
    """Runs all commands in an empty working directory; returns 1 where one failed or left a file there."""
    import emulators
    from faulty_proxy import faulty_store

    from t5xpg.base import files

    here, temporary = folder / "here", folder / "tmp"
    here.mkdir()
    temporary.mkdir()
    os.environ |= {"TMPDIR": str(temporary), "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    with emulators.store(args.scheme) as (address, bucket):
        rng = random.Random(args.seed)
        files.write_whole(f"{bucket}/raw/books.txt", "\n\n".join(sentence(rng) for _ in range(2000)))
        with faulty_store({args.scheme: address}, args.scheme, every=args.every) as proxy:
            failed = [line for line in commands(bucket, args.steps) if not run(line, bucket, here, rng)]
        print(f"{len(proxy.faults)} of {len(proxy.requests)} requests spoilt; at the URL: {files.names_in(bucket)}")
    left = [str(path.relative_to(folder)) for place in (here, temporary) for path in place.rglob("*")]
    left = [path for path in left if "__autograph" not in path and "torchinductor" not in path]
    print(f"failed: {failed}\nleft on the disk: {left}")
    return int(bool(failed or left))


def sentence(rng: random.Random) -> str:
    return " ".join(f"{rng.choice(NAMES)} {rng.choice(DEEDS)} on day {rng.randrange(99)}." for _ in range(6))


def commands(bucket: str, steps: int) -> list[str]:
    """Returns the README's commands in their order; PAIRS and KILL are done by this program."""
    books = f"FILES={bucket}/corpus/books_{{split}}.jsonl"
    pieces = f"configs/t5_1_1_tiny.gin {books} VOCABULARY_FILE={bucket}/corpus/books.model {LENGTHS}"
    pairs = f"FILES={bucket}/corpus/pairs_{{split}}.jsonl {LENGTHS} {TINY}"
    train = (
        f"train configs/byt5_tiny.gin {books} MODEL_DIR={bucket}/runs/books TRAIN_STEPS={steps} {TINY} "
        "utils.SaveCheckpointConfig.period=20 train.eval_period=100 train.stats_period=20"
    )
    run_dir, exported = f"{bucket}/runs/pairs", f"{bucket}/models"
    return [
        f"prepare text {bucket}/raw/*.txt --output_dir {bucket}/corpus --name books",
        f"tokenizer train --input {bucket}/corpus/books_train.jsonl --vocab_size 200 --output {bucket}/corpus/books",
        f"check configs/byt5_tiny.gin {books} {TINY}",
        f"train {pieces} MODEL_DIR={bucket}/runs/pieces TRAIN_STEPS=20 network.T5Config.vocab_size=384 {TINY}",
        f"KILL {train}",
        train,
        f"PAIRS {bucket}/corpus/pairs",
        f"train configs/byt5_tiny_finetune.gin {pairs} MODEL_DIR={run_dir} TRAIN_STEPS_RELATIVE=40 EVAL_PERIOD=20 "
        f"INITIAL_CHECKPOINT_PATH={bucket}/runs/books/checkpoint_{steps} EVALUATOR_NUM_EXAMPLES=20",
        f"eval configs/byt5_tiny_eval.gin {pairs} CHECKPOINT_PATH={run_dir} EVAL_OUTPUT_DIR={run_dir}/eval",
        f"infer configs/byt5_tiny_infer.gin {pairs} CHECKPOINT_PATH={run_dir} INFER_OUTPUT_DIR={run_dir}/predictions",
        f"predict {run_dir} --file {bucket}/corpus/pairs_validation.jsonl --output {run_dir}/answers.jsonl --jsonl",
        f"score {run_dir} --file {bucket}/corpus/pairs_validation.jsonl --jsonl --output {run_dir}/scores.jsonl",
        f"export hf {run_dir} {exported}/hf",
        f"export ct2 {bucket}/runs/pieces {exported}/ct2 --lines 20",
        f"export savedmodel {run_dir} {exported}/savedmodel",
        f"import hf {exported}/hf {exported}/imported",
    ]


def run(line: str, bucket: str, here: Path, rng: random.Random) -> bool:
    """Runs a line of `commands`; returns whether it ended as it should."""
    kind, _, rest = line.partition(" ")
    if kind == "PAIRS":
        return write_pairs(rest)
    words = [sys.executable, "-m", "t5xpg", *split(rest if kind == "KILL" else line)]
    tick, variables = time.time(), {**os.environ, "PYTHONPATH": str(REPO)}
    process = subprocess.Popen(
        words, cwd=here, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if kind == "KILL":
        wait_for(f"{bucket}/runs/books/checkpoint_40/commit_success.txt", process)
        time.sleep(rng.uniform(0, 2))
        process.kill()
    output = process.communicate()[0]
    shown = line.replace(bucket, "URL")
    print(f"t5xpg {shown}\n  exit status {process.returncode}, {time.time() - tick:.0f} s", flush=True)
    fine = process.returncode == (-signal.SIGKILL if kind == "KILL" else 0)
    print(*(f"  {text}" for text in output.splitlines()[-1 if fine else -15 :]), sep="\n", flush=True)
    return fine


def split(line: str) -> list[str]:
    """Returns the words of a line, in which a dict has blanks."""
    return shlex.split(line.replace(LENGTHS, f'"{LENGTHS}"'))


def wait_for(url: str, process: subprocess.Popen) -> None:
    from t5xpg.base import files

    while process.poll() is None and not files.exists(url):
        time.sleep(0.1)


def write_pairs(prefix: str) -> bool:
    from t5xpg.base import files

    for name, count in (("train", 200), ("validation", 20)):
        rows = [{"inputs": f"is {i} even", "targets": "no" if i % 2 else "yes"} for i in range(count)]
        files.write_whole(f"{prefix}_{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return True


if __name__ == "__main__":
    main()
