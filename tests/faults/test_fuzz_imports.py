"""Dozens of damaged Hugging Face folders, by the program that does thousands; its docstring says what must hold."""

import pytest
from conftest import TESTS

pytest.importorskip("transformers")
pytest.importorskip("torch")


def test_damaged_folders_are_imported_as_they_stand_or_named(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(TESTS.parent / "benchmarks"))
    import fuzz_imports

    failures = fuzz_imports.run(48, 1)
    printed = capsys.readouterr().out
    assert failures == 0, printed
    assert "48 cases of seed 1, 0 failures" in printed and ": named" in printed and ": imported" in printed
