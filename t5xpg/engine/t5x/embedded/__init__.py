"""Our own part of the engine: T5X has no modules with these names."""
