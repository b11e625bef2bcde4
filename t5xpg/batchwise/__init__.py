"""Batches for training, made in arrays over many examples: SeqIO's to the bit, in its order, from the same seeds.

SeqIO makes one example after the other, and TensorFlow takes longer to start an operation than to run it. T5X reads
tasks that way; the embedded engine asks a `JsonlTask` for its `batches`. The way of a task's rows:

    Rows {column: texts} -> tokenized {feature: Ragged} -> an objective's steps -> a function that makes a block
    -> Portions, whose threads call it -> Shuffle -> Mix, with other tasks' -> Pack -> what the model reads
    -> tf.data, in batches

Read `stages` first, then, in the order of the way:

- `reading` says what is known here to the last bit, and leaves all else to SeqIO;
- `readers` and `rows`: JSONL files or SeqIO's offline cache, by pieces that take turns, over and over;
- `tokens`, `documents`, `examples`, `noise`: texts to ids, to examples of an objective;
- `stages` (making ahead, shuffling, and how a place is kept), `mixing`, `packing`: what becomes of any examples;
- `dataset`: all of it as a tf.data.Dataset whose iterators TensorFlow saves and restores;
- `random_numbers` and `ragged` are what the others are written in.
"""
