"""From files to rows: corpora to fetch and prepare, JSONL files as a SeqIO source, and the offline cache of a task."""
