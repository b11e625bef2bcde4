"""Stores that fail: requests are tried again and nothing is lost; what stays broken is one line."""

import functools
import http.server
import logging
import os
import threading

import emulators
import pytest
from etils import epath
from faulty_proxy import FAULTS, FaultyProxy, faulty_store, lost_removals

from t5xpg.base import files

CONTENT = os.urandom(9 * 2**20)


@pytest.fixture(autouse=True)
def quiet_gcsfs():
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_every_third_request_fails_and_all_is_written_and_read(stores, scheme):
    bucket = emulators.new_bucket(scheme)
    with faulty_store(stores, scheme, every=3) as proxy:
        for part in range(3):
            files.write_whole(f"{bucket}/small-{part}", f"é {part}")
            with files.open_whole(f"{bucket}/large-{part}", "wb") as file:
                for start in range(0, len(CONTENT), 2**20):
                    file.write(CONTENT[start : start + 2**20])
            with files.open_binary(f"{bucket}/large-{part}", block_size=2**22) as file:
                assert file.read() == CONTENT
            assert files.read_text(f"{bucket}/small-{part}") == f"é {part}"
            files.move(f"{bucket}/small-{part}", f"{bucket}/moved/{part}")
            assert files.size(f"{bucket}/large-{part}") == len(CONTENT)
            assert files.matching(f"{bucket}/mov*/{part}") == [f"{bucket}/moved/{part}"]
            files.remove(f"{bucket}/large-{part}")
        assert files.names_in(f"{bucket}/moved") == ["0", "1", "2"]
        assert files.names_in(bucket) == ["moved"]
    assert {fault.split(":")[0] for fault in proxy.faults} == set(FAULTS)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_file_is_whole_where_the_answer_to_each_of_its_parts_is_lost_once(stores, scheme):
    bucket = emulators.new_bucket(scheme)
    with faulty_store(
        stores, scheme, every=2, faults=["lost"], only=lambda method, _: method in ("POST", "PUT")
    ) as proxy:
        with files.open_whole(f"{bucket}/large", "wb") as file:
            for start in range(0, len(CONTENT), 2**20):
                file.write(CONTENT[start : start + 2**20])
        assert len(proxy.faults) >= 2
    assert files.read_bytes(f"{bucket}/large") == CONTENT


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_folder_is_removed_whose_removal_was_answered_by_nobody(stores, scheme):
    """Orbax clears by epath: with the first answer lost, the second is a 404 at gs://."""
    bucket = emulators.new_bucket(scheme)
    with lost_removals(stores, scheme) as proxy:
        for remove in (files.remove, lambda path: epath.Path(path).rmtree()):
            files.write_whole(f"{bucket}/folder/a", "1")
            remove(f"{bucket}/folder")
            assert files.names_in(bucket) == []
        assert len(proxy.faults) >= 2
        files.write_whole(f"{bucket}/a", "1")
        files.move(f"{bucket}/a", f"{bucket}/b")
        assert files.names_in(bucket) == ["b"]
        if scheme == "gs":
            with pytest.raises(FileNotFoundError):
                epath.Path(f"{bucket}/folder").rmtree()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_file_is_created_once_however_often_the_request_is_sent(stores, scheme, fault):
    bucket = emulators.new_bucket(scheme)
    with faulty_store(stores, scheme, every=2, faults=[fault]) as proxy:
        for number in range(3):
            files.create(f"{bucket}/lock-{number}", b"mine")
            with pytest.raises(FileExistsError):
                files.create(f"{bucket}/lock-{number}", b"yours")
            assert files.read_text(f"{bucket}/lock-{number}") == "mine"
    assert proxy.faults


def test_a_refusal_that_does_not_say_which_condition_failed_is_one(stores):
    path = f"{emulators.new_bucket('s3')}/lock"
    files.write_whole(path, "mine")
    with faulty_store(stores, "s3", every=1, faults=["412"], only=lambda method, _: method == "PUT") as proxy:
        files.create(path, b"mine")
        with pytest.raises(FileExistsError, match=rf"^{path}: another process"):
            files.create(path, b"yours")
    assert len(proxy.faults) == 2


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_file_is_replaced_only_as_it_was_found_however_often_the_request_is_sent(stores, scheme):
    path = f"{emulators.new_bucket(scheme)}/lock"
    files.write_whole(path, "first")
    with faulty_store(stores, scheme, every=2) as proxy:
        for number in range(5):
            found = files.status(path)
            files.replace(path, f"mine {number}".encode(), found)
            with pytest.raises(files.ChangedError, match=rf"^{path}: another process"):
                files.replace(path, b"yours", found)
            assert files.read_text(path) == f"mine {number}"
        files.remove(path)
        with pytest.raises(files.ChangedError):
            files.replace(path, b"yours", found)
        assert not files.exists(path)
    assert {fault.split(":")[0] for fault in proxy.faults} == set(FAULTS)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
@pytest.mark.parametrize("status", ["401", "403"])
def test_no_permission_is_one_line(stores, scheme, status):
    bucket = emulators.new_bucket(scheme)
    files.write_whole(f"{bucket}/x", "1")
    with faulty_store(stores, scheme, every=1, faults=[status]):
        for attempt in (files.read_bytes, files.size, lambda path: files.write_whole(path, "2")):
            with pytest.raises(PermissionError, match=rf"^{bucket}/x: ") as caught:
                attempt(f"{bucket}/x")
            assert "\n" not in str(caught.value)
    assert files.read_text(f"{bucket}/x") == "1"


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_store_that_stays_away_is_one_line(stores, scheme):
    bucket = emulators.new_bucket(scheme)
    files.write_whole(f"{bucket}/x", "1")
    with faulty_store(stores, scheme, every=1, faults=["503"]):
        for attempt in (files.read_bytes, lambda path: files.write_whole(path, "2")):
            with pytest.raises(OSError, match=rf"^{bucket}/x: the store failed .*Try again") as caught:
                attempt(f"{bucket}/x")
            assert "\n" not in str(caught.value)
    assert files.read_text(f"{bucket}/x") == "1"


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_part_that_cannot_be_sent_while_the_file_is_written_is_one_line(stores, scheme):
    path = f"{emulators.new_bucket(scheme)}/x"
    with (
        faulty_store(stores, scheme, every=1, faults=["503"]),
        pytest.raises(OSError, match=rf"^{path}: the store failed .*Try again") as caught,
        files.open_whole(path, "wb") as file,
    ):
        file.write(CONTENT)
        pytest.fail("nothing was raised by the write")
    assert "\n" not in str(caught.value)


@pytest.fixture
def web(tmp_path):
    """A web server of tmp_path, behind a proxy that spoils every second request."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with FaultyProxy(f"http://127.0.0.1:{server.server_port}", every=2) as proxy:
            yield proxy
        server.shutdown()


def test_a_web_server_that_fails_now_and_then_is_asked_again(web, tmp_path, monkeypatch):
    monkeypatch.setattr("t5xpg.base.stores._WAITS", (0.01,) * 3)
    (tmp_path / "x.json").write_text("é" * 1000, encoding="utf-8")
    for _ in range(10):
        assert files.read_text(f"{web.address}/x.json") == "é" * 1000
    assert {fault.split(":")[0] for fault in web.faults} == set(FAULTS)
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        files.read_bytes(f"{web.address}/y.json")
