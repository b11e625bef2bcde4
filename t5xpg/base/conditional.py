"""Writes an object of a store on condition that nobody else has: GCS compares its generation, S3 its ETag."""

from __future__ import annotations

from typing import Any

from t5xpg.base.stores import file_system, scheme

_S3_REFUSALS = ("PreconditionFailed", "412", "NoSuchKey", "404", "ConditionalRequestConflict", "409")


def write(path: str, content: bytes, version: str | None) -> bool:
    """Writes an object in one request; returns False where it is not this version any more, or is gone.

    Args:
      path: of an object at gs:// or s3://.
      content: what to write.
      version: as `ranges.status` returns it; None where there must be no such object.
    """
    return {"gs": _gs_write, "s3": _s3_write}[scheme(path)](file_system(path), path, content, version)


def _gs_write(system: Any, path: str, content: bytes, version: str | None) -> bool:
    bucket, key, _ = system.split_path(path)
    url = f"{system.base.removesuffix('storage/v1/')}upload/storage/v1/b/{bucket}/o"
    headers = {"Content-Type": "application/octet-stream"}
    asked = {"uploadType": "media", "name": key, "ifGenerationMatch": "0" if version is None else version}
    try:
        system.call("POST", url, headers=headers, data=content, **asked)
    except FileExistsError:  # gcsfs's name for 412
        return False
    return True


def _s3_write(system: Any, path: str, content: bytes, version: str | None) -> bool:
    bucket, key, _ = system.split_path(path)
    condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
    try:
        system.call_s3("put_object", Bucket=bucket, Key=key, Body=content, **condition)
    except OSError as error:  # its kind differs between Amazon and others
        answer = getattr(error.__cause__, "response", {})
        if answer.get("Error", {}).get("Code") in _S3_REFUSALS:
            return False
        raise
    return True
