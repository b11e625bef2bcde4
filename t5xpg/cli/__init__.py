"""The `t5xpg` command: one small file per group of verbs; whatever is heavy is imported when a verb runs."""
