"""A compiled program's text, as computations of instructions, and how often each of its loops runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128, "token": 0}
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([0-9,]*)\]")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"^ ?([\w\-]+)\(")
_NAME = re.compile(r"%([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line."""

    name: str
    opcode: str
    num_bytes: int
    """Of what it produces."""
    operands: tuple[str, ...]
    inside: str
    """The text between its parentheses."""
    rest: str
    """The attributes after them."""
    is_root: bool

    def attribute(self, name: str) -> str | None:
        """The computation that an attribute names."""
        found = re.search(rf"\b{name}=%?([\w.\-]+)", self.rest)
        return found.group(1) if found else None

    @property
    def op_name(self) -> str:
        """Where in our code it comes from, as JAX tells it."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found.group(1) if found else ""

    @property
    def branches(self) -> tuple[str, ...]:
        """Of a conditional."""
        listed = re.search(r"branch_computations=\{([^}]*)\}", self.rest)
        if listed:
            return tuple(_NAME.findall(listed.group(1)))
        two = (self.attribute("true_computation"), self.attribute("false_computation"))
        return tuple(name for name in two if name)


Computation = Mapping[str, Instruction]
"""By name, in the order of execution."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """A whole program."""

    computations: Mapping[str, Computation]
    entry: str


def count_kernels(module: Module, scope: str) -> int:
    """Hand-written kernels that the program calls within a `jax.named_scope`; 0 where XLA wrote all code itself."""
    return sum(
        instruction.opcode == "custom-call" and f"{scope}/" in instruction.op_name and _is_kernel(instruction)
        for computation in module.computations.values()
        for instruction in computation.values()
    )


def _is_kernel(instruction: Instruction) -> bool:
    return (
        re.search(r'custom_call_target="(tpu_custom_call|__gpu\$xla\.gpu\.triton|mosaic_gpu[^"]*)"', instruction.rest)
        is not None
    )


def num_bytes(shape: str) -> int:
    """Of an array or of a tuple of arrays, without padding.

    >>> num_bytes("(bf16[2,3]{1,0:T(8,128)}, s32[])")
    16
    """
    total = 0
    for kind, sizes in _ARRAY.findall(shape):
        digits = re.search(r"\d+", kind)
        bits = _BITS.get(kind, int(digits.group()) if digits else 0)
        count = 1
        for size in sizes.split(","):
            count *= int(size) if size else 1
        total += count * bits // 8
    return total


def read_module(text: str) -> Module:
    """Of `compiled.as_text()`."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            current = computations.setdefault(header.group(2), {})
            entry = header.group(2) if header.group(1) else entry
        elif current is not None and (found := _INSTRUCTION.match(line)):
            instruction = _read(found.group(2), found.group(3), bool(found.group(1)))
            current[instruction.name] = instruction
    if not entry:
        raise ValueError("no ENTRY computation in the text of the compiled program")
    return Module(computations=computations, entry=entry)


def _closing(text: str, start: int) -> int:
    """Index of the parenthesis that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise ValueError(f"unbalanced parentheses in {text[:80]!r}")


def _read(name: str, text: str, is_root: bool) -> Instruction:
    # The shape is a tuple in parentheses, or one array, whose layout holds no space.
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    opcode = _OPCODE.match(text[end:])
    if opcode is None:
        raise ValueError(f"can't read the instruction {name} = {text[:80]!r}")
    start = end + opcode.end() - 1
    close = _closing(text, start)
    inside = text[start + 1 : close]
    return Instruction(
        name=name,
        opcode=opcode.group(1),
        num_bytes=num_bytes(text[:end]),
        operands=tuple(_NAME.findall(inside)),
        inside=inside,
        rest=text[close + 1 :],
        is_root=is_root,
    )


def trip_count(module: Module, loop: Instruction, within: Computation) -> int | None:
    """How often a `while` in the computation `within` runs; None where only the data decide.

    The compiler says so, or the condition compares a counter, which starts at a constant and grows by a constant, with
    a constant.
    """
    said = _TRIPS.search(loop.rest)
    if said:
        return int(said.group(1))
    compared = _compared(module, module.computations[loop.attribute("condition") or ""])
    if compared is None:
        return None
    counter, limit = compared
    last, index = _constant(limit), re.search(r"index=(\d+)", counter.rest)
    if last is None or index is None or counter.opcode != "get-tuple-element":
        return None
    position = int(index.group(1))
    start, body = within[loop.operands[0]], module.computations[loop.attribute("body") or ""]
    first = _constant(within[start.operands[position]]) if start.opcode == "tuple" else 0
    return -(((first or 0) - last) // _step(body, position))


def _step(body: Computation, position: int) -> int:
    """What each turn adds to the counter: a loop that is unrolled by two adds 2."""
    root = _root(body)
    if root.opcode != "tuple":
        return 1
    total, instruction = 0, body[root.operands[position]]
    while instruction.opcode in ("add", "copy"):
        operands = [body[name] for name in instruction.operands]
        total += sum(_constant(operand) or 0 for operand in operands)
        instruction = next((operand for operand in operands if operand.opcode != "constant"), operands[0])
    return max(total, 1)


def _compared(module: Module, condition: Computation) -> tuple[Instruction, Instruction] | None:
    """What a condition asks to be less than what; None where it asks for something else."""
    root = _root(condition)
    names = root.operands
    if root.opcode == "fusion":
        inner = module.computations[root.attribute("calls") or ""]
        root = _root(inner)
        order = [inner[name] for name in root.operands]
        if any(instruction.opcode != "parameter" for instruction in order):
            return None
        names = tuple(names[int(instruction.inside)] for instruction in order)
    if root.opcode != "compare" or "direction=LT" not in root.rest:
        return None
    counter, limit = (condition[name] for name in names)
    return counter, limit


def _root(computation: Computation) -> Instruction:
    return next(instruction for instruction in computation.values() if instruction.is_root)


def _constant(instruction: Instruction) -> int | None:
    if instruction.opcode != "constant":
        return None
    return int(instruction.inside) if re.fullmatch(r"-?\d+", instruction.inside) else None
