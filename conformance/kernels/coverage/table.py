"""What a run of the bench has tried, as text: a line for each shape."""

from collections.abc import Sequence

from conformance.kernels.batches import SIZES, Sizes
from conformance.kernels.processes import Tried

HEAD = (
    "shape",
    "heads",
    "q, pool",
    "pages",
    "contexts",
    "sequences",
    "window",
    "batches",
    "reached",
)


def text(tried: Sequence[Tried]) -> str:
    """The table. Of jobs of a shape: the longest context, the most sequences, all batches."""
    lines: list[tuple[str, ...]] = [HEAD]
    for sizes in SIZES:
        those = [one for one in tried if one.job.sizes == sizes.name and one.cases]
        if those:
            lines.append(_line(sizes, those))
    widths = [max(len(line[at]) for line in lines) for at in range(len(HEAD))]
    return "\n".join(_joined(line, widths) for line in lines)


def _joined(line: Sequence[str], widths: Sequence[int]) -> str:
    parts = (part.ljust(width) for part, width in zip(line, widths, strict=True))
    return f"  {'  '.join(parts)}".rstrip()


def _line(sizes: Sizes, those: Sequence[Tried]) -> tuple[str, ...]:
    """heads: query heads, KV heads, head_dim. reached: branches and loops, of those that can be."""
    covered = [one.covered for one in those if one.covered is not None]
    reached = sum(one["reached"] for one in covered)
    possible = sum(one["of"] - one["unreachable"] for one in covered)
    return (
        sizes.name,
        "x".join(map(str, sizes.heads)),
        ", ".join(sizes.kinds),
        f"{sizes.pages_per_seq} of {sizes.page_size}, ids to {sizes.pages - 1:,}",
        f"to {max(one.longest for one in those):,}",
        f"to {max(one.sequences for one in those)}",
        "-" if sizes.window is None else f"{sizes.window:,}",
        str(sum(one.cases for one in those)),
        f"{reached} of {possible}" if covered else "not known",
    )
