"""Rows read at URLs are those of the same files on a disk, in the same order, whatever the server does meanwhile."""

import json
import logging
import os
import random

import emulators
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import seqio
from faulty_proxy import faulty_store
from hub_server import HubServer
from jsonl_files import COMPRESSORS, random_text, small_pieces, texts_of, write

from t5xpg.base import files, ranges
from t5xpg.data import finding, jsonl
from t5xpg.data.jsonl import JsonlError, read_rows
from t5xpg.data.sources import JsonlDataSource


@pytest.fixture(autouse=True)
def quiet_gcsfs():
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)


@pytest.fixture(scope="module")
def texts():
    rng = random.Random(3)
    return [random_text(rng) + "x" * rng.choice([0, 0, 0, 700]) for _ in range(400)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, texts):
    """A folder with the texts in files of every kind, by turns; some rows are longer than a small piece."""
    folder = tmp_path_factory.mktemp("corpus")
    kinds = {f".jsonl{suffix}": COMPRESSORS[suffix] for suffix in COMPRESSORS}
    for number, (suffix, compress) in enumerate(kinds.items()):
        lines = [json.dumps({"text": text}) for text in texts[80 * number : 80 * (number + 1)]]
        (folder / f"{number}{suffix}").write_bytes(compress("\n".join(lines).encode()))
    return folder


def send(folder, url) -> str:
    for path in folder.iterdir():
        files.write_whole(f"{url}/corpus/{path.name}", path.read_bytes())
    return f"{url}/corpus"


def orders(corpus):
    """The texts as they come: read once, in order, shuffled for two epochs, and of the second of two shares."""
    source = JsonlDataSource({"train": corpus})
    share = seqio.ShardInfo(1, 2)
    shuffled = source.get_dataset("train", shuffle=True, seed=5).repeat(2)
    return (
        [row["text"] for row in read_rows(corpus)],
        texts_of(source.get_dataset("train", shuffle=False)),
        texts_of(shuffled),
        texts_of(source.get_dataset("train", shuffle=True, seed=5, shard_info=share)),
        source.num_input_examples("train"),
        source.list_shards("train"),
    )


@pytest.fixture(scope="module")
def on_disk(folder):
    with pytest.MonkeyPatch.context() as patch:
        small_pieces(patch, 500)
        return orders(folder)


@pytest.mark.parametrize("every", [0, 5])
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_rows_and_their_order_are_those_of_the_files_on_disk(
    stores, monkeypatch, folder, on_disk, texts, scheme, every
):
    small_pieces(monkeypatch, 500)
    corpus = send(folder, emulators.new_bucket(scheme))
    with faulty_store(stores, scheme, every=every, delay=0.01) as proxy:
        assert orders(corpus) == on_disk
    assert on_disk[0] == texts and on_disk[2][:400] != on_disk[2][400:]
    assert bool(proxy.faults) == bool(every)


def test_globs_folders_and_lists(bucket):
    for name in ("b.jsonl", "a.jsonl.zst", "c.parquet", "deep/er/d.jsonl", "x.txt", "one[1].jsonl"):
        files.write_whole(f"{bucket}/in/{name}", "x")
    found = finding.find_files
    assert found(f"{bucket}/in/*.jsonl*") == [f"{bucket}/in/{n}" for n in ("a.jsonl.zst", "b.jsonl", "one[1].jsonl")]
    assert found(f"{bucket}/in/**/*.jsonl")[-2:] == [f"{bucket}/in/deep/er/d.jsonl", f"{bucket}/in/one[1].jsonl"]
    assert found([f"{bucket}/in/one[1].jsonl", f"{bucket}/in/b.jsonl"])[0] == f"{bucket}/in/one[1].jsonl"
    with pytest.raises(JsonlError, match=f"^{bucket}/in: the folder holds both a.jsonl.zst and c.parquet"):
        found(f"{bucket}/in")
    files.remove(f"{bucket}/in/c.parquet")
    assert found(f"{bucket}/in/") == [f"{bucket}/in/{n}" for n in ("a.jsonl.zst", "b.jsonl", "one[1].jsonl")]
    for missing in (f"{bucket}/no.jsonl", f"{bucket}/no*", "gs://no-such-bucket/x.jsonl"):
        with pytest.raises(finding.MissingFileError, match="no JSONL file for") as caught:
            found(missing)
        assert "\n" not in str(caught.value)


