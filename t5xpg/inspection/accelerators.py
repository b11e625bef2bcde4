"""What a step can be compiled for without being there: TPU slices, their names and their chips' figures.

The figures are those of Google's pages on each TPU version (https://cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e):
of the interconnect, what a chip can send over all of its links at once, half of the "bidirectional" figure there.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any


@dataclasses.dataclass(frozen=True)
class Chip:
    """A TPU version.

    Attributes:
      memory: GiB of its main memory.
      tflops: 10^12 bfloat16 operations a second.
      memory_speed: GB a second from and to its main memory.
      network_speed: GB a second that it can send to other chips of its slice.
      dimensions: of the slices it comes in.
      cores: what the number in a slice's name counts, for each chip.
    """

    memory: int
    tflops: float
    memory_speed: float
    network_speed: float
    dimensions: int
    cores: int


CHIPS = {
    "v4": Chip(32, 275, 1228, 300, dimensions=3, cores=2),
    "v5e": Chip(16, 197, 819, 200, dimensions=2, cores=1),
    "v5p": Chip(95, 459, 2765, 600, dimensions=3, cores=2),
    "v6e": Chip(32, 918, 1638, 400, dimensions=2, cores=1),
}
OTHER_NAMES = {"v5litepod": "v5e", "v5lite": "v5e"}
KNOWN = "v4-32, v5e-16 (also v5litepod-16), v5p-16, v6e-8, or with the shape, v5e:4x4, v4:2x2x4"
GPU = r"(gb\d+|rtx\w*|v100|[abhlt]\d+\w*)(-\d+\w*)?(:\d+)?"
POWERS = {2: (0, *range(2, 9)), 3: tuple(range(2, 13))}  # {dimensions: powers of two that slices have chips}


@dataclasses.dataclass(frozen=True)
class Slice:
    """A TPU slice.

    Attributes:
      name: as it was asked for.
      version: a key of CHIPS.
      shape: chips along each dimension.
    """

    name: str
    version: str
    shape: tuple[int, ...]

    @property
    def chip(self) -> Chip:
        return CHIPS[self.version]

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def topology(self) -> str:
        """JAX's name of it."""
        return f"{self.version}:{'x'.join(map(str, self.shape))}"

    @property
    def options(self) -> dict[str, Any]:
        """What jax.experimental.topologies.get_topology_desc needs besides the name."""
        options: dict[str, Any] = {"chip_config_name": "megacore"} if self.version == "v4" else {}
        if self.chips == 1:
            options["chips_per_host_bounds"] = (1, 1, 1)
        return options


def find(name: str) -> Slice:
    """Returns the slice of a name of Google's (v5litepod-16) or JAX's (v5e:4x4).

    Raises:
      ValueError: there is none; the message lists what there is.
    """
    found = re.fullmatch(r"(?:tpu-?)?(v\w+)(?:-(\d+)|:(\d+(?:x\d+)*))", name.lower())
    version = OTHER_NAMES.get(found[1], found[1]) if found else ""
    if found is None or version not in CHIPS:
        if re.fullmatch(GPU, name.lower()):
            raise ValueError(f"{name} is a GPU, and steps are compiled for TPUs only: {KNOWN}.")
        raise ValueError(f"{name!r} is not a TPU slice that steps are compiled for; those are {KNOWN}.")
    chip = CHIPS[version]
    if found[3]:
        shape = tuple(map(int, found[3].split("x")))
        if len(shape) != chip.dimensions or not all(shape):
            example = "x".join("2" * chip.dimensions)
            raise ValueError(f"{name}: a {version} slice has {chip.dimensions} dimensions, as {version}:{example} has.")
        return Slice(name, version, shape)
    return Slice(name, version, shape_of(name, chip, int(found[2])))


def shape_of(name: str, chip: Chip, number: int) -> tuple[int, ...]:
    """Returns the shape that Google gives a slice with this number in its name: as even as powers of two can be.

    Raises:
      ValueError: there is none; slices of other shapes are named by them, as in v5p:4x4x6.
    """
    powers = {chip.cores << power: power for power in POWERS[chip.dimensions]}
    if number not in powers:
        raise ValueError(f"{name}: there is no slice of {number}; those are of {', '.join(map(str, powers))}.")
    if powers[number] == 2 and chip.dimensions == 3:
        return (2, 2, 1)
    each, more = divmod(powers[number], chip.dimensions)
    return tuple(2 ** (each + (i >= chip.dimensions - more)) for i in range(chip.dimensions))
