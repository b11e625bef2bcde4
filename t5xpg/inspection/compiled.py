"""What a compiled program does on each chip, read off XLA's text of it: operations, bytes, communication, loops.

XLA's own cost analysis counts the body of a loop once, whatever the number of layers or microbatches, and adds what
stays in on-chip memory to the bytes. Here a body counts as often as it runs, and only what is read from or written to
the chip's main memory does. Sizes include the padding of tiles, as the chip stores them. Products of matrices are
convolutions on a TPU, and calls of cuBLAS on a GPU.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# What moves nothing by itself: names for what is there, and what only runs other computations.
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all"}
FREE |= {"partition-id", "replica-id", "async-start", "async-update", "optimization-barrier", "iota"}
SLICES = {"dynamic-slice", "slice", "gather"}
FUSED_ATTENTION = re.compile(r'"__cudnn\$fmha\w*?(Backward)?"')
CUBLAS = '"gemm_backend_config":'  # in the attributes of what calls it
# Custom calls that multiply no matrices: XLA's own for layouts and indices, random bits, and sorting.
NO_PRODUCTS = re.compile(r"[A-Z]|cu_threefry|__cub\$")

_COMPUTATION = re.compile(r"^(ENTRY )?%(\S+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%(\S+) = (.+?) ([a-z][a-z0-9-]*)\(([^)]*)\)(.*)$")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|called_computations|branch_computations)=(\{[^}]*\}|%[^,\s]+)"
)


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of an instruction's result.

    Attributes:
      shape: its dimensions.
      size: bytes, with the padding of its tiles.
      on_chip: whether it lies in another memory than the chip's main one.
    """

    shape: tuple[int, ...]
    size: int
    on_chip: bool


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    text: str  # its attributes
    is_root: bool

    @property
    def called(self) -> list[str]:
        """The computations that it names."""
        return re.findall(r"%([^,\s{}]+)", " ".join(_CALLED.findall(self.text)))

    @property
    def size(self) -> int:
        return sum(x.size for x in self.arrays)

    @property
    def main_memory(self) -> int:
        """The bytes of the result that lie in the chip's main memory."""
        return sum(x.size for x in self.arrays if not x.on_chip)


@dataclasses.dataclass(frozen=True)
class Moved:
    """What is communicated by one kind of collective operation, in one run of the program.

    Attributes:
      count: how many operations.
      size: bytes of what each chip gives, or, of an all-gather, gets.
      sent: bytes that each chip must send at least, in a ring of its group.
    """

    count: int
    size: int
    sent: float


