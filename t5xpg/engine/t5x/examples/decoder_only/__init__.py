"""A decoder-only transformer as a flax network, and its gin files."""
