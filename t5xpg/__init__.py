"""t5xpg: from a pile of text to a trained T5-family model.

Importing this package loads nothing heavy. It only makes `import t5x` work: by google-research/t5x
where that is installed, by the embedded engine otherwise (see t5x_finder). `t5xpg.Model`, a trained model in
Python, is loaded on first use.
"""

from t5xpg import t5x_finder

__version__ = "0.1.0"

t5x_finder.install()


def __getattr__(name: str):
    if name == "Model":
        from t5xpg.model import Model

        return Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
