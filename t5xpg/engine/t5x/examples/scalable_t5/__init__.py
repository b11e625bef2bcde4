"""T5 with scanned, rematerialised layers for large models, and its gin files: T5 1.1, mT5, umT5."""
