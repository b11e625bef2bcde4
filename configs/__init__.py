"""The recipes, as a package, so that they are installed with t5xpg."""
