"""The folder that JAX keeps compiled programs in: whose it is, when it is used, and how large it gets."""

import os
import stat

import jax
import pytest

from t5xpg.base import compilation_cache, private

CPU = "processor : {}\nmodel name : A\nflags : {}\ncpu MHz : {}\n\n"


@pytest.fixture
def no_choice(monkeypatch, tmp_path):
    """A home of one's own, and a JAX that has not been told where to keep programs; returns the home."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(private, "keep_programs", lambda cache: True)  # this process keeps them elsewhere
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize("xdg", [None, "", "relative", "elsewhere"])
def test_it_is_in_the_users_own_folder(no_choice, monkeypatch, xdg):
    base = no_choice / ".cache"
    if xdg is not None:
        base = no_choice / xdg if xdg == "elsewhere" else base
        monkeypatch.setenv("XDG_CACHE_HOME", str(base) if xdg == "elsewhere" else xdg)
    compilation_cache.keep()
    root = base / "t5xpg" / "jax"
    assert jax.config.jax_compilation_cache_dir == str(root / compilation_cache.describe_cpu())
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in (root, root / compilation_cache.describe_cpu())] == [
        0o700
    ] * 2
    assert os.listdir(root / compilation_cache.describe_cpu()) == []


@pytest.mark.parametrize(
    ("name", "value"), [("jax_compilation_cache_dir", "/a"), ("jax_enable_compilation_cache", False)]
)
def test_jaxs_own_settings_go_first(no_choice, name, value):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    compilation_cache.keep()
    found = jax.config.jax_compilation_cache_dir
    jax.config.update(name, before)
    assert found == (value or None) and os.listdir(no_choice) == []


def test_without_a_place_nothing_is_kept_and_nothing_fails(no_choice, monkeypatch):
    (no_choice / ".cache").write_text("a file")
    compilation_cache.keep()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no/such")  # nobody can write there, root neither
    compilation_cache.keep()
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user without a home
    compilation_cache.keep()
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_where_others_write_nothing_is_loaded(no_choice, mode):
    root = no_choice / ".cache" / "t5xpg" / "jax"
    root.mkdir(parents=True)
    root.chmod(mode)
    compilation_cache.keep()
    assert jax.config.jax_compilation_cache_dir is None


def test_another_users_folder_is_not_used(no_choice, monkeypatch):
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    compilation_cache.keep()
    assert jax.config.jax_compilation_cache_dir is None


def test_cpus_that_can_do_different_things_share_no_folder(tmp_path):
    def name(*processors: str) -> str:
        path = tmp_path / "cpuinfo"
        path.write_text("".join(processors))
        return compilation_cache.describe_cpu(path)

    first = name(CPU.format(0, "avx avx2", 2000), CPU.format(1, "avx avx2", 1000))
    assert first == name(CPU.format(0, "avx avx2", 3000))
    assert first != name(CPU.format(0, "avx avx2 avx512f", 2000))
    assert compilation_cache.describe_cpu(tmp_path / "none") == compilation_cache.describe_cpu(tmp_path / "none either")


def test_the_oldest_go_first(tmp_path):
    (tmp_path / "cpu").mkdir()
    for age, name in enumerate(["c", "a", "cpu/b", "d"]):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (0, 1000 + age))
    compilation_cache.remove_oldest(tmp_path, 40)
    assert len(list(tmp_path.rglob("?"))) == 4
    compilation_cache.remove_oldest(tmp_path, 29)
    assert sorted(path.name for path in tmp_path.rglob("?")) == ["b", "d"]


def test_a_program_comes_back_as_it_was_or_not_at_all(tmp_path):
    programs, content = compilation_cache.Programs(tmp_path), bytes(range(256))
    assert programs.get("key") is None
    programs.put("key", content)
    assert programs.get("key") == content
    whole = (tmp_path / "key").read_bytes()
    damaged = [whole[:-1], whole[:5], b"", whole + b"0", *(flipped(whole, at) for at in range(0, len(whole), 7))]
    for bad in damaged:
        (tmp_path / "key").write_bytes(bad)
        assert programs.get("key") is None and os.listdir(tmp_path) == []


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def test_what_is_used_is_not_the_oldest(tmp_path):
    programs = compilation_cache.Programs(tmp_path)
    for age, key in enumerate(["a", "b"]):
        programs.put(key, b"program")
        os.utime(tmp_path / key, (0, 1000 + age))
    programs.get("a")
    compilation_cache.remove_oldest(tmp_path, 50)
    assert os.listdir(tmp_path) == ["a"]
