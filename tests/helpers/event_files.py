"""The numbers and texts in the event files of a run."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray


def curve(folder) -> dict[tuple[str, int], float]:
    """Returns {(tag, step): value} of the numbers in a folder's event files, times and memory aside."""
    vary = ("timing/", "memory/")
    return {key: value for key, value in curve_of(folder).items() if not key[0].startswith(vary)}


def curve_of(folder, beginning: str = "") -> dict[tuple[str, int], float]:
    """Returns {(tag, step): value} of the numbers whose tags begin so."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    tags = [tag for tag in events.Tags()["tensors"] if tag.startswith(beginning)]
    found = {(tag, event.step): make_ndarray(event.tensor_proto) for tag in tags for event in events.Tensors(tag)}
    return {key: float(value) for key, value in found.items() if value.dtype.kind == "f"}


def texts_in(folder) -> dict[tuple[str, int], str]:
    """Returns {(tag, step): text} of the texts in a folder's event files."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    tags = [tag for tag in events.Tags()["tensors"] if events.SummaryMetadata(tag).plugin_data.plugin_name == "text"]
    found = {(tag, event.step): make_ndarray(event.tensor_proto) for tag in tags for event in events.Tensors(tag)}
    return {key: value.item().decode() for key, value in found.items()}
