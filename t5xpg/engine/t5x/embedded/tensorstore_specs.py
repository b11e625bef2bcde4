"""Where TensorStore finds the files of a path, and Orbax those of s3://, for which it has no driver of its own."""

from __future__ import annotations

import functools
import os
import re
from typing import Any

from orbax.checkpoint._src.serialization import tensorstore_utils

from t5xpg.base import stores

Spec = dict[str, Any]


def key_value_store(path: str) -> Spec:
    """Returns TensorStore's spec of the files whose names begin with `path`, on a disk, gs:// or s3://.

    Raises:
      ValueError: TensorStore has no driver for the path's scheme that writes nothing but what is asked.
    """
    scheme = stores.scheme(path)
    if not scheme:
        return {"driver": "file", "path": stores.absolute(path)}
    bucket, _, key = stores.absolute(path).split("://")[1].partition("/")
    if scheme == "gs":
        return {"driver": "gcs", "bucket": bucket, "path": key}
    if scheme == "s3":
        return {"driver": "s3", "bucket": bucket, "path": key, **s3_settings()}
    raise ValueError(f"{path}: checkpoints are read from a local path, gs:// or s3://; copy it there first.")


def s3_settings() -> Spec:
    """Returns what s3fs reads from the environment, and TensorStore's driver wants to be told."""
    settings: Spec = {}
    if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        settings["endpoint"] = endpoint
        settings["aws_region"] = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    if "AWS_ACCESS_KEY_ID" in os.environ:
        settings["aws_credentials"] = {"type": "environment"}
    return settings


def teach_orbax_s3() -> None:
    """Lets Orbax read and write arrays at s3://, by the specs that it makes for gs://.

    Orbax 0.12 takes every path but gs:// for one on a disk; what it writes beside the arrays goes through epath, which
    knows s3://. There is no public way to give it a spec.
    """
    original = tensorstore_utils.build_kvstore_tspec
    if hasattr(original, "knows_s3"):
        return

    @functools.wraps(original)
    def build(directory: str, *args: Any, **kwargs: Any) -> Spec:
        found = re.match(r"s3:/+", directory)
        if not found:
            return original(directory, *args, **kwargs)
        return at_s3(original(f"gs://{directory[found.end() :]}", *args, **kwargs))

    build.knows_s3 = True  # type: ignore[attr-defined]
    tensorstore_utils.build_kvstore_tspec = build


def at_s3(spec: Any) -> Any:
    """Returns a spec with the same buckets and keys at s3:// wherever it has gs://."""
    if isinstance(spec, list):
        return [at_s3(part) for part in spec]
    if not isinstance(spec, dict):
        return spec
    changed = {name: at_s3(part) for name, part in spec.items()}
    return changed | {"driver": "s3", **s3_settings()} if str(spec.get("driver")).startswith("gcs") else changed
