"""The comparison of kernels as text and as a page of Markdown."""

from collections.abc import Iterator, Sequence
from typing import Final

from conformance.kernels import cost_page
from conformance.kernels.comparison import cells, lost, rows
from conformance.kernels.comparison_row import KERNELS, OURS, Records, Row, name, sizes_of
from conformance.kernels.compile.outcome import Compiled
from conformance.kernels.compile.peaks import ASSUMPTIONS

LEFT_OUT: Final = (
    "OK means that the compiler of the chip accepts the kernel with the block sizes that the "
    "kernel chooses itself. The first lines have whole calls, the last ones the inner loop over KV "
    "alone, as the compiler schedules it. For tpu-inference the kernels are counted, and not the "
    "surrounding work: its pool has another layout. It takes the new K and V as operands and "
    "appends them, and that is in its whole calls; ours does not do it here. It receives the name "
    "of the chip; its programs for decoding and for mixed batches are compiled together, as it "
    "calls them, and both are in a whole call. The second kernel of the package, for a head_dim of "
    "64, is not called."
)

OF_LOOPS: Final = f"In the lines of inner loops {ASSUMPTIONS}"


def table(records: Records) -> list[list[str]]:
    """Lines of the table, the head first."""
    head = ["what", *KERNELS.values(), "target of ours", ""]
    return [head, *(_line(row, records) for row in rows())]


def _line(row: Row, records: Records) -> list[str]:
    figures = [row.figure(row.cells, records[kernel]) for kernel in KERNELS]
    judged = row.judged(records)
    state = "missed" if judged.missed else "open" if judged.open else "met"
    return [row.what, *figures, row.target, state]


def text(records: Records) -> str:
    """The printed form: each line of the table as a paragraph, since the figures are long."""
    head, *lines = table(records)
    parts = []
    for line in lines:
        told = [
            f"  {title:<18} {figure}" for title, figure in zip(head[1:4], line[1:4], strict=True)
        ]
        parts.append("\n".join([line[0], *told, f"  {head[4]:<18} {line[4]}: {line[5]}"]))
    return "\n".join([*parts, OF_LOOPS])


def page(records: Records, *, date: str) -> str:
    """The page for --write."""
    lines = [f"| {' | '.join(line)} |" for line in table(records)]
    lines.insert(1, "|---" * len(table(records)[0]) + "|")
    parts = [
        "# Three kernels through the same compilers",
        f"Written by `kvspec compare --write` on {date}. {_measured(records)}",
        "\n".join(lines),
        f"{OF_LOOPS}.",
        LEFT_OUT,
        *cost_page.section(records),
        "## What does not compile",
        *_losses(records),
    ]
    return "\n\n".join(parts) + "\n"


def _measured(records: Records) -> str:
    """How much of the table was compiled, and with which versions."""
    total = len(cells())
    parts = [f"{title} {len(records[kernel])}" for kernel, title in KERNELS.items()]
    versions = {
        f"{part} {number}"
        for held in records.values()
        for record in held.values()
        for part, number in record.versions.items()
    }
    used = f", with {', '.join(sorted(versions))}" if versions else ""
    return f"Of {total} grid points for each kernel these were compiled{used}: {', '.join(parts)}."


def _losses(records: Records) -> Iterator[str]:
    for kernel, title in KERNELS.items():
        found = list(lost(records[kernel]))
        if not found:
            number = len(records[kernel])
            yield f"**{title}**: nothing of the {number} grid points that were compiled."
        elif kernel == OURS:
            yield "\n".join([f"**{title}**:", "", *map(_alone, found)])
        else:
            yield "\n".join([f"**{title}**, by cause:", "", *_grouped(found)])


def _alone(record: Compiled) -> str:
    return f"- {name(record.cell)}: {record.verdict}: {record.reason}"


def _grouped(found: Sequence[Compiled]) -> Iterator[str]:
    """One item for each cause, with the first reason and every grid point."""
    for cause in dict.fromkeys(record.cause for record in found):
        some = [record for record in found if record.cause == cause]
        first = f"the first {some[0].verdict}: {some[0].reason}".rstrip(".")
        yield f"- {cause}, {len(some)}: {first}. {_together(some)}"


def _together(some: Sequence[Compiled]) -> str:
    """All grid points: chips and page sizes beside their common part."""
    found: dict[str, list[str]] = {}
    for cell in (record.cell for record in some):
        shape = f"{cell.heads} {cell.kv}{sizes_of(cell)}"
        found.setdefault(shape, []).append(f"{cell.chip}/{cell.page_size}")
    return "; ".join(f"{shape}: {' '.join(places)}" for shape, places in found.items())
