"""One line of the comparison: grid points, a figure of each kernel, a judgement of ours."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import Factory, define, fields, frozen

from conformance.kernels.compile.grid import Cell
from conformance.kernels.compile.outcome import Compiled

KERNELS: Final = {"jax": "jax's kernel", "tpu-inference": "tpu-inference v3", "tpu": "ours"}
"""The column heading of each kernel; the targets are for the last."""
OURS: Final = "tpu"
TOKENS: Final = fields(Cell).tokens.default
SEQS: Final = fields(Cell).seqs.default
POSITIONS: Final = fields(Cell).positions.default

Held = Mapping[Cell, Compiled]
Records = Mapping[str, Held]
"""The records, by kernel and grid point."""


@define
class Judged:
    """missed: a sentence for each missed target; open: for each unknown figure."""

    missed: list[str] = Factory(list)
    open: list[str] = Factory(list)


@frozen
class Row:
    """One line of the table. figure: of one kernel for its grid points. judge: our result."""

    what: str
    target: str
    cells: tuple[Cell, ...]
    figure: Callable[[Sequence[Cell], Held], str]
    judge: Callable[[Cell, Records, Judged], None]

    def judged(self, records: Records) -> Judged:
        """The result of our kernel, grid point by grid point."""
        found = Judged()
        for cell in self.cells:
            self.judge(cell, records, found)
        return found


def name(cell: Cell) -> str:
    """The grid point, with its sizes if they differ from the grid's."""
    return f"{cell}{sizes_of(cell)}"


def sizes_of(cell: Cell) -> str:
    """Its sizes, as a suffix; empty if they are those of the grid."""
    sizes = (
        (cell.tokens, TOKENS, "tokens"),
        (cell.seqs, SEQS, "sequences"),
        (cell.positions, POSITIONS, "positions"),
    )
    return "".join(f", {size:,} {what}" for size, usual, what in sizes if size != usual)


def each(
    cells: Sequence[Cell],
    held: Held,
    text: Callable[[Compiled], str | None],
    label: Callable[[Cell], str] = lambda _cell: "",
) -> str:
    """A figure of each grid point."""
    return ", ".join(f"{label(cell)}{one_of(held.get(cell), text)}" for cell in cells)


def one_of(record: Compiled | None, text: Callable[[Compiled], str | None]) -> str:
    """A figure of a record, or why there is none."""
    if record is None:
        return "not measured"
    if record.verdict != "ok":
        return {"fails": "does not compile"}.get(record.verdict, record.verdict)
    return text(record) or "not known"


def known(cell: Cell, records: Records, found: Judged) -> Compiled | None:
    """Our record of a grid point if it compiles; otherwise the reason is noted."""
    record = records[OURS].get(cell)
    if record is None:
        found.open.append(f"{name(cell)}: not measured")
    elif record.verdict == "undecided":
        found.open.append(f"{name(cell)}: undecided: {record.reason}")
    elif record.verdict != "ok":
        found.missed.append(f"{name(cell)}: {record.verdict}: {record.reason}")
    else:
        return record
    return None


def compiles(cell: Cell, records: Records, found: Judged) -> None:
    """Our kernel is to compile."""
    known(cell, records, found)


def figure_of(
    cell: Cell, records: Records, found: Judged, of: Callable[[Compiled], float | None]
) -> float | None:
    """One figure of our record of a compiled grid point; an unknown figure is noted."""
    record = known(cell, records, found)
    if record is None:
        return None
    value = of(record)
    if value is None:
        found.open.append(f"{name(cell)}: {record.not_known}")
    return value
