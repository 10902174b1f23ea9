"""A parser of the scalar side of the compiler's schedule, for `simulate`.

The text is that of `bundles`, read as a program: scalar instructions, with their predicates, and
what starts and awaits copies. Values have names of the form `%s69_s15`: a number, which is given
once, and the register. Instructions of the vector units are left out, since no jump depends on
them; one that gives a scalar is kept, and refused where it is executed.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import evolve, frozen

from conformance.kernels.compile import bundles

START: Final = re.compile(r"^[ \t]*(0x[0-9a-f]+|0)[ \t]+([A-Z]{2})?[ \t]*:[ \t>]*\{", re.MULTILINE)
LABELLED: Final = re.compile(r"/\*(\w+)=\*/\s*")
COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
ONE: Final = re.compile(r"(?:%(\w+) = )?(\S+)\s*(.*)", re.DOTALL)
PREDICATE: Final = re.compile(r"\((!?)%(p\w+?)(?:,\s*([^()]+))?\)\s*,?")
TARGET: Final = re.compile(r"target bundleno = (\d+)")
OPERAND: Final = re.compile(r"\[shape: (\w+)\[([\d,]*)\], index: (\d+), kind: (\w+)")
ATTRIBUTE: Final = re.compile(r"\[(?:resolvable|thread):[^\]]*\]")
SEPARATE: Final = re.compile(r",\s*(?![^\[]*\])")
NAME: Final = re.compile(r"%(\w+)")
MEETING: Final = re.compile(r"shalt\.err .*BarrierMegacore")
"""The check that both cores have come to the same place, which they have here."""
KEPT: Final = ("vsyncpa", "vsyncadd", "vsyncmov", "vpop.sfrf")
"""What the vector unit does with the counts of copies."""


class NotUnderstood(ValueError):
    """A schedule that is not understood: nothing is known of its cycles."""


@frozen
class Instruction:
    """One instruction. text: as the compiler prints it, without comments.

    result: the name of its value. arguments: names, numbers and places, as printed. named: those of
    a copy, by their labels. predicate: the name and whether it must be false; None if it is always
    executed. otherwise: its value where the predicate does not hold.
    """

    text: str
    operation: str
    result: str | None = None
    arguments: tuple[str, ...] = ()
    named: tuple[tuple[str, str], ...] = ()
    predicate: tuple[str, bool] | None = None
    otherwise: str | None = None

    @property
    def names(self) -> frozenset[str]:
        """The names of the values that it reads."""
        texts = [*self.arguments, self.otherwise or "", *(value for _, value in self.named)]
        found = {name for text in texts for name in NAME.findall(text)}
        return frozenset(found | ({self.predicate[0]} if self.predicate else set()))


@frozen
class Operand:
    """An operand of a program. space: the memory that it lies in."""

    index: int
    space: str
    dtype: str
    shape: tuple[int, ...]
    kind: str


@frozen
class Program:
    """rows: the kept instructions of each bundle. labels: bundles that are jump targets.

    delay: bundles behind a jump that are executed in any case.
    """

    rows: tuple[tuple[Instruction, ...], ...]
    labels: frozenset[int]
    delay: int
    operands: tuple[Operand, ...]


def parse(text: str) -> Program:
    """The program of a schedule. Raises ValueError for any other text."""
    delay, rows, labels = bundles.delay(text), list[tuple[Instruction, ...]](), set[int]()
    starts = [*START.finditer(text)]
    ends = [*(start.start() for start in starts[1:]), len(text)]
    for start, end in zip(starts, ends, strict=True):
        number = int(start[1], 16)
        if number != len(rows):
            raise NotUnderstood(f"bundle {number} comes after {len(rows) - 1}")
        if start[2]:
            labels.add(number)
        rows.append(tuple(_instructions(text[start.end() : end])))
    if not rows:
        raise NotUnderstood("no bundles in the schedule of the compiler")
    operands = tuple(operand(one) for row in rows for one in row if is_operand(one))
    return Program(tuple(rows), frozenset(labels), delay, operands)


def is_operand(one: Instruction) -> bool:
    """Whether the instruction names an operand of the program, and does nothing."""
    return one.operation.startswith("inlined_call_operand")


def operand(one: Instruction) -> Operand:
    """The operand that an instruction names."""
    found = OPERAND.search(one.text)
    if found is None:
        raise NotUnderstood(f"an operand without a shape: {one.text}")
    shape = tuple(int(size) for size in found[2].split(",") if size)
    space = one.operation.partition(".")[2]
    return Operand(int(found[3]), space, found[1], shape, found[4])


def target(one: Instruction) -> int:
    """Where a jump goes."""
    found = TARGET.search(one.text)
    if found is None:
        raise NotUnderstood(f"a jump without a target: {one.text}")
    return int(found[1])


def _instructions(body: str) -> Iterator[Instruction]:
    for part in body[: _end(body)].split(";;"):
        text = " ".join(COMMENT.sub("", LABELLED.sub(r"\1=", part)).split())
        if MEETING.search(part):
            continue
        if text and not _is_of_vectors(text):
            yield _instruction(text)


def _end(body: str) -> int:
    """Where the brace of a bundle is closed: the last one outside of comments."""
    whole = COMMENT.sub(lambda found: "~" * len(found[0]), body)
    return whole.rfind("}")


def _is_of_vectors(text: str) -> bool:
    """Whether an instruction is of the vector units, and gives no scalar."""
    result, _, rest = text.partition(" = ")
    operation = (rest or result).split(" ")[0]
    return operation.startswith("v") and not (operation in KEPT or result.startswith(("%s", "%p")))


def _instruction(text: str) -> Instruction:
    found = ONE.fullmatch(text)
    if found is None:
        raise NotUnderstood(f"an instruction: {text}")
    result, operation, rest = found[1], found[2], found[3]
    if result is not None and not result.startswith(("s", "p")):
        result = None
    one = Instruction(text, operation, result)
    if is_operand(one):
        return one
    predicate = PREDICATE.search(rest)
    if predicate is not None:
        one = evolve(
            one,
            predicate=(predicate[2], bool(predicate[1])),
            otherwise=predicate[3],
        )
        rest = rest[: predicate.start()] + " " + rest[predicate.end() :]
    rest = ATTRIBUTE.sub("", rest)
    if operation == "sst":  # there is no comma between the place and the value
        rest = re.sub(r"\]\s+(?=[^\]]*$)", "], ", rest, count=1)
    parts = [part.strip() for part in SEPARATE.split(rest) if part.strip()]
    labelled = [part.partition("=") for part in parts if re.match(r"\w+=", part)]
    plain = [part.removesuffix("=") for part in parts if not re.match(r"\w+=", part)]
    named = tuple((name, value) for name, _, value in labelled)
    return evolve(one, arguments=tuple(plain), named=named)


def order(row: Sequence[Instruction], same: dict[str, str]) -> list[Instruction]:
    """The instructions of a bundle, in an order in which they can be executed one by one.

    All of a bundle read before any writes. So whoever reads the earlier value of a register comes
    before who writes it, and whoever reads this very value comes behind. same: the register, so to
    speak, that names share by being merged.
    """
    left, done = list(row), list[Instruction]()
    while left:
        ready = [one for one in left if not any(_before(two, one, same) for two in left)]
        if not ready:
            raise NotUnderstood(f"a bundle that depends on itself: {left[0].text}")
        done += ready
        left = [one for one in left if one not in ready]
    return done


def _before(first: Instruction, then: Instruction, same: dict[str, str]) -> bool:
    """Whether one of a bundle must come before the other."""
    if first is then:
        return False
    if first.result in then.names:
        return True
    if then.result is None or then.result in first.names:
        return first.operation == "sld" and then.operation == "sst"
    register = same.get(then.result, then.result)
    return any(same.get(name, name) == register for name in first.names)
