"""The same functions on gs:// and s3://: whole or not at all, and one line where a store refuses."""

import os

import emulators
import pytest

from t5xpg.base import files, stores


def test_what_is_written_is_read(bucket):
    files.write_whole(f"{bucket}/a/x.txt", "Größe")
    with files.open_whole(f"{bucket}/a/b/y.txt") as file:
        file.write("zwei\n")
        assert not files.exists(f"{bucket}/a/b/y.txt")
    assert files.read_text(f"{bucket}/a/x.txt") == "Größe"
    assert files.read_text(f"{bucket}/a/b/y.txt") == "zwei\n"
    assert files.names_in(f"{bucket}/a") == ["b", "x.txt"]
    assert files.is_folder(f"{bucket}/a/b") and files.is_file(f"{bucket}/a/x.txt")
    assert files.size(f"{bucket}/a/x.txt") == 7
    assert files.matching(f"{bucket}/a/**/*.txt") == [f"{bucket}/a/b/y.txt", f"{bucket}/a/x.txt"]


def test_a_large_file_in_parts_can_be_read_anywhere(bucket):
    content = os.urandom(9 * 2**20)
    with files.open_whole(f"{bucket}/large", "wb") as file:
        for start in range(0, len(content), 2**20):
            file.write(content[start : start + 2**20])
    with files.open_binary(f"{bucket}/large", block_size=2**20) as file:
        file.seek(5 * 2**20 - 3)
        assert file.read(7) == content[5 * 2**20 - 3 :][:7]
    assert files.read_bytes(f"{bucket}/large") == content


def test_an_error_leaves_what_was_there(bucket):
    files.write_whole(f"{bucket}/a.json", "old")
    with pytest.raises(ZeroDivisionError), files.open_whole(f"{bucket}/a.json") as file:
        file.write("half")
        _ = 1 / 0
    assert files.read_text(f"{bucket}/a.json") == "old"
    assert files.names_in(bucket) == ["a.json"]


def test_a_folder_is_sent_with_its_marker_last(bucket):
    sent = []
    system = stores.file_system(bucket)
    with pytest.MonkeyPatch.context() as patch:
        put = system.put_file
        patch.setattr(system, "put_file", lambda local, remote: (sent.append(remote), put(local, remote)))
        with files.make_folder_whole(f"{bucket}/model") as part:
            for name in ("config.json", "a.bin", "z.bin"):
                (part / name).write_text(name)
            (part / "sub").mkdir()
            (part / "sub" / "b.bin").write_text("b")
    assert [os.path.basename(path) for path in sent] == ["a.bin", "b.bin", "z.bin", "config.json"]
    assert files.names_in(f"{bucket}/model") == ["a.bin", "config.json", "sub", "z.bin"]
    with pytest.raises(FileExistsError, match="model: exists already"), files.make_folder_whole(f"{bucket}/model"):
        pytest.fail("a folder that is there was given to write to")
    with files.local_copy(f"{bucket}/model") as local:
        assert sorted(os.listdir(local)) == ["a.bin", "config.json", "sub", "z.bin"]
    assert not os.path.exists(local)


def test_a_folder_is_moved_and_removed(bucket):
    files.write_whole(f"{bucket}/old/x", "1")
    files.write_whole(f"{bucket}/old/sub/y", "2")
    files.move(f"{bucket}/old", f"{bucket}/new")
    assert files.names_in(bucket) == ["new"]
    assert files.read_text(f"{bucket}/new/sub/y") == "2"
    files.remove(f"{bucket}/new")
    files.remove(f"{bucket}/new")
    assert files.names_in(bucket) == []


def test_an_unknown_bucket_is_one_line(stores):
    for scheme in ("gs", "s3"):
        for attempt in (files.read_bytes, lambda path: files.write_whole(path, "x")):
            with pytest.raises(FileNotFoundError, match=rf"^{scheme}://no-such-bucket/x: there is no bucket") as caught:
                attempt(f"{scheme}://no-such-bucket/x")
            assert "\n" not in str(caught.value)
        bucket = emulators.new_bucket(scheme)
        with pytest.raises(FileNotFoundError, match=r"x: there is no such file"):
            files.read_bytes(f"{bucket}/x")


def test_a_request_without_an_answer_has_an_end(bucket):
    system = stores.file_system(bucket)
    assert (system.requests_timeout.sock_read if bucket.startswith("gs:") else system.s3.meta.config.read_timeout) <= 60


def test_a_file_is_created_once(bucket):
    files.create(f"{bucket}/lock", b"mine")
    with pytest.raises(FileExistsError):
        files.create(f"{bucket}/lock", b"yours")
    assert files.read_text(f"{bucket}/lock") == "mine"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("file:///a/b/", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("/a//b/../c", "/a/c"),
        ("gs://bucket/run/", "gs://bucket/run"),
        ("hf://datasets/x/y", "hf://datasets/x/y"),
    ],
)
def test_a_path_has_one_name(path, found):
    assert stores.absolute(path) == found


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gs:/bucket/run", r"two slashes; write gs://bucket/run"),
        ("ftp://host/run", r"ftp:// cannot be read or written"),
        ("file://host/run", r"file:// takes a path on this machine"),
    ],
)
def test_what_is_no_url_of_ours_is_refused(path, message):
    with pytest.raises(ValueError, match=message):
        stores.absolute(path)


@pytest.mark.parametrize("scheme", ["https", "hf"])
def test_what_can_only_be_read_is_not_written_to(scheme):
    with pytest.raises(ValueError, match=rf"{scheme}:// can only be read; write to a local path, gs:// or s3://"):
        files.write_whole(f"{scheme}://host/x", "")
