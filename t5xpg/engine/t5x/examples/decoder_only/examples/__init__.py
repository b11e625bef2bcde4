"""T5 as a flax network, and its gin files: T5 1.0, T5 1.1, mT5, ByT5."""
