"""Damaged checkpoints through the engine's reader: the state is restored to the bit, or one line names the checkpoint.

    python benchmarks/fuzz_checkpoints.py --cases 500 --seed 1

A case is a small T5's checkpoint, with its optimizer state, of which a file was cut off, flipped, overwritten with
zeros, emptied, removed, swapped with another, or replaced by a folder or by what lies elsewhere. It must

- be refused by a DamagedCheckpointError, or by a ValueError where it is no checkpoint any more, of one line that names
  it, with every file as it was found;
- or be restored to the bit, where the damage is to what nothing needs;

within SECONDS of processor time. Orbax's layout only: T5X's legacy layout has no checksums, nor has what T5X writes.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(T5XPG_ENGINE="embedded", JAX_PLATFORMS="cpu")

import jax
import jax.numpy as jnp
import numpy as np

import t5xpg  # noqa: F401, makes t5x answerable
from t5x import adafactor, checkpoints, models, partitioning, utils
from t5x.embedded import console
from t5x.embedded.initialization import TrainStateInitializer
from t5x.examples.t5 import network

SECONDS = 60
SHAPES = {"encoder_input_tokens": (2, 8), "decoder_input_tokens": (2, 4), "decoder_target_tokens": (2, 4)}


class Vocabulary:
    eos_id = 1


def make_initializer() -> TrainStateInitializer:
    """Returns what makes and restores the states of a small T5 with Adafactor."""
    sizes = dict(vocab_size=64, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=32)
    config = network.T5Config(num_encoder_layers=1, num_decoder_layers=1, dropout_rate=0.0, **sizes)
    optimizer = adafactor.Adafactor(decay_rate=0.8, logical_factor_rules=adafactor.standard_logical_factor_rules())
    model = models.EncoderDecoderModel(network.Transformer(config), Vocabulary(), Vocabulary(), optimizer)
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    types = dict.fromkeys(SHAPES, jnp.int32)
    return TrainStateInitializer(optimizer, model.get_initial_variables, SHAPES, partitioner, types)


def save(initializer: TrainStateInitializer, folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Saves a state of random numbers; returns (the checkpoint, {name: array})."""
    state = initializer.from_scratch(jax.random.PRNGKey(0))
    manager = utils.create_orbax_checkpoint_manager(
        save_cfg=utils.SaveCheckpointConfig(),
        train_state=initializer.global_train_state_shape,
        partitioner=partitioning.PjitPartitioner(num_partitions=1),
        model_dir=str(folder),
    )
    manager.save(state)
    manager.close()
    return Path(checkpoints.checkpoint_path(str(folder), 0)), arrays_of(state)


def arrays_of(state) -> dict[str, np.ndarray]:
    flat = checkpoints.flatten(state.state_dict())
    return {name: np.asarray(x) for name, x in flat.items() if hasattr(x, "shape")}


# ---- Damages: each changes one of a checkpoint's files by a random generator ----


def cut(rng, path: Path, *_) -> None:
    path.write_bytes(path.read_bytes()[: rng.integers(path.stat().st_size)])


def flip(rng, path: Path, *_) -> None:
    content = bytearray(path.read_bytes())
    for place in rng.integers(len(content), size=rng.integers(1, 5)):
        content[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def zero(rng, path: Path, *_) -> None:
    content = bytearray(path.read_bytes())
    start = int(rng.integers(len(content)))
    length = int(rng.integers(1, 513))
    content[start : start + length] = bytes(len(content[start : start + length]))
    path.write_bytes(content)


def grow(rng, path: Path, *_) -> None:
    path.write_bytes(path.read_bytes() + rng.bytes(int(rng.integers(1, 100))))


def empty(_, path: Path, *__) -> None:
    path.write_bytes(b"")


def remove(_, path: Path, *__) -> None:
    path.unlink()


def swap(rng, path: Path, others: list[Path]) -> None:
    other = others[rng.integers(len(others))]
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def folder_instead(_, path: Path, *__) -> None:
    path.unlink()
    path.mkdir()


def link_instead(rng, path: Path, *_) -> None:
    path.unlink()
    path.symlink_to(("/dev/null", "/nowhere", path.name)[rng.integers(3)])


def remove_folder(_, path: Path, *__) -> None:
    shutil.rmtree(path.parent)


DAMAGES = (cut, flip, flip, flip, zero, grow, empty, remove, swap, folder_instead, link_instead, remove_folder)


def damage(rng, checkpoint: Path) -> str:
    """Damages one of the checkpoint's files, large ones more often; returns what was done, to show."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.stat().st_size)
    weights = np.sqrt([path.stat().st_size for path in files])
    path = files[rng.choice(len(files), p=weights / weights.sum())]
    kind = DAMAGES[rng.integers(len(DAMAGES))]
    kind(rng, path, files)
    return f"{kind.__name__} {path.relative_to(checkpoint)}"


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def outcome(initializer: TrainStateInitializer, checkpoint: Path, saved: dict[str, np.ndarray]) -> str:
    """Returns "named", "restored", or what is wrong with what happened."""
    before, begun = digests(checkpoint.parent), time.process_time()
    try:
        state = initializer.from_checkpoint([utils.RestoreCheckpointConfig(str(checkpoint), "specific")])
        result = "restored"
    except ValueError as error:
        result = "named" if str(checkpoint) in str(error) and "\n" not in str(error) else f"said: {error}"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    if (seconds := time.process_time() - begun) > SECONDS:
        return f"took {seconds:.0f} s"
    if digests(checkpoint.parent) != before:
        return "changed the files"
    if result == "restored":
        found = arrays_of(state)
        wrong = [n for n, x in saved.items() if n not in found or x.tobytes() != found[n].tobytes()]
        return f"restored another {wrong[0]}" if wrong or found.keys() != saved.keys() else result
    return result


def run(cases: int, seed: int) -> int:
    """Runs the cases and prints what became of them; returns the number of failures."""
    console.quiet_terminal()
    counts: collections.Counter[str] = collections.Counter()
    initializer = make_initializer()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        made, saved = save(initializer, Path(place, "made"))
        for case in range(cases):
            rng = np.random.default_rng([seed, case])
            checkpoint = Path(place, str(case), made.name)
            shutil.copytree(made, checkpoint)
            done = damage(rng, checkpoint)
            result = outcome(initializer, checkpoint, saved)
            counts[result if result in ("named", "restored") else "failure"] += 1
            if result not in ("named", "restored"):
                print(f"case {case}, {done}: {result}", flush=True)
            shutil.rmtree(checkpoint.parent)
    named = ", ".join(f"{counts[name]} {name}" for name in ("named", "restored"))
    print(f"{cases} cases of seed {seed}, {counts['failure']} failures: {named}")
    return counts["failure"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    sys.exit(bool(run(args.cases, args.seed)))
