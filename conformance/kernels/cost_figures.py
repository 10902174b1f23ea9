"""Figures of whole calls, from the costs that are kept with a compiled grid point.

The time of a call is that of its bundles and of its waits for copies, which the published bandwidth
serves without latency: no call takes less. So shares of bandwidth and arithmetic are ceilings. What
XLA runs around the kernel is not in them.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from attrs import evolve, frozen

from conformance.kernels.compile import calls
from conformance.kernels.compile.calls import Call
from conformance.kernels.compile.cost import Cost
from conformance.kernels.compile.grid import Cell
from conformance.kernels.compile.outcome import Compiled
from conformance.kernels.compile.peaks import PEAKS

STEPS: Final = (64, 128, 256, 512, 1024, 2048, 4096)
"""Cells of a step of the rest of a sequence, of which a model takes what fits; or a whole block."""
EXPLAINED: Final = (
    "The time of a call is that of the bundles that it issues, one a cycle, and of its waits for "
    "copies, which main memory serves in order at the published bandwidth and without latency: no "
    "call takes less. Shares are of what is needed: K and V of visible cells once, queries and "
    "results, or the operations of visible pairs. What XLA runs around the kernel is not counted"
)


@cache
def served(cell: Cell) -> tuple[Call, ...]:
    """The calls that the program of a grid point serves."""
    return calls.of(cell)


def cost_of(record: Compiled, call: Call) -> Cost | None:
    """The cost of a call, if it is known."""
    found = next((cost for cost in record.costs if cost.call == call.name), None)
    return None if found is None or found.why else found


def why_unknown(record: Compiled, call: Call) -> str:
    """Why the cost of a call is not known."""
    found = next((cost for cost in record.costs if cost.call == call.name), None)
    return found.why if found is not None and found.why else f"no cost of {call.name}"


def mbu(record: Compiled, call: Call, *, late: bool = False) -> float | None:
    """The share of the bandwidth. late: with the assumed latency of copies."""
    cost = cost_of(record, call)
    if cost is None:
        return None
    least = calls.needed(record.cell, call) / PEAKS[record.cell.chip].bytes_per_cycle
    return least / (cost.late if late else cost.awaited)


def mfu(record: Compiled, call: Call) -> float | None:
    """The share of the bfloat16 peak."""
    cost = cost_of(record, call)
    if cost is None:
        return None
    peak = PEAKS[record.cell.chip]
    return calls.operations(record.cell, call) / (cost.awaited * peak.per_cycle * peak.cores)


def microseconds(record: Compiled, call: Call) -> float | None:
    """The time of a call."""
    cost = cost_of(record, call)
    return None if cost is None else 1e6 * cost.awaited / PEAKS[record.cell.chip].clock


def ratio(record: Compiled, call: Call, to: Call) -> float | None:
    """The time of a call over that of another."""
    one, other = cost_of(record, call), cost_of(record, to)
    return None if one is None or other is None else one.awaited / other.awaited


def least_mbu(record: Compiled, several: Sequence[Call]) -> float | None:
    """The least share of the bandwidth of several calls."""
    found = [mbu(record, call) for call in several]
    known = [share for share in found if share is not None]
    return min(known) if len(known) == len(found) else None


PARTS: Final = ("call", "sequence", "page", "block", "step", "rest")
"""What the bundles of a decoded batch are a sum over: `step` is one of the rest of a sequence that
whole blocks leave, and `rest` is once for a sequence that has one."""


@frozen(kw_only=True)
class Model:
    """Bundles of a decoded batch as a sum over its parts. each: of every one of PARTS.

    block, step: cells of a whole block, and of a step of the rest. error: the largest relative one,
    of the batches from which it is fitted. held: of drawn batches, from which it is not.
    """

    block: int
    step: int
    each: tuple[float, ...]
    error: float = 0.0
    held: float = 0.0

    def bundles(self, cell: Cell, call: Call) -> float:
        """The bundles of a decoded batch."""
        counts = parts(cell, call, block=self.block, step=self.step)
        return sum(factor * count for factor, count in zip(self.each, counts, strict=True))


def parts(cell: Cell, call: Call, *, block: int, step: int) -> tuple[int, ...]:
    """How many of PARTS a decoded batch has."""
    kv_lens = [kv_len for _, kv_len in call.lens]
    return (
        1,
        len(kv_lens),
        call.pages(cell.page_size),
        sum(kv_len // block for kv_len in kv_lens),
        sum(-(-(kv_len % block) // step) for kv_len in kv_lens),
        sum(kv_len % block > 0 for kv_len in kv_lens),
    )


def model(record: Compiled) -> Model | None:
    """The model of a decoded batch that fits best; None where costs or blocks are not known."""
    batches = decoded(record.cell)
    known = {call.name: cost_of(record, call) for call in batches}
    if record.decode is None or len(batches) <= calls.DRAWN or None in known.values():
        return None
    block = record.decode.cells
    issued = {name: cost.issued for name, cost in known.items() if cost is not None}
    steps = [*(step for step in STEPS if step < block), block]
    every = [_fitted(record.cell, batches, issued, block, step) for step in steps]
    return min(every, key=lambda one: (round(one.error, 4), -one.step))


def decoded(cell: Cell) -> list[Call]:
    """The calls of a grid point in which every sequence has one query."""
    return [call for call in served(cell) if all(some == 1 for some, _ in call.lens)]


def _fitted(
    cell: Cell, batches: Sequence[Call], issued: Mapping[str, float], block: int, step: int
) -> Model:
    """The model with steps of so many cells, fitted to relative errors."""
    drawn = {calls.drawn(seed).name for seed in range(calls.DRAWN)}
    fitted = [call for call in batches if call.name not in drawn]
    counts = np.array([parts(cell, call, block=block, step=step) for call in fitted], float)
    bundles = np.array([issued[call.name] for call in fitted])
    each = _least_squares(counts / bundles[:, None], is_stepless=step == block)
    found = Model(block=block, step=step, each=each)

    def error(some: Sequence[Call]) -> float:
        return max(abs(found.bundles(cell, call) / issued[call.name] - 1) for call in some)

    held = [call for call in batches if call.name in drawn]
    return evolve(found, error=error(fitted), held=error(held))


def _least_squares(shares: np.ndarray[Any, Any], *, is_stepless: bool) -> tuple[float, ...]:
    """Factors of which none is negative, with the least squares of relative errors.

    is_stepless: whether a rest has one step, so that both are counted alike.
    """
    known = list(range(len(PARTS) - is_stepless))
    while True:
        found = np.linalg.lstsq(shares[:, known], np.ones(len(shares)), rcond=None)[0]
        if found.min() >= 0:
            break
        del known[int(found.argmin())]
    each = dict(zip(known, map(float, found), strict=True))
    return tuple(each.get(part, 0.0) for part in range(len(PARTS)))


def costed() -> tuple[Cell, ...]:
    """Every grid point whose program serves published calls."""
    return (*calls.decoding_cells(), *calls.prompt_cells(), *calls.many_cells())
