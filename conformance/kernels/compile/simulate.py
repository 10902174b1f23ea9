"""The scalar side of a compiled kernel, executed: the bundles that a call issues, and its copies.

The schedule of the compiler is a complete program, a bundle a cycle. Here its scalar instructions
are executed with real lengths and page ids: loads and stores of scalar memory, predicates, jumps
with their delay slots, and copies to scalar memory. Vector instructions are not: nothing jumps on
what they compute. Copies and waits for them are recorded, and `copies` says how long they take.

What is not understood raises NotUnderstood, so that a figure is unknown and not wrong. A read of
what was never written gives a filling; a program whose run depends on it is not understood either.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from attrs import Factory, define, frozen

from conformance.kernels.compile.program import (
    Instruction,
    NotUnderstood,
    Operand,
    Program,
    is_operand,
    operand,
    order,
    target,
)

WORDS: Final = 8
"""Numbers of 32 bits in a granule, the unit of copies."""
GRANULE: Final = 4 * WORDS
"""Bytes of a granule."""
FILLINGS: Final = (0, 0x2A5A5A5A)
"""Two runs, which must agree, find these where nothing was written."""
MOST_BLOCKS: Final = 100_000_000
CORE: Final = "#allocation0"
"""Where a kernel on two cores finds the number of its own."""
SPACING: Final = 1 << 19
"""Between the places of allocations: more than words of scalar memory or rows of vector memory."""
MOST_PLACES: Final = 1 << 7
SPILLS: Final = 1 << 40
"""The place of the first of allocations that have no address in the program."""
MAIN: Final = 1 << 60
"""Above it there are addresses of main memory: granules of 32 bytes, or of 512 where the program
multiplies them by 16 itself."""
EACH: Final = 48
"""The number of an operand is above so many bits of such an address."""
PLACE: Final = re.compile(r"\[(?:smem:)?(.*)\]", re.DOTALL)
TRAILING: Final = re.compile(r"(\S)\s+\[#allocation\d+\]$")
NOTHING: Final = frozenset({"sfence", "vtrace", "strace"})
"""Instructions without an effect here."""
SINGLE: Final = frozenset({"smov", "pmov", "pneg", "spop"})
"""Instructions of one value. What the vector unit gives (spop) is not known."""
BINARY: Final[Mapping[str, str]] = {
    "sadd.s32": "W({a} + {b})",
    "ssub.s32": "W({a} - {b})",
    "smul.u32": "W({a} * {b})",
    "sand.u32": "{a} & {b}",
    "sor.u32": "{a} | {b}",
    "sxor.u32": "{a} ^ {b}",
    "sshll.u32": "L({a}, {b})",
    "sshra.s32": "{a} >> ({b} & 31)",
    "sshrl.u32": "W(({a} & 0xFFFFFFFF) >> ({b} & 31))",
    "smin.u32": "min({a}, {b}, key=U)",
    "smax.u32": "max({a}, {b}, key=U)",
    "smin.s32": "min({a}, {b})",
    "smax.s32": "max({a}, {b})",
    "por": "{a} or {b}",
    "pand": "{a} and {b}",
    "pnand": "not ({a} and {b})",
    "pnor": "not ({a} or {b})",
    "pxor": "bool({a}) != bool({b})",
}
COMPARED: Final = re.compile(r"scmp\.(lt|le|gt|ge|eq|ne)\.([su])32(?:\.totalorder)?")
SIGNS: Final = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}

Start = tuple[int, int, int, bool]
"""A copy: the cycle, the count that it adds to, granules, whether main memory has a part in it."""
Wait = tuple[int, int, int]
"""The cycle, the count that is awaited, and how much of it."""
Taken = tuple[int, int]
"""A count, and what a program adds to it: less than nothing, behind a wait."""
Event = Start | Wait | Taken


@frozen
class Run:
    """What a call issues. cycles: bundles, without waiting. copies: how many.

    events: copies and waits, in order, and what is taken from counts. visits: how often each basic
    block is executed, by the number of its first bundle. read, written: granules of each operand,
    by its number. main: granules between main memory and the chip, where other operands lie.
    """

    cycles: int
    events: tuple[Event, ...]
    visits: Mapping[int, int]
    read: Mapping[int, int]
    written: Mapping[int, int]
    main: int
    copies: int


@define
class _Machine:
    """The state of a run. counts: of copies that are done and not yet awaited, by place."""

    data: Mapping[int, np.ndarray[Any, np.dtype[np.int32]]]
    registers: list[Any]
    memory: dict[int, Any]
    filling: int
    places: Mapping[int, int]
    counts: dict[int, int] = Factory(dict)
    popped: list[int] = Factory(list)
    events: list[Event] = Factory(list)
    read: dict[int, int] = Factory(dict)
    written: dict[int, int] = Factory(dict)
    main: int = 0
    copies: int = 0

    def start(self, cycle: int, source: int, into: int, granules: int, flag: int) -> None:
        """A copy that is started; `flag` counts its granules once it is done."""
        if not 0 <= granules < 1 << 24:
            raise NotUnderstood(f"a copy of {granules} granules")
        is_main = source >= MAIN or into >= MAIN
        for counted, address in ((self.read, source), (self.written, into)):
            number = _number(address) if address >= MAIN else self._on_chip(address)
            if number >= 0:
                counted[number] = counted.get(number, 0) + granules
        self.main += granules * is_main
        self.counts[flag] = self.counts.get(flag, 0) + granules
        self.copies += 1
        self.events.append((cycle, flag, granules, is_main))

    def load(self, cycle: int, source: int, into: int, granules: int, flag: int) -> None:
        """A copy to scalar memory, whose numbers are needed."""
        self.start(cycle, source, into, granules, flag)
        values = self._values(source, granules * WORDS)
        self.memory.update(enumerate(values, into))

    def _values(self, source: int, words: int) -> list[int]:
        """The numbers of an operand from an address on."""
        if source >= MAIN:
            number, at = _number(source), _offset(source) * WORDS
        else:  # the rows of vector memory are multiplied by 16 in an address
            row, within = divmod(source, 16)
            number, at = self._on_chip(source), row % SPACING * 128 + within * WORDS
        if number not in self.data:
            raise NotUnderstood(f"operand {number} is copied to scalar memory, and has no numbers")
        flat = self.data[number]
        if at < 0 or at + words > flat.size:
            raise NotUnderstood(f"{words} numbers from {at} on of operand {number}")
        values: list[int] = flat[at : at + words].tolist()
        return values

    def _on_chip(self, address: int) -> int:
        """The operand at an address of vector memory; -1 if none is there."""
        return self.places.get(address // 16 // SPACING * SPACING, -1)

    def wait(self, cycle: int, flag: int, granules: int) -> None:
        """A wait for so many granules. All copies are started by this program itself."""
        if self.counts.get(flag, 0) < granules:
            raise NotUnderstood(f"a wait for {granules} granules without a copy")
        self.events.append((cycle, flag, granules))

    def add(self, flag: int, granules: int) -> None:
        """What was awaited is taken from the count."""
        self.counts[flag] = self.counts.get(flag, 0) + granules
        self.events.append((flag, granules))

    def halt(self, text: str) -> None:
        """A check of the kernel that fails."""
        raise NotUnderstood(f"the kernel halts: {text}")

    def unknown(self, text: str) -> None:
        """An instruction that is not understood."""
        raise NotUnderstood(text)


def _number(address: int) -> int:
    """The operand at an address of main memory."""
    return (address >> EACH + _scale(address)) & 0xFFF


def _offset(address: int) -> int:
    """Granules from the begin of the operand on."""
    return address & ((1 << EACH + _scale(address)) - 1)


def _scale(address: int) -> int:
    return address.bit_length() - MAIN.bit_length()


def wrapped(value: int) -> int:
    """A number of 32 bits with a sign; addresses of main memory are no such numbers."""
    if -0x80000000 <= value < 0x80000000 or value >= MAIN:
        return value
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def _left(value: int, bits: int) -> int:
    return wrapped(value << bits) if 0 <= bits < 32 else 0


def _unsigned(value: int) -> int:
    return value & 0xFFFFFFFF


@define
class _Names:
    """Numbers of registers and places of allocations, as the program comes to them."""

    same: dict[str, str] = Factory(dict)
    registers: dict[str, int] = Factory(dict)
    addressed: dict[str, int] = Factory(dict)
    spills: dict[str, int] = Factory(dict)

    def root(self, name: str) -> str:
        """The one name of all that are merged."""
        while name in self.same:
            name = self.same[name]
        return name

    def merge(self, one: str, other: str) -> None:
        """Both names are of one register."""
        one, other = self.root(one), self.root(other)
        if one != other:
            self.same[one] = other

    def register(self, name: str) -> str:
        """The expression of a value."""
        return f"R[{self.registers.setdefault(self.root(name), len(self.registers))}]"

    def place(self, allocation: str) -> int:
        """The address of an allocation, in words, rows or counts of its memory."""
        if allocation in self.addressed:
            return self.addressed[allocation]
        return self.spills.setdefault(allocation, SPILLS + len(self.spills) * SPACING)

    def address(self, allocation: str) -> None:
        """The address of this allocation is a number of the program."""
        place = (len(self.addressed) + 1) * SPACING
        if len(self.addressed) >= MOST_PLACES:
            raise NotUnderstood(f"more than {MOST_PLACES} allocations with an address")
        self.addressed.setdefault(allocation, place)


Block = tuple[Callable[[int], int], int]
"""A basic block: what it does at a cycle and where it goes on, and its bundles."""


@frozen
class Executable:
    """A program as functions of Python. source: of its blocks, by their first bundle."""

    program: Program
    names: _Names
    source: str
    lengths: Mapping[int, int]


def executable(program: Program) -> Executable:
    """The functions of a program. Raises NotUnderstood."""
    names = _named(program)
    parts, lengths = list[str](), dict[int, int]()
    for begin, end in _blocks(program):
        lengths[begin] = end - begin
        lines = ["    go = " + str(end)]
        for number in range(begin, end):
            row = [one for one in program.rows[number] if not _is_merged(one)]
            for one in order(row, {name: names.root(name) for name in names.same}):
                lines += [f"    {line}" for line in _lines(one, names, number - begin)]
        parts.append("\n".join([f"def b{begin}(c):", *lines, "    return go"]))
    return Executable(program, names, "\n".join(parts), lengths)


def _named(program: Program) -> _Names:
    """The names of a program: those that a phi merges are one register."""
    names = _Names()
    for row in program.rows:
        for one in row:
            if one.operation in {"sphi", "pphi"} and one.result:
                for argument in one.arguments:
                    if not argument.startswith("%"):
                        raise NotUnderstood(one.text)
                    names.merge(one.result, argument[1:])
            for text in _addressing(one):
                for allocation in re.findall(r"#allocation\d+(?:_\w+)?", text):
                    if allocation not in names.addressed:
                        names.address(allocation)
    return names


def _addressing(one: Instruction) -> list[str]:
    """The parts of an instruction in which an allocation is an address, and not read or written."""
    if one.operation in {"sld", "sst"}:
        return [text for text in one.arguments if not text.startswith("[smem:")]
    return [TRAILING.sub(r"\1", text) for text in (*one.arguments, *(v for _, v in one.named))]


def _is_merged(one: Instruction) -> bool:
    return one.operation in {"sphi", "pphi"}


def _blocks(program: Program) -> list[tuple[int, int]]:
    """Begin and end of each basic block. A jump and its delay slots end one."""
    total, begins, ends = len(program.rows), {0}, set[int]()
    for number, row in enumerate(program.rows):
        jumps = [one for one in row if one.operation.startswith("sbr")]
        for one in jumps:
            if one.operation != "sbr.rel" or target(one) not in program.labels | {total}:
                raise NotUnderstood(one.text)
        if jumps:
            after = min(number + program.delay + 1, total)
            begins |= {after, *map(target, jumps)}
            ends.add(after)
            inside = [at for at in range(number + 1, after) if _jumps(program, at)]
            if len(jumps) > 1 or inside or program.labels & set(range(number + 1, after)):
                raise NotUnderstood(f"in the delay slots of {jumps[0].text}")
    ordered = sorted(begin for begin in begins | set(program.labels) if begin < total)
    return list(zip(ordered, [*ordered[1:], total], strict=True))


def _jumps(program: Program, number: int) -> bool:
    return any(one.operation.startswith("sbr") for one in program.rows[number])


def _lines(one: Instruction, names: _Names, offset: int) -> list[str]:
    """An instruction as statements. offset: its bundles behind the begin of its block."""
    try:
        effect = _effect(one, names, offset)
    except (KeyError, ValueError, IndexError):
        effect = f"N({one.text!r})"
    if effect is None:
        return []
    if one.result is not None and not effect.startswith("N("):
        effect = f"{names.register(one.result)} = {effect}"
    if one.predicate is None:
        return [effect]
    name, is_negated = one.predicate
    lines = [f"if {'not ' * is_negated}{names.register(name)}: {effect}"]
    if one.otherwise is not None and one.result is not None:
        other = _value(one.otherwise, names)
        lines.append(f"else: {names.register(one.result)} = {other}")
    return lines


def _effect(one: Instruction, names: _Names, offset: int) -> str | None:
    """The value of an instruction, or what it does; None if nothing."""
    kind = one.operation
    if kind in NOTHING:
        return None
    if is_operand(one):
        return f"P({operand(one).index})"
    if kind in BINARY or kind.startswith("scmp."):
        return _of_two(one, names)
    if kind in {"sld", "sst"}:
        return _of_memory(one, names)
    if kind in SINGLE or kind.startswith(("scalar_", "int_to_ptr.")):
        return _of_values(one, names)
    return _of_control(one, names, offset)


def _of_two(one: Instruction, names: _Names) -> str:
    """Arithmetic, logic and comparisons."""
    first, second = (_value(text, names) for text in one.arguments)
    if one.operation in BINARY:
        return BINARY[one.operation].format(a=first, b=second)
    compared = COMPARED.fullmatch(one.operation)
    if compared is None:
        raise ValueError(one.text)
    if compared[2] == "u":
        first, second = f"U({first})", f"U({second})"
    return f"{first} {SIGNS[compared[1]]} {second}"


def _of_memory(one: Instruction, names: _Names) -> str:
    """Loads and stores of scalar memory."""
    if one.operation == "sld":
        (only,) = one.arguments
        return f"M.get({_place(only, names)}, X)"
    where, what = one.arguments
    return f"M[{_place(where, names)}] = {_value(what, names)}"


def _of_values(one: Instruction, names: _Names) -> str:
    """A value that is chosen, moved or made an address."""
    if one.operation == "scalar_select":
        named = dict(one.named)
        parts = (named[part] for part in ("on_true", "predicate", "on_false"))
        return "{} if {} else {}".format(*(_value(part, names) for part in parts))
    if one.operation.startswith("scalar_lea."):
        return " + ".join(_value(TRAILING.sub(r"\1", text), names) for text in one.arguments)
    if one.operation == "spop":
        return "X"
    (only,) = one.arguments
    if one.operation == "pneg":
        return f"not {_value(only, names)}"
    if one.operation in SINGLE or one.operation.startswith("int_to_ptr."):
        return _value(only, names)
    raise ValueError(one.text)


def _of_control(one: Instruction, names: _Names, offset: int) -> str:
    """Jumps, copies and waits."""
    kind, arguments = one.operation, one.arguments
    values = partial(_value, names=names)
    if kind == "sbr.rel":
        return f"go = {target(one)}"
    if kind.startswith("dma.") and kind != "dma.done.wait":
        return _copy(one, names, offset)
    if kind == "dma.done.wait":
        flag, granules = map(values, arguments)
        return f"T(c + {offset}, {flag}, {granules})"
    if kind == "vsyncadd":
        flag, granules = map(values, arguments)
        return f"A({flag}, {granules})"
    if kind == "vsyncpa":
        flag, number = map(values, arguments)
        return f"C[{flag}] = {number}"
    if kind == "vsyncmov":
        (flag,) = map(values, arguments)
        return f"Q.append(C.get({flag}, 0))"
    if kind == "vpop.sfrf":
        return "Q.pop(0)"
    if kind == "shalt.err":
        return f"H({one.text!r})"
    raise ValueError(kind)


SOURCES: Final = {"hbm": "hbm", "vmem": "vmem", "smem": "smem"}
IGNORED: Final = frozenset(
    {"src_stride", "dst_stride", "steps_per_stride", "src_syncflagno", "stridedescaddr"}
    | {"overrides", "dst_syncflagno_1"}
)
"""Labels that change neither how much is copied nor which count is awaited."""


def _copy(one: Instruction, names: _Names, offset: int) -> str:
    """The start of a copy."""
    named = dict(one.named)
    granules, flag = named.pop("size_in_granules"), named.pop("dst_syncflagno")
    if one.operation == "dma.general":
        source, into = named.pop("src"), named.pop("dst")
    else:
        first, found, second = one.operation.removeprefix("dma.").partition("_to_")
        if not found or first == second:
            raise ValueError(one.operation)
        source, into = named.pop(SOURCES[first]), named.pop(SOURCES[second])
    if named.keys() - IGNORED or one.arguments:
        raise ValueError(one.text)
    does = "load" if one.operation.endswith("_to_smem") else "start"
    given = ", ".join(_value(text, names) for text in (source, into, granules, flag))
    return f"{'D' if does == 'load' else 'S'}(c + {offset}, {given})"


def _value(text: str, names: _Names) -> str:
    """An argument as an expression."""
    text = text.strip()
    if text.startswith("%"):
        if not re.fullmatch(r"%[sp]\w+", text):
            raise ValueError(text)
        return names.register(text[1:])
    if text.startswith("["):
        return _place(text, names)
    return str(wrapped(int(text, 0)))


def _place(text: str, names: _Names) -> str:
    """A place in a memory as an expression of its address."""
    found = PLACE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return " + ".join(_term(term.strip(" []"), names) for term in found[1].split("+"))


def _term(term: str, names: _Names) -> str:
    if term.startswith("#"):
        return str(names.place(term))
    if term.startswith("$"):
        return str(int(term[1:], 16))
    return _value(term, names)


def run(program: Executable, data: Mapping[int, Any], *, core: int = 0) -> Run:
    """A call with these operands: of integers, by their number; others have no numbers.

    core: the number of the core that runs it. Raises NotUnderstood.
    """
    tiles = {index: tiled(array) for index, array in data.items()}
    for one in program.program.operands:
        if one.index in data and tuple(data[one.index].shape) != one.shape:
            seen = tuple(data[one.index].shape)
            raise NotUnderstood(f"operand {one.index} has the shape {one.shape}, given {seen}")
    first, second = (_run(program, tiles, filling, core) for filling in FILLINGS)
    if (first.cycles, first.copies, first.visits) != (second.cycles, second.copies, second.visits):
        raise NotUnderstood("the run depends on values that nothing has written")
    return first


def _run(
    program: Executable, data: Mapping[int, np.ndarray[Any, Any]], filling: int, core: int
) -> Run:
    names, operands = program.names, {one.index: one for one in program.program.operands}
    bases = {index: (len(names.addressed) + 1 + index) * SPACING for index in operands}
    machine = _Machine(
        data=data,
        registers=[filling] * len(names.registers),
        memory={names.place(CORE): core},
        filling=filling,
        places={base: index for index, base in bases.items()},
    )
    space: dict[str, Any] = {
        "R": machine.registers,
        "M": machine.memory,
        "C": machine.counts,
        "Q": machine.popped,
        "X": filling,
        "P": partial(_entered, operands=operands, bases=bases, data=data),
        "W": wrapped,
        "L": _left,
        "U": _unsigned,
        "S": machine.start,
        "D": machine.load,
        "T": machine.wait,
        "A": machine.add,
        "H": machine.halt,
        "N": machine.unknown,
    }
    exec(program.source, space)
    blocks = {begin: (space[f"b{begin}"], size) for begin, size in program.lengths.items()}
    cycles, visits = _executed(blocks, len(program.program.rows))
    return Run(
        cycles=cycles,
        events=tuple(machine.events),
        visits=visits,
        read=machine.read,
        written=machine.written,
        main=machine.main,
        copies=machine.copies,
    )


def _executed(blocks: Mapping[int, Block], total: int) -> tuple[int, dict[int, int]]:
    at, cycle, visits = 0, 0, dict.fromkeys(blocks, 0)
    for _ in range(MOST_BLOCKS):
        function, size = blocks[at]
        visits[at] += 1
        at = function(cycle)
        cycle += size
        if at == total:
            return cycle, visits
    raise NotUnderstood(f"more than {MOST_BLOCKS:,} basic blocks are executed")


def _entered(
    index: int,
    *,
    operands: Mapping[int, Operand],
    bases: Mapping[int, int],
    data: Mapping[int, np.ndarray[Any, Any]],
) -> int:
    """What a program gets of an operand: its address, or the number itself."""
    one = operands[index]
    if one.space == "hbm":
        return MAIN + (index << EACH)
    if one.space == "vmem":
        return bases[index]
    if one.space.startswith("<no") and index in data and one.shape in {(1,), ()}:
        return int(data[index][0])
    raise NotUnderstood(f"operand {index} in {one.space}")


def tiled(array: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Integers in the order in which main memory holds them: in tiles of up to 8 x 128."""
    whole = np.asarray(array, np.int32)
    if whole.ndim < 2:
        return np.pad(whole.reshape(-1), (0, -whole.size % 128))
    rows, lanes = whole.shape[-2:]
    high = min(8, 1 << max(0, rows - 1).bit_length())
    edge = [(0, 0)] * (whole.ndim - 2) + [(0, -rows % high), (0, -lanes % 128)]
    padded = np.pad(whole, edge)
    *outer, rows, lanes = padded.shape
    split = padded.reshape(*outer, rows // high, high, lanes // 128, 128)
    return np.ascontiguousarray(np.moveaxis(split, -3, -2)).reshape(-1)
