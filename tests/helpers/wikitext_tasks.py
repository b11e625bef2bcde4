"""What the tests of tasks share: the texts of the fixture `folder`, and a task's examples."""

import seqio

LENGTHS = {"inputs": 64, "targets": 14}
TEXTS = ["The quick brown fox jumps over the lazy dog.", "水は高きから低きに流れる", "z" * 300] * 8


def ids(task, split="train", **kwargs):
    ds = seqio.get_mixture_or_task(task).get_dataset(LENGTHS, split, shuffle=False, **kwargs)
    return [(e["inputs"].tolist(), e["targets"].tolist()) for e in ds.as_numpy_iterator()]
