"""Whole calls on the page of the comparison: tables of every shape, chip, page size and length."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from conformance.kernels import cost_figures
from conformance.kernels.comparison_row import KERNELS, OURS, Records
from conformance.kernels.compile import calls
from conformance.kernels.compile.grid import Cell
from conformance.kernels.compile.outcome import Compiled

ORDER: Final = (OURS, "tpu-inference", "jax")
"""The kernels of one entry, from left to right."""
ABSENT: Final = {"fails": "x", "refused": "x", "undecided": "?"}
LEGEND: Final = (
    f"Each entry has {', '.join(KERNELS[kernel] for kernel in ORDER)}, in this order. `x` does "
    "not compile or is refused, `?` is not known, `.` is not measured. Grid points of which no "
    "kernel is measured have no line."
)
Value = Callable[[Compiled], float | None]
Column = tuple[str, calls.Call, Value]
"""Its heading, the call of which it is, and the figure."""


def section(records: Records) -> Iterator[str]:
    """The parts of the section, in Markdown."""
    queries, before = calls.CHUNK
    some = [cell for cell in calls.decoding_cells() if cell.heads == calls.HEAD]
    yield "## Whole calls"
    yield f"{cost_figures.EXPLAINED}. {LEGEND}"
    yield "### Decoding"
    yield (
        "The ceiling of the MBU, in percent, of 64 sequences with one query each, by their cells. "
        "Page ids are scattered."
    )
    yield _table(records, "cells of a sequence", calls.decoding_cells(), _decoding())
    yield (
        "The same if each copy takes a microsecond longer than the bandwidth lets it take. That is "
        "assumed: no latency is published."
    )
    yield _table(records, "cells of a sequence", some, _decoding(late=True))
    yield "### Prompts"
    yield (
        "The ceiling of the MFU, in percent, of one whole prompt from nothing, by its tokens, and "
        f"of a chunk of {queries} queries behind {before:,} cells. Pages have 128 cells. A prompt "
        f"of up to {max(calls.PROMPT_LENS):,} tokens is in a batch with room for so many."
    )
    yield _table(records, "tokens", calls.prompt_cells(), _prompts())
    yield "### Batches"
    yield (
        "Microseconds of short sequences of 1 to 128 cells, with one query each. Then the time of "
        f"64 sequences of {calls.BEHIND:,} cells with a few queries each, relative to one query."
    )
    yield _table(records, "what", _of_batches(), _batches())
    yield from _models(records)
    yield "### Not counted"
    yield "\n".join(_around(records))


def _around(records: Records) -> Iterator[str]:
    """The programs that XLA runs around each kernel, by kind."""
    yield "Programs of XLA around each kernel, of any of these grid points, by kind:"
    yield ""
    for kernel in ORDER:
        every = {name for record in records[kernel].values() for name in record.around}
        kinds = sorted({name.partition(".")[0] for name in every})
        yield f"- {KERNELS[kernel]}: {', '.join(kinds) or 'none are known'}."


def _decoding(*, late: bool = False) -> list[Column]:
    return [
        (f"{kv_len:,}", call, partial(_percent, partial(cost_figures.mbu, late=late), call))
        for kv_len in calls.KV_LENS
        for call in [calls.decoding(kv_len)]
    ]


def _prompts() -> list[Column]:
    lens = (*calls.PROMPT_LENS, calls.LONG_PROMPT)
    asked = [*((f"{tokens:,}", calls.prompt(tokens)) for tokens in lens), ("chunk", calls.chunk())]
    return [(name, call, partial(_percent, cost_figures.mfu, call)) for name, call in asked]


def _batches() -> list[Column]:
    short = [(f"{seqs} short", calls.short(seqs)) for seqs in (calls.SEQS, calls.MANY)]
    several = [(f"{queries} queries", calls.several(queries)) for queries in calls.QUERIES]
    to = calls.decoding(calls.BEHIND)
    return [
        *((name, call, partial(cost_figures.microseconds, call=call)) for name, call in short),
        *((name, call, partial(cost_figures.ratio, call=call, to=to)) for name, call in several),
    ]


def _of_batches() -> list[Cell]:
    large = max(calls.PAGE_SIZES)
    usual = [cell for cell in calls.decoding_cells() if cell.page_size == large]
    return [*usual, *calls.many_cells()]


def _percent(of: Callable[..., float | None], call: calls.Call, record: Compiled) -> float | None:
    share = of(record, call)
    return None if share is None else 100 * share


def _table(records: Records, what: str, some: Sequence[Cell], columns: Sequence[Column]) -> str:
    """A line for each shape, chip and page size of which a kernel is measured."""
    lines = [f"| {what} | {' | '.join(name for name, _, _ in columns)} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for where, those in _alike(some).items():
        if any(cell in records[kernel] for cell in those for kernel in ORDER):
            entries = [_entry(records, those, call, value) for _, call, value in columns]
            lines.append(f"| {where} | {' | '.join(entries)} |")
    return "\n".join(lines)


def _alike(some: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Grid points that differ in the sizes of a batch alone, by what they share."""
    found: dict[str, list[Cell]] = {}
    for cell in some:
        where = f"{cell.heads} {cell.kv}, {cell.chip}, page {cell.page_size}"
        found.setdefault(where, []).append(cell)
    return found


def _entry(records: Records, those: Sequence[Cell], call: calls.Call, value: Value) -> str:
    """The figures of all kernels; nothing if no grid point serves the call."""
    serving = [cell for cell in those if call in cost_figures.served(cell)]
    return " / ".join(
        _told(records[kernel].get(cell), value) for cell in serving for kernel in ORDER
    )


def _told(record: Compiled | None, value: Value) -> str:
    if record is None:
        return "."
    if record.verdict != "ok":
        return ABSENT[record.verdict]
    found = value(record)
    if found is None:
        return "?"
    return f"{found:.1f}" if found < 10 else f"{found:.0f}"


def _models(records: Records) -> Iterator[str]:
    """What a call, a sequence, a page and more cost, for each kernel."""
    yield "### A model"
    yield (
        "The bundles of a decoded batch, without waits, as a sum over its parts: of a call, of "
        "each sequence, of each page, of each whole block of cells, of each step of the rest of a "
        "sequence, and once of a sequence that has a rest. It is fitted to "
        f"{_number_fitted()} batches, most of equal sequences; `error` is the largest of these, "
        f"and `drawn` that of {calls.DRAWN} batches of drawn lengths, to which it is not fitted. "
        "Where parts come together in all of the batches, what belongs to which is not told apart."
    )
    parts = " | ".join(cost_figures.PARTS)
    lines = [
        f"| kernel | cells of a block, of a step | {parts} | error | drawn |",
        "|---" * (4 + len(cost_figures.PARTS)) + "|",
    ]
    for kernel in ORDER:
        for cell in calls.decoding_cells():
            record = records[kernel].get(cell)
            found = cost_figures.model(record) if record is not None else None
            if found is not None:
                lines.append(_model_line(KERNELS[kernel], cell, found))
    yield "\n".join(lines)


def _number_fitted() -> int:
    (first, *_) = calls.decoding_cells()
    return len(cost_figures.decoded(first)) - calls.DRAWN


def _model_line(title: str, cell: Cell, found: cost_figures.Model) -> str:
    parts = [
        f"{title}, {cell.heads} {cell.kv}, {cell.chip}, page {cell.page_size}",
        f"{found.block:,}, {found.step:,}",
        *(f"{factor:,.0f}" for factor in found.each),
        f"{found.error:.1%}",
        f"{found.held:.1%}",
    ]
    return f"| {' | '.join(parts)} |"
