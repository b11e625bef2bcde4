"""What a step can be compiled for without being there: TPU slices and the GPUs of a node, and their chips' figures.

TPUs' figures are those of Google's pages on each version (https://cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e),
GPUs' those of NVIDIA's data sheets ("A100", "H100", "H200" and "L4 Tensor Core GPU"), of the SXM boards where there
are several: bfloat16 without sparsity, and of links (a TPU's interconnect, NVLink, the L4's PCIe) what a chip can send
over all of them at once, half of the "bidirectional" figure there. A GPU's memory is what CUDA says that a program can
have of it, in whole GiB, and what its compiler asks for is in the table "Compute Capabilities" of the CUDA programming
guide and NVIDIA's white papers on Ampere, Ada and Hopper.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any


@dataclasses.dataclass(frozen=True)
class Chip:
    """A TPU or a GPU.

    Attributes:
      memory: GiB of its main memory.
      tflops: 10^12 bfloat16 operations a second.
      memory_speed: GB a second from and to its main memory.
      network_speed: GB a second that it can send to other chips of its slice or node.
    """

    memory: int
    tflops: float
    memory_speed: float
    network_speed: float

    def seconds(self, operations: float, accessed: float, sent: float) -> dict[str, float]:
        """Returns how long a program takes at least by each of its limits.

        Args:
          operations: of its products.
          accessed: bytes from and to main memory.
          sent: bytes to other chips.
        """
        return {
            "arithmetic": operations / self.tflops / 1e12,
            "memory": accessed / self.memory_speed / 1e9,
            "network": sent / self.network_speed / 1e9,
        }


@dataclasses.dataclass(frozen=True)
class Tpu(Chip):
    """A TPU version.

    Attributes:
      dimensions: of the slices it comes in.
      cores: what the number in a slice's name counts, for each chip.
    """

    dimensions: int
    cores: int


@dataclasses.dataclass(frozen=True)
class Design:
    """What XLA must know of a GPU, but for its memory, to compile for it.

    Attributes:
      capability: CUDA's compute capability.
      processors: streaming multiprocessors.
      lanes: float32 units of a multiprocessor.
      threads: that a multiprocessor can hold.
      shared: KiB of memory that the threads of a multiprocessor share.
      cache: MiB of the level 2 cache.
      clock: GHz.
    """

    capability: tuple[int, int]
    processors: int
    lanes: int
    threads: int
    shared: int
    cache: int
    clock: float


@dataclasses.dataclass(frozen=True)
class Gpu(Chip):
    design: Design

    def config(self, name: str) -> str:
        """Returns XLA's GpuTargetConfigProto as text, by which it compiles for a GPU that is not there."""
        design = self.design
        major, minor = design.capability
        return f"""
            platform_name: "CUDA" device_description_str: "{name}"
            dnn_version_info {{ major: 9 minor: 10 }} runtime_version {{ major: 12 minor: 9 }}
            gpu_device_info {{
              cuda_compute_capability {{ major: {major} minor: {minor} }} clock_rate_ghz: {design.clock}
              core_count: {design.processors} fpus_per_core: {design.lanes}
              threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: {design.threads}
              block_dim_limit_x: {2**31 - 1} block_dim_limit_y: {2**16 - 1} block_dim_limit_z: {2**16 - 1}
              registers_per_block_limit: {2**16} registers_per_core_limit: {2**16}
              shared_memory_per_core: {design.shared << 10} shared_memory_per_block: {48 << 10}
              shared_memory_per_block_optin: {(design.shared - 1) << 10} l2_cache_size: {design.cache << 20}
              device_memory_size: {self.memory << 30} memory_bandwidth: {round(self.memory_speed * 1e9)}
            }}"""


