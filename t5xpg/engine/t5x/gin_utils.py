"""Gin on the command line: parsing, the rewriting of `--gin.NAME=VALUE`, and config.gin in MODEL_DIR."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

import gin
import jax

from t5x.embedded.contract import refuse_missing
from t5xpg.base import files, stores

refuse_missing(globals(), "gin_utils")


def parse_gin_flags(
    gin_search_paths: Sequence[str],
    gin_files: Sequence[str] | None,
    gin_bindings: Sequence[str],
    skip_unknown: bool | Sequence[str] = False,
    finalize_config: bool = True,
) -> None:
    """Parses files, on a disk or at URLs, and then bindings; later ones override earlier ones."""
    gin.config.register_file_reader(read_url, is_file_at_url)
    for path in gin_search_paths:
        gin.add_config_file_search_path(path)
    gin.parse_config_files_and_bindings(gin_files, gin_bindings, skip_unknown=skip_unknown, finalize_config=False)
    if finalize_config:
        gin.finalize()


def read_url(path: str) -> io.StringIO:
    return io.StringIO(files.read_text(path))


def is_file_at_url(path: str) -> bool:
    return stores.is_url(path) and files.is_file(path)


def rewrite_gin_args(args: Sequence[str]) -> list[str]:
    """Rewrites `--gin.NAME=VALUE` to `--gin_bindings=NAME = VALUE`."""

    def rewrite(arg: str) -> str:
        if not arg.startswith("--gin."):
            return arg
        name, equals, value = arg.removeprefix("--gin.").partition("=")
        if not equals:
            raise ValueError(f"{arg} has no value; write --gin.{name}=VALUE.")
        return f"--gin_bindings={name} = {value}"

    return [rewrite(arg) for arg in args]


def summarize_gin_config(model_dir: str, summary_writer, step: int) -> None:
    """Writes the configuration to MODEL_DIR/config.gin and to TensorBoard."""
    if jax.process_index() != 0:
        return
    config = gin.config_str()
    files.write_whole(os.path.join(model_dir, "config.gin"), config)
    if summary_writer is not None:
        summary_writer.write_texts(step, {"config": gin.markdown(config)})
        summary_writer.flush()


# Arithmetic for gin files


@gin.configurable
def sum_fn(var1=gin.REQUIRED, var2=gin.REQUIRED):
    return var1 + var2


@gin.configurable
def bool_fn(var1=gin.REQUIRED) -> bool:
    return bool(var1)


@gin.configurable
def string_split_fn(text=gin.REQUIRED, separator=gin.REQUIRED, maxsplit: int = -1, index: int | None = None):
    """Returns the parts of a text, or with `index` one of them."""
    parts = text.split(separator, maxsplit)
    return parts if index is None else parts[index]
