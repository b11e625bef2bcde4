"""Rows in arrays against JsonlDataSource's dataset, over epochs: order, shares, memory, and places."""

import gzip
import itertools
import json
from unittest import mock

import pytest
import seqio
from flax import serialization

from t5xpg.batchwise import readers, rows
from t5xpg.data import jsonl
from t5xpg.data.sources import JsonlDataSource

COLUMNS = {"a": "x", "b": "y"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """25 files, plain and compressed, of one row and of several windows."""
    folder = tmp_path_factory.mktemp("rows")
    for number in range(25):
        count = [1, 16, 40, 100][number % 4]
        content = "".join(json.dumps({"x": f"{number}.{i}", "y": "é" * i}) + "\n" for i in range(count)).encode()
        if number % 3:
            (folder / f"{number:02}.jsonl").write_bytes(content)
        else:
            (folder / f"{number:02}.jsonl.gz").write_bytes(gzip.compress(content))
    with mock.patch.object(jsonl, "_WINDOW", 700), mock.patch.multiple(rows, _ROWS=64, _CHARACTERS=2000):
        yield f"{folder}/*"


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("shard", [(0, 1), (1, 2), (29, 31)])
def test_rows_come_in_seqios_order(files, shuffle, shard, keep):
    source = JsonlDataSource({"train": files}, text_key=COLUMNS)
    info = seqio.ShardInfo(*shard)
    in_source = shard[1] <= len(source.list_shards("train"))
    theirs = source.get_dataset("train", shuffle, 5, info if in_source else None)
    theirs = theirs if in_source else theirs.shard(shard[1], shard[0])
    theirs = (theirs.cache() if keep else theirs).repeat()

    def make() -> rows.Rows:
        reader = readers.JsonlReader(
            source, source.pieces("train", info if in_source else None), 5 if shuffle else None
        )
        return rows.Rows("few, train", reader, (0, 1) if in_source else shard, keep)

    found, ours = [], make()
    while len(found) < 4000 // shard[1]:
        block = ours()
        found += [dict(zip(COLUMNS, texts, strict=True)) for texts in zip(*block.values(), strict=True)]
        with mock.patch.object(rows, "_ROWS", 50):  # a place tells how large its blocks are
            again = make()
        again.place = serialization.msgpack_restore(serialization.msgpack_serialize(ours.place))
        ours = again
    expected = itertools.islice(theirs.as_numpy_iterator(), len(found))
    assert found == [{name: text.decode() for name, text in row.items()} for row in expected]


def test_wide_examples_come_in_smaller_blocks(files):
    source = JsonlDataSource({"train": files}, text_key=COLUMNS)
    reader = readers.JsonlReader(source, source.pieces("train"), 5)
    blocks = [rows.Rows("few, train", reader, (0, 1), False, longest) for longest in (512, rows._TOKENS // 4)]
    assert [len(next(iter(block().values()))) >= 20 for block in blocks] == [True, False]


@pytest.mark.parametrize("keep", [False, True])
def test_a_share_without_rows_is_an_error(files, keep):
    """SeqIO's dataset would end."""
    source = JsonlDataSource({"train": files}, text_key=COLUMNS)
    none = rows.Rows("few, train", readers.JsonlReader(source, source.pieces("train"), 5), (2000, 2001), keep)
    with pytest.raises(jsonl.JsonlError, match="few, train: this process's share has no row"):
        for _ in range(1000):
            none()


def test_few_rows_in_memory_come_by_many_epochs_at_a_time(tmp_path):
    """A block takes as long for a row as for a thousand, and each makes the place anew."""
    path = tmp_path / "few.jsonl"
    path.write_text('{"text": "one"}\n{"text": "three"}\n')
    source = JsonlDataSource({"train": str(path)})
    few = rows.Rows("few, train", readers.JsonlReader(source, source.pieces("train"), None), (0, 1), True)
    with mock.patch.object(few, "_characters", 80):
        assert few() == few() == {"text": ["one", "three"] * 10}