TPUS = {
    "v4": Tpu(32, 275, 1228, 300, dimensions=3, cores=2),
    "v5e": Tpu(16, 197, 819, 200, dimensions=2, cores=1),
    "v5p": Tpu(95, 459, 2765, 600, dimensions=3, cores=2),
    "v6e": Tpu(32, 918, 1638, 400, dimensions=2, cores=1),
}
AMPERE = Design((8, 0), processors=108, lanes=64, threads=2048, shared=164, cache=40, clock=1.41)
ADA = Design((8, 9), processors=58, lanes=128, threads=1536, shared=100, cache=48, clock=2.04)
HOPPER = Design((9, 0), processors=132, lanes=128, threads=2048, shared=228, cache=50, clock=1.98)
GPUS = {
    "a100-40": Gpu(39, 312, 1555, 300, AMPERE),
    "a100-80": Gpu(79, 312, 2039, 300, AMPERE),
    "h100": Gpu(79, 989, 3350, 450, HOPPER),
    "h200": Gpu(139, 989, 4800, 450, HOPPER),
    "l4": Gpu(22, 121, 300, 32, ADA),
}
OTHER_NAMES = {"v5litepod": "v5e", "v5lite": "v5e", "a100": "a100-40", "h100-80": "h100"}
IN_A_NODE = 8  # GPUs; between nodes the speed would be that of network cards, of which each site has others
KNOWN_TPUS = "v4-32, v5e-16 (also v5litepod-16), v5p-16, v6e-8, or with the shape, v5e:4x4, v4:2x2x4"
KNOWN_GPUS = f"{', '.join(GPUS)}, or several of a node, h100:8"
POWERS = {2: (0, *range(2, 9)), 3: tuple(range(2, 13))}  # {dimensions: powers of two that slices have chips}


@dataclasses.dataclass(frozen=True)
class Target:
    """A TPU slice, or GPUs of a node.

    Attributes:
      name: as it is printed, such as v5e:4x4 or h100:8.
      chip: what each of its chips is.
      chips: how many there are.
      platform: "tpu" or "cuda".
      options: what jax.experimental.topologies.get_topology_desc needs besides the platform.
    """

    name: str
    chip: Chip
    chips: int
    platform: str
    options: dict[str, Any]


def find(name: str) -> Target:
    """Returns the slice of a name of Google's (v5litepod-16) or JAX's (v5e:4x4), or GPUs by name and number (h100:8).

    Raises:
      ValueError: there are none; the message lists what there is.
    """
    found = re.fullmatch(r"(?:tpu-?)?(v\w+)(?:-(\d+)|:(\d+(?:x\d+)*))", name.lower())
    if found and (version := OTHER_NAMES.get(found[1], found[1])) in TPUS:
        chip = TPUS[version]
        return _slice(
            version, chip, _shape(name, version, found[3]) if found[3] else shape_of(name, chip, int(found[2]))
        )
    kind, _, number = name.lower().partition(":")
    if (kind := OTHER_NAMES.get(kind, kind)) in GPUS and re.fullmatch(r"\d*", number):
        return _gpus(name, kind, int(number or 1))
    raise ValueError(
        f"{name!r} is nothing that steps are compiled for; that is TPU slices, {KNOWN_TPUS}, and GPUs, {KNOWN_GPUS}."
    )


def _slice(version: str, chip: Tpu, shape: tuple[int, ...]) -> Target:
    name, chips = f"{version}:{'x'.join(map(str, shape))}", math.prod(shape)
    options: dict[str, Any] = {"topology_name": name}
    if version == "v4":
        options["chip_config_name"] = "megacore"
    if chips == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    return Target(name, chip, chips, "tpu", options)


def _gpus(name: str, kind: str, number: int) -> Target:
    if not 1 <= number <= IN_A_NODE:
        raise ValueError(f"{name}: steps are compiled for 1 to {IN_A_NODE} GPUs of one node, as {kind}:{IN_A_NODE}.")
    # XLA's topology: groups of nodes, nodes of each, GPUs of each node.
    options = {"target_config": GPUS[kind].config(kind), "topology": f"1x1x{number}"}
    return Target(f"{kind}:{number}", GPUS[kind], number, "cuda", options)


def _shape(name: str, version: str, text: str) -> tuple[int, ...]:
    shape, dimensions = tuple(map(int, text.split("x"))), TPUS[version].dimensions
    if len(shape) != dimensions or not all(shape):
        example = "x".join("2" * dimensions)
        raise ValueError(f"{name}: a {version} slice has {dimensions} dimensions, as {version}:{example} has.")
    return shape


def shape_of(name: str, chip: Tpu, number: int) -> tuple[int, ...]:
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
