"""What the demo ends with."""

from written_runs import write_run

from t5xpg.cli import demo


def test_the_demo_ends_with_the_report(tmp_path, capsys):
    demo.write_report(str(write_run(tmp_path / "run")), path := str(tmp_path / "report.html"))
    assert path in capsys.readouterr().out and "Report: run" in (tmp_path / "report.html").read_text(encoding="utf-8")
