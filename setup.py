"""Packaging. `configs/` lives at the root of the checkout and is shipped as the package t5xpg.configs."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

setup(
    name="t5xpg",
    version=re.search(r'__version__ = "(.+)"', (ROOT / "t5xpg/__init__.py").read_text())[1],
    description="From a pile of text to a trained T5-family model: SeqIO tasks and gin recipes for T5X, with an "
    "embedded engine where T5X cannot be installed.",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=[*find_packages(include=["t5xpg", "t5xpg.*"]), "t5xpg.configs"],
    package_dir={"t5xpg.configs": "configs"},
    package_data={"": ["*.gin", "*.html"]},
    entry_points={"console_scripts": ["t5xpg = t5xpg.cli.main:main"]},
    install_requires=[
        # Data: tasks, their preprocessors and vocabularies.
        "seqio>=0.0.19",
        "t5>=0.9.4",
        "tensorflow>=2.18",
        "tensorflow-text>=2.18",
        "datasets>=3.0",
        "sentencepiece>=0.2",
        "tokenizers>=0.20",
        "orjson>=3.9",
        # Training: T5X's own stack.
        "jax>=0.6",
        "flax>=0.10",
        "optax>=0.2.4",
        "orbax-checkpoint>=0.11",
        "tensorstore>=0.1.60",  # reads the arrays of legacy checkpoints
        "clu>=0.0.12",
        "tensorboard>=2.18",  # clu writes event files with its plugins
        "gin-config>=0.5",
        "psutil>=5.9",
        "absl-py>=2.0",
        "numpy>=1.26",
        # The terminal.
        "tqdm>=4.66",
        "rich>=13",
    ],
    extras_require={
        "hf": ["torch>=2.6", "transformers>=5", "safetensors>=0.5", "huggingface_hub>=1"],
        "test": ["pytest>=8", "pytest-xdist>=3.5", "ruff>=0.6"],
    },
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    keywords="t5 byt5 mt5 t5x seqio jax pretraining span-corruption nlp",
)
