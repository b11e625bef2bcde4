"""What `t5xpg report` prints."""

import io
import math

import pytest
from rich.console import Console
from written_runs import metrics_line, write_run

from t5xpg.cli import report as verb
from t5xpg.cli.main import main
from t5xpg.report import curves, reading, terminal

HOSTILE = "<script>\x1b[31m red \u202eleft\n"


def printed(runs, **settings):
    console = Console(file=io.StringIO(), highlight=False, **{"width": 80, **settings})
    console.print(terminal.Report(runs, now=1.7e9))
    return console.file.getvalue()


def test_all_is_shown_within_80_columns_without_colours_or_obeyed_signs(tmp_path):
    texts = ((f"What? {HOSTILE}" * 20, "because it is", ("", "because", HOSTILE)),)
    folders = [write_run(tmp_path / name, rate=rate, texts=texts) for name, rate in (("a", 0.01), ("b" * 30, 0.002))]
    for runs in ([reading.read(str(folders[0]))], [reading.read(str(folder)) for folder in folders]):
        text = printed(runs, width=200)
        assert max(map(len, text.splitlines())) <= 80
        assert "\x1b" not in text and "\u202e" not in text
        for part in (
            "Loss, nats per target token",
            "Accuracy",
            "step 400",
            "1 of 3 words",
            "jax",
            "t5xpg train configs",
        ):
            assert part in text
    assert "What differs" in text and "base_learning_rate" in text


def test_right_and_wrong_are_told_apart_without_colours(tmp_path):
    text = printed([reading.read(str(write_run(tmp_path / "run")))])
    assert "the [weather] every" in text and "[water ✗]" not in text  # of 4 steps the first, the second, the last
    assert "[the ✗]" in text and "[∅]" in text


def test_scores_may_be_no_number_and_have_any_name(tmp_path):
    folder = write_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(metrics_line("inference_eval/qa", 400, {"eval/f1[macro]": 5.0, "eval/correlation": "NaN"}))
    text = printed([reading.read(str(folder))])
    assert "f1[macro]" in text and "correlation, of" not in text


def test_a_curve_is_drawn_where_it_has_values():
    line = curves.Line(0, "training", [25, 50], [0.0, 7.0])
    drawn = terminal.sparks(line, 0, 100, 0.0, 7.0)
    assert len(drawn) == terminal.BINS and set(drawn) == {" ", "▁", "█"}
    assert drawn.index("▁") == terminal.BINS // 4 - 1 and drawn.rstrip().endswith("█") and drawn.endswith("    ")
    assert terminal.sparks(curves.Line(0, "", [0, 100], [math.nan, math.inf]), 0, 100, 0.0, 1.0).strip() == ""


def test_a_run_is_followed_until_it_has_ended(tmp_path, monkeypatch, capsys):
    folder, page = write_run(tmp_path / "run", done=200), tmp_path / "report.html"
    seen = []

    def wait(seconds):
        seen.append((seconds, page.exists() and 'http-equiv="refresh"' in page.read_text(encoding="utf-8")))
        ended = write_run(tmp_path / f"done{len(seen)}")
        for name in ("metrics.jsonl", "starts.jsonl"):
            (folder / name).write_bytes((ended / name).read_bytes())

    monkeypatch.setattr(verb.time, "sleep", wait)
    assert main(["report", str(folder), "--html", str(page), "--follow"]) == 0
    assert seen == [(verb.PERIOD, True)] and 'http-equiv="refresh"' not in page.read_text(encoding="utf-8")
    assert "finished at step 400" in page.read_text(encoding="utf-8")
    folder = write_run(tmp_path / "other", done=200)
    assert main(["report", str(folder), "--follow"]) == 0
    assert capsys.readouterr().out.count("other: ") == 1  # no terminal: once, at the end
    assert len(seen) == 2


def test_an_interrupted_report_leaves_a_page_that_stays(tmp_path, monkeypatch):
    folder, page = write_run(tmp_path / "run", done=200), tmp_path / "report.html"

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(verb.time, "sleep", interrupt)
    assert main(["report", str(folder), "--html", str(page), "--follow"]) == 130
    assert 'http-equiv="refresh"' not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_without_numbers_is_said_to_have_none(count, tmp_path, capsys):
    folders = [write_run(tmp_path / f"run{i}", done=0) for i in range(count)]
    assert main(["report", *map(str, folders), "--html", str(tmp_path / "r.html")]) == 0
    assert main(["report", *map(str, folders)]) == 0
    assert "run0: at step 0 of 400" in capsys.readouterr().out
    assert "No numbers yet." in (tmp_path / "r.html").read_text(encoding="utf-8")
