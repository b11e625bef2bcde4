"""What wandb's offline mode has written: a log in LevelDB's format whose records are protocol buffers."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

BLOCK, HEADER, FIRST = 32768, 7, 7  # bytes of a block, of a chunk's header, and of the file's


def records(path: Path) -> Iterator:
    """Yields wandb's Records of a run-<id>.wandb."""
    from wandb.proto import wandb_internal_pb2

    content, at, whole = path.read_bytes(), FIRST, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:  # too little left of a block for another chunk
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def values(items) -> dict:
    """Returns {key: value} of a record's items."""
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
