"""Kills at random moments and failing requests at gs:// or s3://: whether they change a run's final parameters.

    python benchmarks/kills.py [--scheme gs] [--kills 20] [--every 10] [--seed 0]

The store is an emulator on this machine, behind a proxy that spoils every 10th request (0: none). A tiny model is
trained twice, on the disk without a kill and at the URL; all arrays of their last checkpoints must be equal, bit by
bit, and the runs at the URL must leave no file on the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).parents[1]
sys.path[:0] = [str(REPO), str(REPO / "tests"), str(REPO / "tests" / "helpers")]
os.environ |= {"T5XPG_ENGINE": "embedded", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}

TEXT = "The lighthouse keeper wrote down the weather every morning, and every evening he read what he had written. "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheme", choices=("gs", "s3"), default="gs")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--every", type=int, default=0, help="spoil every n-th request; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    import t5xpg  # noqa: F401, answers `import t5x`

    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        compare(args, Path(folder))


def compare(args: argparse.Namespace, folder: Path) -> None:
    import emulators
    import numpy as np
    from command import run_t5xpg
    from faulty_proxy import faulty_store
    from kills import parameters, train_through_kills

    from t5xpg.base import files

    temporary = folder / "tmp"
    temporary.mkdir()
    os.environ |= {"TMPDIR": str(temporary), "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    for split, rows in (("train", 200), ("validation", 20)):
        lines = [json.dumps({"text": f"{i}. {TEXT * (i % 3 + 1)}"}) + "\n" for i in range(rows)]
        (folder / f"{split}.jsonl").write_text("".join(lines))
    arguments = [
        *(str(REPO / "tests" / "micro.gin"), f"FILES={folder}/{{split}}.jsonl", f"TRAIN_STEPS={args.steps}"),
        *("utils.SaveCheckpointConfig.period=5", "utils.SaveCheckpointConfig.keep=2", "train.eval_period=20"),
    ]
    done = run_t5xpg("train", *arguments, f"MODEL_DIR={folder}/disk")
    if done.returncode:
        sys.exit(done.stderr)
    with emulators.store(args.scheme) as (address, bucket):
        before, tick = files_here(folder), time.time()
        with faulty_store({args.scheme: address}, args.scheme, every=args.every) as proxy:
            train_through_kills(
                [*arguments, f"MODEL_DIR={bucket}/run"], args.kills, random.Random(args.seed), folder / "log.txt"
            )
        seconds = time.time() - tick
        (folder / "log.txt").unlink()
        expected, found = parameters(f"{folder}/disk"), parameters(f"{bucket}/run")
        differing = [n for n in expected if not np.array_equal(expected[n], found.get(n))]
        left = sorted(set(files_here(folder)) - set(before))
        print(f"{args.kills} kills, {len(proxy.faults)} of {len(proxy.requests)} requests spoilt, {seconds:.0f} s")
        print(
            f"{len(expected)} arrays, of which {len(differing)} differ; at the URL: {files.names_in(f'{bucket}/run')}"
        )
        print(f"left on the disk: {left}")
        sys.exit(bool(differing or left or expected.keys() != found.keys()))


def files_here(folder: Path) -> list[str]:
    """Returns the files in the working directory of the runs and the temporary folder.

    JAX's cache of compiled programs is left out, and the code that TensorFlow keeps in a file while it compiles.
    """
    found = [path for path in folder.rglob("*") if "compiled" not in path.parts and "__autograph" not in path.name]
    return sorted(map(str, [*found, *REPO.glob("*")]))


if __name__ == "__main__":
    main()
