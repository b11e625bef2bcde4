"""What a Hugging Face folder says, checked before it is used: a broken one is an error that names the file.

The folder is somebody else's. No code that it brings is run, nothing outside of it is read, and what config.json says
is compared with the tensors that are there before anything is made of that size.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Shape = tuple[int, ...]

DTYPES = ("F32", "F16", "BF16")  # safetensors' names; integers and eight bits would need scales
OURS = {"local_files_only": True, "trust_remote_code": False}  # for whatever transformers loads from the folder


@contextlib.contextmanager
def blamed_on(path: Path) -> Iterator[None]:
    """Turns whatever a library makes of a damaged file into a ValueError of one line that begins with its name."""
    try:
        yield
    except BaseException as error:  # of many kinds: safetensors, tokenizers and transformers each have their own
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # Rust's, no Exception
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise ValueError(lines[0] if lines[0].startswith(str(path)) else f"{path}: {' '.join(lines[:2])}") from error


def file_in(folder: Path, name: str) -> Path:
    """Returns a file's path; it need not exist.

    Raises:
      ValueError: the name or a link leads out of the folder; one may lead to the `blobs/` of the Hub's cache.
    """
    path, home = folder / name, folder.resolve()
    real = Path(os.path.realpath(path))  # which, unlike resolve(), takes a link to itself
    if not any(real.is_relative_to(inside) for inside in (home, home.parent.parent / "blobs")):
        raise ValueError(f"{path}: leads out of {folder}; put the file itself there.")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Returns a JSON object, {} without a file."""
    if not path.is_file():
        return {}
    with blamed_on(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__}, not a JSON object")
    return content


def read_config(folder: Path) -> dict[str, Any]:
    """Returns config.json as transformers reads it, its defaults filled in."""
    from transformers import AutoConfig

    path = file_in(folder, "config.json")
    if not path.is_file():
        raise ValueError(f"{folder}: no config.json there; pass the folder of `hf download REPO --local-dir FOLDER`.")
    read_json(path)
    with blamed_on(path):
        return AutoConfig.from_pretrained(folder, **OURS).to_dict()


def find_tensors(folder: Path) -> dict[str, tuple[Path, Shape]]:
    """Returns {tensor: (the file it is in, its shape)}, of model.safetensors or the parts that its index lists."""
    index = file_in(folder, "model.safetensors.index.json")
    whole = file_in(folder, "model.safetensors")
    if whole.is_file() or not index.is_file():  # as transformers chooses
        return {tensor: (whole, shape) for tensor, shape in read_shapes(whole).items()}
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise ValueError(f"{index}: has no weight_map of tensors; download it again.")
    names = sorted({str(name) for name in listed.values()})
    if other := [name for name in names if not re.fullmatch(r"[\w.-]+\.safetensors", name)]:
        raise ValueError(f"{index}: names {other[0]!r}, which is not a safetensors file of {folder}.")
    found: dict[str, tuple[Path, Shape]] = {}
    for name in names:
        path = file_in(folder, name)
        shapes = read_shapes(path)
        if wrong := [tensor for tensor in shapes if listed.get(tensor) != name]:
            raise ValueError(f"{path}: has {wrong[0]}, which {index.name} does not say.")
        found |= {tensor: (path, shape) for tensor, shape in shapes.items()}
    if missing := sorted(listed.keys() - found.keys()):
        raise ValueError(f"{index}: {missing[0]} is not in {listed[missing[0]]}, where it should be.")
    return found


def read_shapes(path: Path) -> dict[str, Shape]:
    """Returns {tensor: its shape} of a safetensors file, which holds floating point numbers and nothing else."""
    from safetensors import safe_open

    if not path.is_file():
        raise ValueError(
            f"{path.parent}: no {path.name}; pickled weights (pytorch_model.bin) are not read. Save the model with "
            "save_pretrained of transformers 5, which writes safetensors."
        )
    with blamed_on(path), safe_open(path, framework="numpy") as file:
        parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        if other := {name: part.get_dtype() for name, part in parts.items() if part.get_dtype() not in DTYPES}:
            name = min(other)
            raise ValueError(f"{name} is of type {other[name]}; weights of {', '.join(DTYPES)} can be read.")
        return {name: tuple(part.get_shape()) for name, part in parts.items()}


def read_tensors(paths: Collection[Path]) -> dict[str, np.ndarray]:
    """Returns {tensor: float32 array} of safetensors files; raises ValueError where a weight is not finite."""
    from safetensors import safe_open

    tensors: dict[str, np.ndarray] = {}
    for path in sorted(paths):
        with blamed_on(path), safe_open(path, framework="flax") as file:  # NumPy alone has no bfloat16
            for name in file.keys():  # noqa: SIM118
                tensors[name] = np.asarray(file.get_tensor(name), np.float32)
                if not np.isfinite(tensors[name]).all():
                    raise ValueError(f"{name} has weights that are infinite or not a number; download it again.")
    return tensors
