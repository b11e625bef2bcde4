"""The notebook: it runs, at fewer steps than where its outputs come from, and what is kept with it is its own."""

import re

import nbformat
import pytest
from conftest import TESTS

NOTEBOOKS = TESTS.parent / "docs" / "notebooks"
PATH = NOTEBOOKS / "first_model.ipynb"
KEPT = nbformat.read(PATH, as_version=4)
CODE = [i for i, cell in enumerate(KEPT.cells) if cell.cell_type == "code"]
SMALL = "STEPS = 6\nSAMPLE_BYTES = 100_000"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The notebook, run in an empty folder."""
    with pytest.MonkeyPatch.context() as path:
        path.syspath_prepend(str(NOTEBOOKS))
        import execute
    return execute.execute(PATH, tmp_path_factory.mktemp("notebook"), SMALL)


def kinds(cell) -> list[str]:
    """Returns what a cell gives: pictures, values, or "stream" for what it prints."""
    return sorted({name for output in cell.outputs for name in output.get("data", {output.output_type: ""})})


def printed(notebook) -> str:
    return "".join(output.get("text", "") for i in CODE for output in notebook.cells[i].outputs)


def costs(notebook) -> list[float]:
    """Returns the nats per label of held-out examples, before and after training."""
    return list(
        map(float, re.search(r"examples: ([\d.]+) nats per label before, ([\d.]+) after", printed(notebook)).groups())
    )


def test_what_is_kept_is_what_it_gives(ran):
    assert [kinds(KEPT.cells[i]) for i in CODE] == [kinds(ran.cells[i]) for i in CODE]
    assert sum("image/png" in kinds(KEPT.cells[i]) for i in CODE) == 8


def test_it_goes_from_text_to_a_filled_in_mask(ran):
    text = printed(ran)
    for shown in (
        "python_docs_train.jsonl: ",
        "SpanCorruptionLengths(tokens=141",
        "def span_mask(",
        "step    6: loss ",
    ):
        assert shown in text
    assert re.search(r"^banana +-\d", text, re.MULTILINE)
    assert re.search(r"^<extra_id_0> \w+ <extra_id_1>", printed(KEPT), re.MULTILINE)  # 6 steps have not learned that


@pytest.mark.parametrize("which", ["kept", "ran"])
def test_the_model_has_learned(which, ran):
    before, after = costs(KEPT if which == "kept" else ran)
    assert after < before and 8 < before < 10
    assert after < 5.5 or which == "ran"


def test_it_is_fit_to_be_read_on_github():
    assert PATH.stat().st_size < 400_000
    assert not re.search(r"(?<![\w.~])/(home|root|opt|usr|tmp|work)/", printed(KEPT))
    assert not [output for i in CODE for output in KEPT.cells[i].outputs if output.get("name") == "stderr"]
    assert [KEPT.cells[i].execution_count for i in CODE] == list(range(1, len(CODE) + 1))
