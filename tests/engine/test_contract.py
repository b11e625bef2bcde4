"""T5X's contract, contract.txt, against the engine, and against T5X itself where T5X_SOURCE names its package."""

import os
import re
from pathlib import Path

import pytest
from t5x_names import engine_has, names_of

from t5x.embedded import contract
from t5xpg import name_value

LINES = [line for line in contract.PATH.read_text().splitlines() if line and line[0] not in "#-"]
MISSING = contract.missing()
# Of a module: what an import or an attribute asks for. The others are arguments and members of classes.
MISSING_NAMES = sorted(name for name in MISSING if "(" not in name and not re.search(r"\.[A-Z]\w*\.", name))


def parts_of(line: str) -> tuple[str, set[str]]:
    name, _, parameters = line.partition("(")
    return name, {parameter for parameter in parameters.rstrip(")").split(", ") if parameter}


def test_what_it_lists_as_there_is_there():
    lacking = []
    for name, wanted in map(parts_of, LINES):
        found, parameters = engine_has(name)
        if not found or (parameters is not None and wanted - parameters):
            lacking.append((name, wanted - (parameters or set())))
    assert not lacking


def test_what_recipes_can_bind_beyond_t5x_is_said_to_be_ours():
    """Of the programs and the networks' settings; `t5xpg train --help` lists it."""
    listed = dict(map(parts_of, LINES))
    ours = set()
    for name in filter(re.compile(r"(train|eval|infer|precompile)\.[a-z_]+$|.*Config$").match, listed):
        parameters = engine_has(name)[1]
        ours |= {f"{name}.{parameter}" for parameter in (parameters or set()) - listed[name]}
    assert {"train.train.allow_changes", "examples.t5.network.T5Config.remat_policy"} <= ours
    said = {name.rpartition(".")[2] for name in name_value.OWN_BINDINGS}
    assert {name.rpartition(".")[2] for name in ours} == said - {"seconds"}  # a function's of our own module
    own = [
        ".".join(found)
        for path in contract.PATH.parent.glob("*.py")
        for found in re.findall(r'^@gin.configurable\(module="t5x.embedded.(\w+)"\)\ndef (\w+)', path.read_text(), re.M)
    ]
    assert "waiting.batch_limit" in own
    assert all(any(name.startswith(f"{each}.") for name in name_value.OWN_BINDINGS) for each in own)


def test_what_it_lists_as_missing_is_missing():
    there = []
    for name in MISSING:
        function, parameters = parts_of(name)
        found, taken = engine_has(function)
        if found and (taken is None or parameters <= taken):
            there.append(name)
    assert not there


@pytest.mark.parametrize("name", MISSING_NAMES)
def test_a_missing_name_says_so_in_one_line(name):
    module, _, attribute = name.rpartition(".")
    statement = f"from t5x.{module} import {attribute}" if module else f"import t5x.{attribute}"
    with pytest.raises(ImportError) as error:
        exec(statement, {})
    expected = f"The embedded engine has no t5x.{name} ({MISSING[name]}); an installed google-research/t5x has it."
    assert str(error.value) == expected


def test_a_name_that_t5x_has_not_either_is_an_ordinary_error():
    from t5x import utils

    with pytest.raises(AttributeError, match=r"module 't5x.utils' has no attribute 'restor'"):
        _ = utils.restor
    with pytest.raises(ModuleNotFoundError, match=r"No module named 't5x.util'"):
        exec("import t5x.util", {})


def test_a_module_below_a_missing_one_says_so_too():
    with pytest.raises(ImportError, match=r"has no t5x.contrib \(.*\); an installed"):
        exec("from t5x.contrib.moe import models", {})


@pytest.mark.skipif("T5X_SOURCE" not in os.environ, reason="needs T5X's source")
def test_it_lists_all_of_t5x():
    listed = {name for line in [*LINES, *MISSING] for name in [parts_of(line)[0]]}
    listed_parameters = {(name, p) for line in [*LINES, *MISSING] for name, ps in [parts_of(line)] for p in ps}
    unlisted = []
    for name, parameters in names_of(Path(os.environ["T5X_SOURCE"])):
        owners = [name.rsplit(".", n)[0] for n in range(name.count(".") + 1)]
        if any(owner in MISSING for owner in owners):
            continue
        if name not in listed:
            unlisted.append(name)
        unlisted += [(name, p) for p in parameters or () if (name, p) not in listed_parameters]
    assert not unlisted
