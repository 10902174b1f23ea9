"""The comparison of three kernels under the same compilers: grid points, figures, targets.

Every figure comes from the compiler: a grid point is OK if it compiles, cycles are static, and
derived shares are ceilings. Whole calls come first, then what compiles, then the inner loops alone.
A grid point without a result is `not measured`, in the table and for the verdict.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import evolve

from conformance.kernels import cost_figures, cost_rows
from conformance.kernels.comparison_row import (
    KERNELS,
    OURS,
    Held,
    Judged,
    Records,
    Row,
    compiles,
    each,
    figure_of,
    name,
)
from conformance.kernels.compile import grid
from conformance.kernels.compile.grid import MODELS, Cell
from conformance.kernels.compile.outcome import Compiled

MOST_CYCLES: Final = 1.85
LEAST_MBU: Final = 0.95
LEAST_MFU: Final = 0.73


def counted(cells: Sequence[Cell], held: Held) -> str:
    """How many compile, and the outcome of the others."""
    found = Counter(held[cell].verdict if cell in held else "not measured" for cell in cells)
    good = found.pop("ok", 0)
    words = {"fails": "fail", "refused": "refused", "undecided": "undecided"}
    rest = [f"{number} {words.get(what, what)}" for what, number in sorted(found.items())]
    return ", ".join([f"{good} of {len(cells)} OK", *rest])


def cycles(cells: Sequence[Cell], held: Held) -> str:
    """Static cycles of decoding for one KV token."""
    return each(cells, held, lambda one: f"{one.decode.per_token:.2f}" if one.decode else None)


def bandwidth(cells: Sequence[Cell], held: Held) -> str:
    """The ceiling of the bandwidth share, by chip and page size."""
    return each(cells, held, lambda one: _percent(one.mbu), _chip_and_page)


def arithmetic(cells: Sequence[Cell], held: Held) -> str:
    """The ceiling of the share of the bfloat16 peak, by chip."""
    return each(cells, held, lambda one: _percent(one.mfu), lambda cell: f"{cell.chip}: ")


def _chip_and_page(cell: Cell) -> str:
    return f"{cell.chip}/{cell.page_size}: "


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def _few_cycles(cell: Cell, records: Records, found: Judged) -> None:
    cycles_each = figure_of(
        cell, records, found, lambda one: one.decode.per_token if one.decode else None
    )
    if cycles_each is not None and cycles_each > MOST_CYCLES:
        found.missed.append(f"{name(cell)}: {cycles_each:.3f} cycles, at most {MOST_CYCLES}")


def _streams(cell: Cell, records: Records, found: Judged) -> None:
    mbu = figure_of(cell, records, found, lambda one: one.mbu)
    if mbu is not None and mbu < LEAST_MBU:
        share = f"a ceiling of {mbu:.1%} of the bandwidth"
        found.missed.append(f"{name(cell)}: {share}, at least {LEAST_MBU:.0%}")


def _computes(cell: Cell, records: Records, found: Judged) -> None:
    mfu = figure_of(cell, records, found, lambda one: one.mfu)
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
        *cost_rows.rows(),
        Row("the grid, 146 points", "every grid point OK", grid.grid(), counted, compiles),
        Row("the same on v4", "every grid point OK", grid.grid_on_v4(), counted, compiles),
        Row(
            "70B (64, 8, 128), bfloat16, pages of 16 to 256, v5e, v6e, 7x",
            *("all", seventy, counted, compiles),
        ),
        Row(
            "what one of 4 and of 8 devices has of 8B and 70B, bfloat16, pages of 16 and 128, "
            "every chip",
            *("every grid point OK", grid.shards(), counted, compiles),
        ),
        Row(
            "the inner loop alone: static cycles for a KV token of decoding, (32, 8, 128), "
            "bfloat16, v6e, pages of 128",
            *(most, decoding, cycles, _few_cycles),
        ),
        Row(
            "the inner loop alone: ceiling of the MBU of decoding, (32, 8, 128), bfloat16",
            *(mbu, known, bandwidth, _streams),
        ),
        Row(
            "the inner loop alone: ceiling of the MFU of a prefill, (32, 8, 128), bfloat16, 2,048 "
            "tokens, pages of 128",
            *(f"at least {mfu}, and above both", prefill, arithmetic, _computes),
        ),
    )


def cells() -> tuple[Cell, ...]:
    """Every grid point of the page, once; those of targets with figures first."""
    figured = [row for row in rows() if row.figure is not counted]
    others = [row for row in rows() if row.figure is counted]
    every = (*_of(figured), *cost_figures.costed(), *_of(others))
    return tuple(dict.fromkeys(every))


def _of(some: Sequence[Row]) -> Iterator[Cell]:
    for row in sorted(some, key=lambda one: len(one.cells)):
        yield from row.cells


def plain() -> frozenset[Cell]:
    """Grid points that need only a verdict: no row has a figure of them, nor a table of costs."""
    figured = {cell for row in rows() if row.figure is not counted for cell in row.cells}
    return frozenset(cells()) - figured - frozenset(cost_figures.costed())


def lost(held: Held) -> Iterator[Compiled]:
    """The grid points that do not compile or are refused, in the order of the table."""
    for cell in cells():
        record = held.get(cell)
        if record is not None and record.verdict in {"fails", "refused"}:
            yield record