def test_a_file_url_is_the_file(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", ["one"])
    monkeypatch.chdir(tmp_path)
    assert [row["text"] for row in read_rows(f"file://{path}")] == ["one"]
    assert finding.find_files("file:a.jsonl") == ["a.jsonl"]
    assert sorted(os.listdir()) == ["a.jsonl"]


def test_a_changed_object_is_refused(stores, bucket):
    scheme = bucket.split(":")[0]
    with faulty_store(stores, scheme, every=0):
        path = f"{bucket}/a.jsonl"
        files.write_whole(path, '{"text": "before"}\n' * 9)
        dataset = JsonlDataSource({"train": path}).get_dataset("train", shuffle=False)
        files.write_whole(path, '{"text": "after!"}\n' * 9)
        with pytest.raises(Exception) as caught:
            texts_of(dataset)
        assert jsonl.original_error(caught.value).startswith(f"{path}: its content changed while in use")


def test_few_requests_are_made(stores, monkeypatch):
    monkeypatch.setattr(jsonl, "_MIN_RANGE", 64 * 1024)
    bucket = emulators.new_bucket("gs")
    lines = [json.dumps({"text": f"{i} " + "word " * 20}) for i in range(20000)]
    files.write_whole(f"{bucket}/a.jsonl", "\n".join(lines))
    with faulty_store(stores, "gs", every=0) as proxy:
        source = JsonlDataSource({"train": f"{bucket}/a.jsonl"})
        pieces = len(source.list_shards("train"))
        looked = set(proxy.asked)  # distinct: a busy server may be asked again
        assert 30 < pieces < 64 and len(looked) == 2 + (pieces - 1), "what is there; where a line begins in each piece"
        assert source.list_shards("train") and set(proxy.asked) == looked, "nothing new"
        begun = len(proxy.asked)
        assert len(texts_of(source.get_dataset("train", shuffle=True, seed=1))) == 20000
        read = set(proxy.asked[begun:])
        assert len(read) == 2 + pieces, "what is there; each piece"


def test_reading_stays_ahead_and_memory_flat(stores, monkeypatch):
    blocks = []
    monkeypatch.setattr(
        ranges, "fetch", lambda path, found, start, stop: blocks.append((start, stop)) or bytes(stop - start)
    )
    reader = ranges.RangeReader("gs://bucket/x", ranges.Status(10_000, "1"), block=1000)
    for position in range(0, 10_000, 500):
        assert reader.read(500) == bytes(500)
        reader._ahead and reader._ahead.result()
        assert blocks[-1][0] <= position + 1000 and len(reader._block) <= 1000
    assert blocks == [(start, start + 1000) for start in range(0, 10_000, 1000)]
    blocks.clear()
    reader = ranges.RangeReader("gs://bucket/x", ranges.Status(10_000_000, "1"), start=5000, stop=9000, block=100_000)
    reader.seek(5000)
    assert len(reader.read(4000)) == 4000 and blocks == [(5000, 9000 + 64 * 1024)]


def test_what_a_store_refuses_is_one_line(stores):
    for scheme in ("gs", "s3"):
        bucket = emulators.new_bucket(scheme)
        files.write_whole(f"{bucket}/a.jsonl", '{"text": "x"}\n')
        for status, message in (
            ("403", "access was denied"),
            ("401", "denied|credentials"),
            ("503", "the store failed"),
        ):
            with faulty_store(stores, scheme, every=1, faults=[status]):
                with pytest.raises(JsonlError, match=f"^{bucket}/a.jsonl: .*({message})") as caught:
                    list(read_rows(f"{bucket}/a.jsonl"))
                assert "\n" not in str(caught.value)


# --- the web and the Hub -----------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch, folder, texts):
    table = pa.table({"id": range(400), "text": texts})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=90)
    served = {path.name: path.read_bytes() for path in folder.iterdir()}
    served["data/all.parquet"] = sink.getvalue().to_pybytes()
    with HubServer("someone/texts", served) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.endpoint)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            server.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        )
        emulators.forget_connections()
        yield server
        emulators.forget_connections()


def test_the_web_is_read_by_ranges(hub, folder, texts, monkeypatch):
    small_pieces(monkeypatch, 500)
    urls = [f"{hub.endpoint}/datasets/someone/texts/resolve/main/{path.name}" for path in sorted(folder.iterdir())]
    assert [row["text"] for row in read_rows([f"{urls[0]}?download=1", *urls[1:]])] == texts
    assert orders(urls)[2] == orders(sorted(folder.iterdir()))[2]
    with pytest.raises(JsonlError, match="no such file"):
        list(read_rows(urls[0] + "x"))


def test_the_hub_is_read_by_ranges(hub, folder, texts):
    dataset = "hf://datasets/someone/texts"
    assert [row["text"] for row in read_rows(f"{dataset}/*.jsonl*")] == texts
    assert [row["text"] for row in read_rows(dataset)] == texts
    assert [row["text"] for row in read_rows(f"{dataset}/data")] == texts
    source = JsonlDataSource({"train": f"{dataset}/data/*.parquet"})
    assert len(source.list_shards("train")) == 5 and source.num_input_examples("train") == 400
    assert sorted(texts_of(source.get_dataset("train", shuffle=True, seed=1))) == sorted(texts)


def test_a_server_without_ranges_is_refused_in_one_line(hub, monkeypatch):
    monkeypatch.setattr("hub_server._Handler._send_file", lambda self, name: self._send(self.server.files[name]))
    with pytest.raises(JsonlError, match=r"0\.jsonl: the server sends no ranges of a file .*Download it"):
        list(read_rows(f"{hub.endpoint}/datasets/someone/texts/resolve/main/0.jsonl"))
