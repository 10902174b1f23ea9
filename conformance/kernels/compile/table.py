"""The records of grid points, as text and as plain data for JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence

from conformance.kernels.compile import grid
from conformance.kernels.compile.outcome import VERDICTS, Compiled, CompiledData
from conformance.kernels.compile.peaks import ASSUMPTIONS

COLUMNS = (
    "cell",
    "verdict",
    "VMEM MiB (spilled)",
    "SMEM KiB",
    "temp/pool",
    "cycles/KV token",
    "MBU ceiling",
    "MFU ceiling",
    "s",
    "why",
)


def targets(records: Sequence[Compiled]) -> list[CompiledData]:
    """One plain object for each grid point, for `targets` of a result."""
    return [record.as_dict() for record in records]


def counts(records: Sequence[Compiled]) -> dict[str, int]:
    """The number of grid points with each verdict, all four."""
    found = Counter(record.verdict for record in records)
    return {verdict: found[verdict] for verdict in VERDICTS}


def causes(records: Sequence[Compiled]) -> dict[str, int]:
    """The causes of grid points that did not compile, most frequent first."""
    found = Counter(record.cause for record in records if record.verdict != "ok")
    return dict(found.most_common())


def summary(records: Sequence[Compiled]) -> str:
    """One line: how many grid points compile, and the causes of the others."""
    held = counts(records)
    others = [f"{held[verdict]} {verdict}" for verdict in VERDICTS[1:] if held[verdict]]
    text = ", ".join([f"{held['ok']} of {len(records)} grid points compile", *others])
    why = ", ".join(f"{number} {cause}" for cause, number in causes(records).items())
    return f"{text}; causes: {why}" if why else text


def overview(records: Sequence[Compiled]) -> str:
    """Verdicts alone: a line for each shape and dtype, a column for each chip and page size."""
    columns = _columns(records)
    found = {(*_row(one), *_column(one)): one.verdict for one in records}
    head = ["shape", "KV", *(f"{chip}/{size}" for chip, size in columns)]
    lines = [
        [_named(shape), kv, *(found.get((shape, kv, *column), "-") for column in columns)]
        for shape, kv in dict.fromkeys(map(_row, records))
    ]
    return aligned([head, *lines])


def details(records: Sequence[Compiled]) -> str:
    """One line for each grid point, and the assumptions of the figures."""
    lines = [list(COLUMNS), *map(_line, records)]
    return f"{aligned(lines)}\n{ASSUMPTIONS}"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their contents; the last is not padded."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _row(record: Compiled) -> tuple[grid.Heads, str]:
    return record.cell.heads, record.cell.kv


def _column(record: Compiled) -> tuple[str, int]:
    return record.cell.chip, record.cell.page_size


def _columns(records: Sequence[Compiled]) -> list[tuple[str, int]]:
    """Chips from old to new, page sizes from small to large."""
    found = set(map(_column, records))
    return sorted(found, key=lambda one: (grid.CHIPS.index(one[0]), one[1]))


def _named(shape: grid.Heads) -> str:
    """The shape, and its first public name."""
    return " ".join([str(shape), *list(grid.names(shape))[:1]])


def _line(record: Compiled) -> list[str]:
    return [
        str(record.cell),
        record.verdict,
        _vmem(record),
        _kib(record.smem),
        "" if record.copied is None else f"{record.copied:.3f}",
        _cycles(record),
        _percent(record.mbu),
        _percent(record.mfu),
        "" if record.seconds is None else f"{record.seconds:.0f}",
        record.reason or record.not_known,
    ]


def _vmem(record: Compiled) -> str:
    if record.vmem is None or record.spilled is None:
        return ""
    return f"{record.vmem / 2**20:.1f} ({record.spilled / 2**20:.1f})"


def _kib(size: int | None) -> str:
    return "" if size is None else f"{size / 2**10:.1f}"


def _cycles(record: Compiled) -> str:
    """Cycles for one token of decoding; for an unknown kernel, of every loop with products."""
    if record.decode is not None:
        return f"{record.decode.per_token:.2f}"
    return (
        f"loops of {', '.join(str(loop.cycles) for loop in record.loops)}" if record.loops else ""
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def unknown(records: Sequence[Compiled]) -> Mapping[str, str]:
    """By grid point, the unknown figures of compiled grid points, with the reasons."""
    return {str(one.cell): one.not_known for one in records if one.not_known}