class Program:
    """A compiled program, by XLA's text of it.

    Args:
      text: as `jax.stages.Compiled.as_text` returns it.

    Attributes:
      unknown_loops: the loops whose number of turns the text does not tell; their bodies are counted once.
    """

    def __init__(self, text: str):
        self._computations: dict[str, dict[str, Instruction]] = {}
        entry = ""
        for line in text.splitlines():
            if found := _COMPUTATION.match(line):
                name = found[2]
                current = self._computations[name] = {}
                entry = name if found[1] else entry
            elif found := _INSTRUCTION.match(line):
                current[found[2]] = _instruction(found)
        self.unknown_loops = 0
        self._runs: Counter[str] = Counter()
        self._inside_fusion: set[str] = set()
        self._count_runs(entry)

    def _count_runs(self, entry: str) -> None:
        """Counts how often each computation runs: callers come after those that they call, in XLA's text."""
        self._runs[entry] = 1
        for name, instructions in reversed(self._computations.items()):
            for instruction in instructions.values():
                times = 1
                if instruction.opcode == "while" and self._runs[name]:
                    turns = self._turns(instruction)
                    self.unknown_loops += turns is None
                    times = 1 if turns is None else turns
                for called in instruction.called:
                    self._runs[called] += self._runs[name] * times
                    # What a reduction applies is of numbers that no memory sees, as a fusion's is.
                    applied = "to_apply=" in instruction.text and instruction.opcode != "call"
                    if instruction.opcode == "fusion" or applied or name in self._inside_fusion:
                        self._inside_fusion.add(called)

    def _turns(self, loop: Instruction) -> int | None:
        """The number of turns of a loop: XLA's own word, or the constant that JAX's loops count to from 0; or None."""
        if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.text):
            return int(known[1])
        condition = re.search(r"condition=%([^,\s]+)", loop.text)
        instructions = self._computations[condition[1]] if condition else {}
        root = next((x for x in instructions.values() if x.is_root), None)
        if root is None or root.opcode != "compare" or "direction=LT" not in root.text:
            return None
        limit = instructions[root.operands[-1]]
        if limit.opcode != "constant":
            return None
        return math.ceil(int(limit.operands[0]) / self._step(loop, root, instructions))

    def _step(self, loop: Instruction, compared: Instruction, condition: dict[str, Instruction]) -> int:
        """What a turn adds to the counter of a loop that `condition` compares: more than 1 where XLA unrolled it.

        1 where the text does not show what is added.
        """
        counter = re.search(r"index=(\d+)", condition[compared.operands[0]].text)
        body = re.search(r"body=%([^,\s]+)", loop.text)
        if counter is None or body is None:
            return 1
        instructions = self._computations[body[1]]
        root = next(x for x in instructions.values() if x.is_root)
        if root.opcode != "tuple":
            return 1
        added = instructions[root.operands[int(counter[1])]]
        constants = [instructions[name] for name in added.operands if added.opcode == "add" and name in instructions]
        return next((int(x.operands[0]) for x in constants if x.opcode == "constant"), 1)

    def _all(self) -> Iterator[tuple[str, int, Instruction]]:
        """Yields (computation, how often it runs, instruction)."""
        for name, instructions in self._computations.items():
            if self._runs[name]:
                for instruction in instructions.values():
                    yield name, self._runs[name], instruction

    def operations(self) -> int:
        """Returns the floating point operations of all products of matrices, twice their multiplications.

        Those of `kernels`, which the text does not tell, are not among them.
        """
        total = 0
        for computation, runs, x in self._all():
            near = self._computations[computation]
            if x.opcode == "convolution":
                total += runs * _operations_of_convolution(x, *(near[name].arrays[0].shape for name in x.operands))
            elif x.opcode == "dot" or CUBLAS in x.text:
                contracted = re.search(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)', x.text)
                left = near[x.operands[0]].arrays[0].shape
                over = math.prod(left[i] for i in _numbers(contracted[1].replace('"', "") if contracted else ""))
                total += runs * 2 * math.prod(x.arrays[0].shape) * over
            elif attention := FUSED_ATTENTION.search(x.text):  # of [batch, length, heads, head_dim]
                query, key = (near[name].arrays[0].shape for name in x.operands[:2])
                products = 5 if attention[1] else 2
                total += runs * products * 2 * math.prod(query) * key[1]
        return total

    def kernels(self) -> Counter[str]:
        """Returns {name: how often it runs} of kernels whose operations XLA's text does not tell, such as Pallas's."""
        found: Counter[str] = Counter()
        for _, runs, x in self._all():
            target = re.search(r'custom_call_target="([^"]*)"', x.text)
            counted = CUBLAS in x.text or FUSED_ATTENTION.search(x.text)
            if target and not counted and not NO_PRODUCTS.match(target[1]):
                found[target[1]] += runs
        return found

    def accessed(self) -> int:
        """Returns the bytes that are read from and written to the chip's main memory."""
        return sum(
            runs * self._accessed_by(x, self._computations[computation])
            for computation, runs, x in self._all()
            if computation not in self._inside_fusion
        )

    def _accessed_by(self, x: Instruction, near: dict[str, Instruction]) -> int:
        operands = [near[name] for name in x.operands if name in near]
        if x.opcode in FREE or x.opcode.endswith("-done") or '"AllocateBuffer"' in x.text:
            return 0
        if x.opcode.removesuffix("-start") in COLLECTIVES:
            read = sum(each.main_memory for each in operands)
            # Begun only, all but an all-reduce give (what is read, what is written).
            return x.main_memory + read * (x.opcode in (*COLLECTIVES, "all-reduce-start"))
        if x.opcode.endswith("-start"):  # (what is written, what is read, …), or the other way round
            both = x.arrays[:2]
            return sum(min(part.size for part in both) for part in both if not part.on_chip)
        if x.opcode == "fusion":
            return self._accessed_by_fusion(x, operands)
        if x.opcode in SLICES:
            return 2 * x.main_memory
        if x.opcode == "dynamic-update-slice":
            return 2 * operands[1].size if x.main_memory else 0
        return x.main_memory + sum(each.main_memory for each in operands)

    def _accessed_by_fusion(self, x: Instruction, operands: list[Instruction]) -> int:
        """A fusion reads of an operand that it only slices, and writes of one that it updates, just that part.

        What a collective operation moves while other fusions run counts where it starts.
        """
        inner = self._computations[x.called[0]]
        if any('"AsyncCollectiveStart"' in each.text for each in inner.values()):
            return x.main_memory
        if any('"AsyncCollectiveDone"' in each.text for each in inner.values()):
            return 0
        results = _results(inner)
        if len(results) == len(x.arrays):
            arrays = zip(results, x.arrays, strict=True)
            written = sum(self._written(part, inner) for part, array in arrays if not array.on_chip)
        else:  # one instruction that has several, as a collective operation
            written = x.main_memory
        return written + sum(
            min(self._read(each, inner), operands[int(each.operands[0])].main_memory)
            for each in inner.values()
            if each.opcode == "parameter"
        )

    def _read(self, x: Instruction, near: dict[str, Instruction]) -> int:
        """The bytes that a fusion reads of one of its operands, which is `x` inside it."""
        total = 0
        for user in (each for each in near.values() if x.name in each.operands):
            is_updated = user.opcode == "dynamic-update-slice" and user.operands[0] == x.name
            if user.opcode == "bitcast":
                total += self._read(user, near)
            elif user.opcode == "fusion":
                inner = self._computations[user.called[0]]
                places = {str(i) for i, name in enumerate(user.operands) if name == x.name}
                total += sum(
                    self._read(each, inner)
                    for each in inner.values()
                    if each.opcode == "parameter" and each.operands[0] in places
                )
            elif user.opcode in SLICES and user.operands[0] == x.name:
                total += user.size
            elif user.opcode != "tuple" and not (is_updated or _chain(user)):
                total += x.size
        return total

    def _written(self, x: Instruction, near: dict[str, Instruction]) -> int:
        """The bytes that a fusion writes of one of its results, which is `x` inside it."""
        x = _behind_bitcasts(x, near)
        if x.opcode == "parameter" or _chain(x):
            return 0
        if x.opcode == "fusion":
            inner = self._computations[x.called[0]]
            return sum(self._written(part, inner) for part in _results(inner))
        return near[x.operands[1]].size if x.opcode == "dynamic-update-slice" else x.size

    def communication(self, chips: int) -> dict[str, Moved]:
        """Returns {kind of COLLECTIVES: what it moves}, for those that there are.

        Args:
          chips: that the program runs on; the group of an operation that names none.
        """
        found: dict[str, list[Moved]] = defaultdict(list)
        chains = set()
        for computation, runs, x in self._all():
            near = self._computations[computation]
            kind = x.opcode.removesuffix("-start")
            chain = _chain(x)
            if kind not in COLLECTIVES or chain in chains:
                continue
            if chain:
                chains.add(chain)
            group = _group_size(x.text, chips)
            size = sum(near[name].size for name in x.operands)
            if kind == "all-gather":
                size *= group
            if kind == "all-reduce" and computation in self._inside_fusion and _is_scattered(x, near):
                kind = "reduce-scatter"
            share = {"all-reduce": 2 * (group - 1) / group, "collective-permute": 1.0}.get(kind, (group - 1) / group)
            found[kind].append(Moved(runs, runs * size, runs * size * share))
        return {
            kind: Moved(*(sum(getattr(x, field) for x in found[kind]) for field in ("count", "size", "sent")))
            for kind in COLLECTIVES
            if kind in found
        }


