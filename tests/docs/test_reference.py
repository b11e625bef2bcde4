"""docs/reference/ against the code: verbs and gin names as made from it, variables, files, metrics and messages."""

import inspect
import re

import doc_pages
import pytest
import reference_pages
from doc_pages import ROOT

SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "t5xpg").rglob("*.py"))}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", reference_pages.PAGES)
def test_it_is_what_the_code_makes(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    made = reference_pages.PAGES[name]().rstrip() + "\n"
    assert page(f"reference/{name}") == made, "PYTHONPATH=tests/helpers python tests/helpers/reference_pages.py"


def test_every_environment_variable_is_listed_and_none_else():
    listed = set(re.findall(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)`", page("reference/environment.md")))
    name = r'"([A-Z][A-Z0-9]*_[A-Z0-9_]+)"'
    of_environ = rf"environ(?:\.get|\.setdefault|\.pop)?[(\[]{name}|{name} (?:not )?in (?:os\.environ|variables)"
    read = {match for text in SOURCES.values() for groups in re.findall(of_environ, text) for match in groups if match}
    assert read - listed == set()
    everywhere = "\n".join(SOURCES.values())
    assert {variable for variable in listed if variable not in everywhere} == BY_LIBRARIES


@pytest.mark.parametrize("name", [page.name for page in doc_pages.pages()])
def test_inline_gin_names_are_there(name):
    """`trainer.Trainer.num_microbatches`, `train.eval_period = 100`, `train/utils.DatasetConfig.seed`, …"""
    for code in doc_pages.read(name).inline_code():
        bound = re.fullmatch(r"(?:\w+/)?(\w+)\.(?:(\w+)\.)?([a-z]\w*)(?: ?=.*)?", code)
        if not bound or bound[1] not in MODULES or code.endswith(".log"):
            continue
        function = f"{bound[1]}.{bound[2] or bound[1]}"
        if bound[2] is None and (bound[1] not in PROGRAMS):
            continue  # a function, or a class
        assert bound[3] in inspect.signature(reference_pages.find(function)).parameters, code


PROGRAMS = ("train", "infer")
MODULES = {name.partition(".")[0] for names in reference_pages.GROUPS.values() for name in names}
BY_LIBRARIES = {  # which libraries read and the code does not name
    *("JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE", "JAX_COORDINATOR_PORT"),
    *("AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "HF_TOKEN"),
}


def test_every_metric_of_a_batch_is_explained():
    import jax.numpy as jnp

    from t5x import metrics

    logits, ids = jnp.zeros((2, 4, 8)), jnp.ones((2, 4), jnp.int32)
    segments = {"encoder_segment_ids": ids}
    found = metrics.compute_base_metrics(logits, ids, ids, jnp.float32(1), jnp.float32(0), segments)
    listed = set(re.findall(r"`([\w/…]+)`", page("reference/metrics.md")))
    names = {re.sub(r"/encoder_segment_ids$", "/…", name) for name in [*found, "bits_per_byte", "learning_rate"]}
    assert names - listed == set()


def test_quoted_messages_are_in_the_code():
    """A quoted message is an f-string's parts around what stands in for its values, written as …"""
    literals = [re.sub(r'"\s*\n\s*[rf]*"', "", text) for text in SOURCES.values()]
    text = "\n".join(literals)
    quoted = re.findall(r"^## `(.+)`$", page("faq.md"), re.MULTILINE)
    assert len(quoted) >= 15
    for message in quoted:
        for part in filter(None, (part.strip() for part in message.split("…"))):
            assert part in text, message


def test_the_files_of_a_run_are_listed(micro_run):
    listed = "\n".join(code for code in re.findall(r"`([^`]+)`", page("reference/files.md")))
    for path in micro_run[0].iterdir():
        name = re.sub(r"\d+", "<step>", path.name) if path.name.startswith("checkpoint_") else path.name
        assert name in listed


def test_pages_are_found_by_the_tests():
    assert len(doc_pages.pages()) > 25
