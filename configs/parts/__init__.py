"""What the recipes include: models, tasks and settings without a run."""
