"""The packages; all else is in pyproject.toml. `configs/`, at the root of a checkout, is shipped as t5xpg.configs."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["t5xpg", "t5xpg.*"]), "t5xpg.configs", "t5xpg.configs.parts"],
    package_dir={"t5xpg.configs": "configs"},
    package_data={"": ["*.gin", "*.html", "*.css", "*.js", "*.txt", "py.typed"]},
)
