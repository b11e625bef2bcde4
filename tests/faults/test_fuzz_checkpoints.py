"""Some damaged checkpoints, by the program that does hundreds; its docstring says what must hold."""

from conftest import TESTS


def test_damaged_checkpoints_are_restored_to_the_bit_or_named(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(TESTS.parent / "benchmarks"))
    import fuzz_checkpoints

    failures = fuzz_checkpoints.run(30, 2)
    printed = capsys.readouterr().out
    assert failures == 0, printed
    named, restored = (int(word.split()[0]) for word in printed.split(": ")[-1].split(", "))
    assert named > 10 and restored > 1
