"""Home of the embedded engine, which is imported as `t5x` and never under this package's name."""
