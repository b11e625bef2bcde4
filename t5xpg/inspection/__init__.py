"""What a model will see of a task.

`measurements` takes a sample, `readable` shows ids as text, `code` names the lines that do it.

`page` and `terminal` show what these found. From Python:

    from t5xpg.inspection import measurements
    seen = measurements.inspect("wikitext_span_corruption", {"inputs": 512, "targets": 114})
"""
