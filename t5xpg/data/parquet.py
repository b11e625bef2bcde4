"""Parquet files: columns of text, a row group at a time and of it no more than a window in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import IO

import numpy as np

from t5xpg.base.stores import StoreError

SUFFIX = ".parquet"
_BUFFER = 1024 * 1024  # bytes of a column chunk read at a time
_FEWEST_ROWS = 16  # of a window, where other columns are large


class ParquetError(ValueError):
    """What is wrong with the file, in one line without its name."""


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Says in one line what Arrow finds damaged; errors of the file below pass as they are."""
    import pyarrow

    try:
        yield
    except (StoreError, ParquetError):
        raise
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        found = " ".join(str(error).split())[:200]
        raise ParquetError(f"damaged, or not a Parquet file ({found}). Fetch or write it again") from error


def group_sizes(file: IO[bytes]) -> list[int]:
    """Returns how many rows each row group of the file has.

    Raises:
      ParquetError: the file is damaged.
    """
    with _one_line(), _opened(file) as table:
        return [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]


def windows(file: IO[bytes], group: int, columns: Mapping[str, str], size: int) -> Iterator[list[np.ndarray]]:
    """Yields a row group's rows, in order: per column an array of str, [rows], dtype object.

    Args:
      file: an open file.
      group: which row group.
      columns: {name: column of the file}.
      size: bytes of a window's rows, with their other columns, about.

    Raises:
      ParquetError: the file is damaged (also a page whose checksum is wrong, where it has any), has no such column,
        or the column holds something else than strings.
    """
    with _one_line(), _opened(file) as table:
        keys = list(columns.values())
        _check_columns(table.schema_arrow, columns)
        described = table.metadata.row_group(group)
        # Of all columns: pyarrow ends the process where it is asked for the size of a damaged one.
        rows = max(
            _FEWEST_ROWS, min(described.num_rows, described.num_rows * size // max(1, described.total_byte_size))
        )
        done = 0
        for batch in table.iter_batches(rows, [group], list(dict.fromkeys(keys)), use_threads=False):
            texts = [batch.column(key).to_pylist() for key in keys]
            for key, column in zip(keys, texts, strict=True):
                if None in column:
                    row = done + column.index(None) + 1
                    raise ParquetError(f"row {row} of row group {group + 1}: {key!r} is null. Delete the row")
            done += batch.num_rows
            yield [np.array(column, dtype=object) for column in texts]
        if done != described.num_rows:
            raise ParquetError(f"row group {group + 1} has {done} rows of {described.num_rows}. Fetch it again")


def _opened(file: IO[bytes]):
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(
        file, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True, memory_map=False
    )


def _check_columns(schema, columns: Mapping[str, str]) -> None:
    """Raises ParquetError unless the file has the columns, and they hold strings."""
    import pyarrow.types as types

    for name, key in columns.items():
        if key not in schema.names:
            texts = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
            advice = f" Pass {name}_key={texts[0]!r}" if texts else ""
            raise ParquetError(f"no column {key!r}; found {schema.names[:10]}.{advice}")
        kind = schema.field(key).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise ParquetError(f"column {key!r} holds {kind}, not strings. Name another column")
