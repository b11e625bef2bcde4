"""What is ours in the engine: T5X has no module of these names."""
