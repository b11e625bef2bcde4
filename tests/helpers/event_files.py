"""The numbers in the event files of a run."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray


def curve(folder) -> dict[tuple[str, int], float]:
    """Returns {(tag, step): value} of the numbers in a folder's event files, times aside."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    tags = events.Tags()["tensors"]
    found = {(tag, event.step): make_ndarray(event.tensor_proto) for tag in tags for event in events.Tensors(tag)}
    timed = {key for key in found if key[0].startswith("timing/")}
    return {key: float(value) for key, value in found.items() if value.dtype.kind == "f" and key not in timed}
