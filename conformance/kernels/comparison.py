"""The comparison of three kernels under the same compilers: grid points, figures, targets.

Every figure comes from the compiler: a grid point is OK if it compiles, cycles are static, and
derived shares are ceilings. A grid point without a result is `not measured`, in the table and for
the verdict.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from attrs import Factory, define, evolve, fields, frozen

from conformance.kernels.compile import grid
from conformance.kernels.compile.grid import MODELS, Cell
from conformance.kernels.compile.outcome import Compiled

KERNELS: Final = {"jax": "jax's kernel", "tpu-inference": "tpu-inference v3", "tpu": "ours"}
"""The column heading of each kernel; the targets are for the last."""
OURS: Final = "tpu"
MOST_CYCLES: Final = 2.05
LEAST_MBU: Final = 0.95
LEAST_MFU: Final = 0.73
TOKENS: Final = fields(Cell).tokens.default

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
    """The grid point, with its tokens if they differ from the grid's."""
    return f"{cell}{tokens_of(cell)}"


def tokens_of(cell: Cell) -> str:
    """Its tokens, as a suffix; empty if they are those of the grid."""
    return "" if cell.tokens == TOKENS else f", {cell.tokens:,} tokens"


def counted(cells: Sequence[Cell], held: Held) -> str:
    """How many compile, and the outcome of the others."""
    found = Counter(held[cell].verdict if cell in held else "not measured" for cell in cells)
    good = found.pop("ok", 0)
    words = {"fails": "fail", "refused": "refused", "undecided": "undecided"}
    rest = [f"{number} {words.get(what, what)}" for what, number in sorted(found.items())]
    return ", ".join([f"{good} of {len(cells)} OK", *rest])


def cycles(cells: Sequence[Cell], held: Held) -> str:
    """Static cycles of decoding for one KV token."""
    return _each(cells, held, lambda one: f"{one.decode.per_token:.2f}" if one.decode else None)


def bandwidth(cells: Sequence[Cell], held: Held) -> str:
    """The ceiling of the bandwidth share, by chip and page size."""
    return _each(cells, held, lambda one: _percent(one.mbu), _chip_and_page)


def arithmetic(cells: Sequence[Cell], held: Held) -> str:
    """The ceiling of the share of the bfloat16 peak, by chip."""
    return _each(cells, held, lambda one: _percent(one.mfu), lambda cell: f"{cell.chip}: ")


def _chip_and_page(cell: Cell) -> str:
    return f"{cell.chip}/{cell.page_size}: "


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def _each(
    cells: Sequence[Cell],
    held: Held,
    text: Callable[[Compiled], str | None],
    label: Callable[[Cell], str] = lambda _cell: "",
) -> str:
    return ", ".join(f"{label(cell)}{_one(held.get(cell), text)}" for cell in cells)


def _one(record: Compiled | None, text: Callable[[Compiled], str | None]) -> str:
    if record is None:
        return "not measured"
    if record.verdict != "ok":
        return {"fails": "does not compile"}.get(record.verdict, record.verdict)
    return text(record) or "not known"


def _known(cell: Cell, records: Records, found: Judged) -> Compiled | None:
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


def _compiles(cell: Cell, records: Records, found: Judged) -> None:
    _known(cell, records, found)


def _figure(
    cell: Cell, records: Records, found: Judged, of: Callable[[Compiled], float | None]
) -> float | None:
    """One figure of our record of a compiled grid point; an unknown figure is noted."""
    record = _known(cell, records, found)
    if record is None:
        return None
    value = of(record)
    if value is None:
        found.open.append(f"{name(cell)}: {record.not_known}")
    return value


def _few_cycles(cell: Cell, records: Records, found: Judged) -> None:
    each = _figure(cell, records, found, lambda one: one.decode.per_token if one.decode else None)
    if each is not None and each > MOST_CYCLES:
        found.missed.append(f"{name(cell)}: {each:.3f} cycles, at most {MOST_CYCLES}")


