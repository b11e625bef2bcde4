"""Prints what pyproject.toml requires, and its extras that are named: what a layer of libraries installs."""

from __future__ import annotations

import sys
from pathlib import Path

import tomllib


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """Returns the requirements of t5xpg and of these extras; raises KeyError for an extra that there is not."""
    project = tomllib.loads(pyproject)["project"]
    return [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]


if __name__ == "__main__":
    print("\n".join(requirements(Path("pyproject.toml").read_text(encoding="utf-8"), sys.argv[1:])))
