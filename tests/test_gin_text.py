"""What gin files say, read as text: against gin itself, and faults."""

import gin
import pytest
from conftest import TESTS

from t5xpg import gin_text, recipes


@pytest.mark.parametrize("recipe", ["t5_flax_tiny", "t5_encoder_tiny", "squad_byt5_tiny"])
def test_macros_have_the_values_that_gin_gives_them(recipe, monkeypatch):
    monkeypatch.chdir(TESTS.parent)
    path = f"configs/{recipe}.gin"
    with recipes.parsing():
        gin.parse_config(f"include {path!r}")
        used = {name for (name, configurable) in gin.config._CONFIG if configurable == "gin.macro"}
        macros = {name: binding.value for name, binding in gin_text.read(path).items() if binding.is_macro}
        assert macros.keys() == used
        for name, value in macros.items():
            assert value == repr(gin.query_parameter(f"%{name}")), name


def test_finds_files_as_gin_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gin_text.find("configs/byt5_tiny.gin") == str(recipes.recipes_root() / "configs/byt5_tiny.gin")
    engine = gin_text.t5x_root()
    assert gin_text.find("t5x/configs/runs/pretrain.gin", engine) == str(engine / "t5x/configs/runs/pretrain.gin")
    assert gin_text.find("t5x/configs/runs/pretrain.gin") is None
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "byt5_tiny.gin").write_text("NAME = 1\n")
    assert gin_text.find("configs/byt5_tiny.gin") == "configs/byt5_tiny.gin"
    assert gin_text.find("configs") is None


def test_reads_a_recipe_at_a_url(tmp_path):
    (tmp_path / "mine.gin").write_text("include 'configs/byt5_tiny.gin'\nNAME = 'mine'\n")
    bindings = gin_text.read(f"file://{tmp_path}/mine.gin")
    assert bindings["NAME"].value == "'mine'" and bindings["FILES"].is_required


def test_values_are_the_installed_t5xs_and_explanations_the_engines(tmp_path, monkeypatch):
    (tmp_path / "t5x" / "configs" / "runs").mkdir(parents=True)
    (tmp_path / "t5x" / "configs" / "runs" / "pretrain.gin").write_text("include 't5x/theirs.gin'\nBATCH_SIZE = 99\n")
    (tmp_path / "t5x" / "theirs.gin").write_text("# Odd.\nBATCH_SIZE = 98\nTHEIRS = 1  # new\n")
    here = gin_text.read("t5x/configs/runs/pretrain.gin")["BATCH_SIZE"]
    monkeypatch.setattr(gin_text, "t5x_root", lambda: tmp_path)
    bindings = gin_text.read("t5x/configs/runs/pretrain.gin")
    assert bindings.keys() == {"BATCH_SIZE", "THEIRS"}
    assert here.value == "128" and bindings["BATCH_SIZE"].value == "99"
    assert bindings["BATCH_SIZE"].note == here.note and bindings["THEIRS"].note == "new"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NAME = = 3\n", r"mine.gin is not gin: .*line 1"),
        ("NAME = [3\n", r"mine.gin is not gin: "),
        ("include 'nowhere/a.gin'\n", r"There is no gin file nowhere/a.gin: not here"),
    ],
)
def test_names_the_file_that_it_cannot_read(text, message, tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        gin_text.read(str(path))


def test_comments_belong_to_the_line_they_are_beside_or_above():
    text = "# one\n# two\nA = '#x'  # three\n\n# ==== four ----\n\nB = 1\n"
    assert gin_text.comments(text) == ({3: "three"}, {2: "one two", 5: "four"})