def _streams(cell: Cell, records: Records, found: Judged) -> None:
    mbu = _figure(cell, records, found, lambda one: one.mbu)
    if mbu is not None and mbu < LEAST_MBU:
        share = f"a ceiling of {mbu:.1%} of the bandwidth"
        found.missed.append(f"{name(cell)}: {share}, at least {LEAST_MBU:.0%}")


def _computes(cell: Cell, records: Records, found: Judged) -> None:
    mfu = _figure(cell, records, found, lambda one: one.mfu)
    if mfu is None:
        return
    share = f"a ceiling of {mfu:.1%} of the arithmetic"
    if mfu < LEAST_MFU:
        found.missed.append(f"{name(cell)}: {share}, at least {LEAST_MFU:.0%}")
    for kernel, title in KERNELS.items():
        other = records[kernel].get(cell)
        if kernel == OURS or (other is not None and other.verdict in {"fails", "refused"}):
            continue
        if other is None or other.mfu is None:
            found.open.append(f"{name(cell)}: {title} is not measured")
        elif other.mfu >= mfu:
            found.missed.append(f"{name(cell)}: {share}, {title} has {other.mfu:.1%}")


def rows() -> tuple[Row, ...]:
    """The table, from top to bottom."""
    llama = MODELS["llama-3-8b"]
    known = grid.cells([llama], chips=("v5e", "v5p", "v6e"), page_sizes=(64, 128))
    decoding = tuple(cell for cell in known if (cell.chip, cell.page_size) == ("v6e", 128))
    chips = grid.cells([llama], chips=("v5e", "v5p", "v6e", "7x"), page_sizes=(128,))
    prefill = tuple(evolve(cell, tokens=2048) for cell in chips)
    seventy = grid.cells([MODELS["llama-3-70b"]], chips=("v5e", "v6e", "7x"))
    most, mbu, mfu = f"at most {MOST_CYCLES}", f"at least {LEAST_MBU:.0%}", f"{LEAST_MFU:.0%}"
    return (
        Row("the grid, 146 points", "every grid point OK", grid.grid(), counted, _compiles),
        Row("the same on v4", "every grid point OK", grid.grid_on_v4(), counted, _compiles),
        Row(
            "70B (64, 8, 128), bfloat16, pages of 16 to 256, v5e, v6e, 7x",
            *("all", seventy, counted, _compiles),
        ),
        Row(
            "what one of 4 and of 8 devices has of 8B and 70B, bfloat16, pages of 16 and 128, "
            "every chip",
            *("every grid point OK", grid.shards(), counted, _compiles),
        ),
        Row(
            "static cycles for a KV token of decoding, (32, 8, 128), bfloat16, v6e, pages of 128",
            *(most, decoding, cycles, _few_cycles),
        ),
        Row(
            "ceiling of the MBU of decoding, by static cycles, (32, 8, 128), bfloat16",
            *(mbu, known, bandwidth, _streams),
        ),
        Row(
            "ceiling of the MFU of a prefill, by static cycles, (32, 8, 128), bfloat16, "
            "2,048 tokens, pages of 128",
            *(f"at least {mfu}, and above both", prefill, arithmetic, _computes),
        ),
    )


def cells() -> tuple[Cell, ...]:
    """Every grid point of the table, once; those of single figures first."""
    every = sorted(rows(), key=lambda row: len(row.cells))
    return tuple(dict.fromkeys(cell for row in every for cell in row.cells))


def plain() -> frozenset[Cell]:
    """Grid points that need only a verdict: no row has a figure of them."""
    figured = {cell for row in rows() if row.figure is not counted for cell in row.cells}
    return frozenset(cells()) - figured


def lost(held: Held) -> Iterator[Compiled]:
    """The grid points that do not compile or are refused, in the order of the table."""
    for cell in cells():
        record = held.get(cell)
        if record is not None and record.verdict in {"fails", "refused"}:
            yield record
