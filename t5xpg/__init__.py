"""t5xpg: from a pile of text to a trained T5-family model.

Importing this package loads nothing heavy. It only makes `import t5x` answerable: by google-research/t5x
where that is installed, by the embedded engine otherwise (see t5x_finder).
"""

from t5xpg import t5x_finder

__version__ = "0.1.0"

t5x_finder.install()
