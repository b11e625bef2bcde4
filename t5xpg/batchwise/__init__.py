"""Rows to batches in arrays over many examples, bit for bit as SeqIO makes them one by one."""
