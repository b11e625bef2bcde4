"""Files and folders appear whole or not at all, and nothing is left beside them."""

import os

import pytest

from t5xpg.base import files


def test_a_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "new folder" / "a.json"
    with files.open_whole(path) as file:
        file.write("Größe")
        assert not path.exists()
    assert path.read_bytes() == "Größe".encode()
    assert os.listdir(path.parent) == ["a.json"]


@pytest.mark.parametrize("content", ["text", b"\x00\xff"])
def test_content_is_written_as_it_is(tmp_path, content):
    files.write_whole(tmp_path / "a", content)
    assert (tmp_path / "a").read_bytes() == (content.encode() if isinstance(content, str) else content)


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), files.open_whole(path) as file:
        file.write("half")
        _ = 1 / 0
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_whole(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.json"]


def test_a_folder_appears_whole_and_replaces_none(tmp_path):
    target = tmp_path / "model"
    with files.make_folder_whole(target) as part:
        (part / "config.json").write_text("{}")
        assert not target.exists()
    assert os.listdir(target) == ["config.json"]
    with pytest.raises(FileExistsError, match="model: exists already"), files.make_folder_whole(target):
        pytest.fail("a folder that is there was given to write to")
    with pytest.raises(KeyError), files.make_folder_whole(tmp_path / "other") as part:
        (part / "half").write_text("")
        raise KeyError
    assert os.listdir(tmp_path) == ["model"]