def _instruction(found: re.Match) -> Instruction:
    is_root, name, shape, opcode, operands, text = found.groups()
    arrays = tuple(map(_array, _ARRAY.finditer(shape)))
    if CUBLAS in text and len(arrays) > 1:
        arrays = arrays[:-1]  # the last is room to work in, of which nobody says how much is used
    # Constants and parameters have their value or number where others have operands.
    names = tuple(re.findall(r"%([^,\s]+)", operands)) or (operands,)
    return Instruction(name, opcode, arrays, names, text, bool(is_root))


def _array(found: re.Match) -> Array:
    kind, dimensions, order, layout = found.groups()
    shape = tuple(_numbers(dimensions))
    padded = [shape[i] for i in reversed(_numbers(order or ""))] or list(shape)
    if tile := re.search(r"T\(([\d,]+)\)", layout or ""):
        sides = _numbers(tile[1])[-len(padded) :] if padded else []
        for i, side in enumerate(sides, len(padded) - len(sides)):
            padded[i] = -(-padded[i] // side) * side
    digits = re.search(r"\d+", kind)  # pred has none
    bits = int(digits[0]) if digits else 8
    return Array(shape, math.prod(padded) * bits // 8, re.search(r"S\([1-9]", layout or "") is not None)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def _results(near: dict[str, Instruction]) -> list[Instruction]:
    """What a computation returns."""
    root = next(each for each in near.values() if each.is_root)
    return [near[name] for name in root.operands] if root.opcode == "tuple" else [root]


def _behind_bitcasts(x: Instruction, near: dict[str, Instruction]) -> Instruction:
    while x.opcode == "bitcast":
        x = near[x.operands[0]]
    return x


def _chain(x: Instruction) -> str | None:
    """The name of a collective operation that runs in parts, while several fusions do: each has it inside."""
    found = re.search(r'chain_id="([^"]*)"', x.text)
    return found[1] if found else None


def _is_scattered(x: Instruction, near: dict[str, Instruction]) -> bool:
    """Whether a fusion keeps only a chip's own part of an all-reduce, which is a TPU's reduce-scatter."""
    users = [each for each in near.values() if x.name in each.operands]
    return bool(users) and all(
        each.opcode == "dynamic-slice" or (each.opcode == "get-tuple-element" and _is_scattered(each, near))
        for each in users
    )


def _group_size(text: str, chips: int) -> int:
    """The number of chips in each group of a collective operation, of any of the forms that XLA writes groups in."""
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\].*?\{('[^}]*)\}", text):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", mesh[2]))
    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]<=", text):
        return int(iota[2])
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return len(listed[1].split(","))
    return chips


def _operations_of_convolution(x: Instruction, left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """TPUs multiply matrices by convolutions; of a window's places only those on the input count, not its padding."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", x.text)
    if labels is None:
        raise ValueError(f"{x.name}: no dim_labels in {x.text[:200]!r}")
    inputs, kernel, _ = labels.groups()
    output = x.arrays[0].shape
    fields = dict(re.findall(r"(\w+)=([-\dx_]+)", (re.search(r"window=\{([^}]*)\}", x.text) or [""])[0]))
    groups = int((re.search(r"batch_group_count=(\d+)", x.text) or [0, 1])[1])
    total = 2 * left[inputs.index("b")] // groups * right[kernel.index("i")] * right[kernel.index("o")]
    for i in range(sum(label.isdigit() for label in kernel)):
        size, padding = left[inputs.index(str(i))], fields.get("pad", "").split("x")
        step, spread, dilated = (
            int(fields[name].split("x")[i]) if name in fields else 1 for name in ("stride", "lhs_dilate", "rhs_dilate")
        )
        low = int(padding[i].split("_")[0]) if padding[0] else 0
        places = output[labels[3].index(str(i))], right[kernel.index(str(i))]
        total *= _places_on_input(size, *places, step, spread, dilated, low)
    return total


def _places_on_input(size: int, outputs: int, window: int, step: int, spread: int, dilated: int, low: int) -> int:
    """How many pairs of a place in the output and one in the window meet an element of the input."""
    at = (o * step + k * dilated - low for o in range(outputs) for k in range(window))
    return sum(0 <= i <= (size - 1) * spread and i % spread == 0 for i in at)
