"""A file can be read in one sitting and a function on one screen."""

import ast

import pytest
import syntax_trees
from conftest import TESTS

ROOT = TESTS.parent
FILES = sorted(path for folder in ("t5xpg", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
FILE_LINES, FUNCTION_LINES = 450, 60


def lines_of_body(function: ast.FunctionDef) -> int:
    """Without the signature, which may be T5X's, and the docstring."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return function.end_lineno - (first.end_lineno if documented else first.lineno - 1)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= FILE_LINES
    functions = [node for node in ast.walk(syntax_trees.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert not {node.name for node in functions if lines_of_body(node) > FUNCTION_LINES}
