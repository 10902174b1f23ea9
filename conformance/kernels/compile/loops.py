"""The inner loops of a schedule, and how many KV tokens one pass takes.

That must be known for each kernel; see `READERS`. For others the loops are listed without tokens.
The loops found must agree with the compiled sizes; otherwise the result is unknown: a wrong number
is worse than none.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from attrs import frozen

from conformance.kernels.compile.bundles import Loop, Schedule

Sizes = Mapping[str, int]
Schedules = Mapping[str, Schedule]
"""The schedule of each kernel of a program, by the compiler's name of it."""
V3: Final = re.compile(r"RPA(?P<part>[dm])-p_\d+-bq_(?P<q>\d+)_\d+-bkv_\d+_(?P<kv>\d+)\b")
"""How tpu-inference names its kernels: for decoding or mixed batches, the page size, queries and KV
tokens that are fetched at a time, and that are worked on at a time."""


@frozen
class Pass:
    """One pass of an inner loop. cells: its KV tokens, of all heads; tokens: its queries.

    cycles: static, for all heads.
    """

    cycles: int
    cells: int
    tokens: int

    @property
    def per_token(self) -> float:
        """Cycles for one KV token."""
        return self.cycles / self.cells


@frozen
class Counted:
    """decode, prefill: None where unknown, with the reason in `why`."""

    decode: Pass | None = None
    prefill: Pass | None = None
    why: str = ""


def largest(schedules: Schedules) -> Schedule:
    """The loop with the most matrix products."""
    return max(schedules.values(), key=lambda one: sum(loop.products for loop in one.outer()))


def count(name: str, schedules: Schedules, sizes: Sizes | None) -> Counted:
    """The passes of the kernel of this name. sizes: of its compilation, if known."""
    if name == "tpu-inference":
        return _of_tpu_inference(schedules)
    reader = READERS.get(name)
    if reader is None:
        return Counted(why="unknown how many KV tokens each loop takes: the loops are listed")
    if sizes is None:
        return Counted(why="unknown block sizes of the compiled kernel")
    return reader(largest(schedules), sizes)


def _ours(schedule: Schedule, sizes: Sizes) -> Counted:
    """`impl.attention.tpu`: decoding has loops of groups of steps and of single steps.

    There are two of each if pages of the next fetch are started beside them; those without the
    starts are counted then. The last loops are those of a prefill: long steps without a mask, then
    short ones, then short ones with a mask. Before them are those of a few queries, and those of
    the first steps, of which the sizes have the number. Of a prefill long steps are counted, since
    they take most cells.
    """
    outer = schedule.outer()
    parts = schedule.inside(outer[0]) if len(outer) == 1 else ()
    kinds = 3 if sizes["edge_cells"] < sizes["prefill_cells"] else 2
    behind = kinds + sizes["loops_before"]
    if len(parts) < 2 + behind:
        expected = f"at least {2 + behind} expected"
        return Counted(why=f"{len(parts)} inner loops with products, {expected}")
    decoding, (prefill, *shorter) = parts[:-behind], parts[-kinds:]
    most, single = (choose(loop.products for loop in decoding) for choose in (max, min))
    groups = min((loop for loop in decoding if loop.products == most), key=lambda loop: loop.cycles)
    steps = sizes["decode_steps"]
    if most != steps * single:
        return Counted(why=f"no loop has {steps} times the products of a single step")
    decode = Pass(groups.cycles, steps * sizes["decode_cells"], 1)
    if prefill.products < max(loop.products for loop in shorter):
        return Counted(decode, why="long steps of a prefill do not come before short ones")
    cycles = _of_all_heads(schedule, prefill, sizes)
    if cycles is None:
        return Counted(decode, why="the heads of a step of the prefill have no loop of their own")
    return Counted(decode, Pass(cycles, sizes["prefill_cells"], sizes["q_rows"]))


def _of_all_heads(schedule: Schedule, step: Loop, sizes: Sizes) -> int | None:
    """Cycles of a step: those of a turn, times the number of turns."""
    turns, repeated = sizes["head_turns"], schedule.inside(step)
    if len(repeated) != (turns > 1):
        return None
    return step.cycles + (turns - 1) * sum(part.cycles for part in repeated)


def _of_jax(schedule: Schedule, sizes: Sizes) -> Counted:
    """jax's own kernel: one loop over blocks of KV serves both, for a block of queries and heads.

    A decoded token takes a whole block of queries, since sequences are not combined.
    """
    found = schedule.innermost()
    if len(found) != 1:
        return Counted(why=f"{len(found)} innermost loops with products, 1 expected")
    cycles, cells = found[0].cycles * sizes["head_blocks"], sizes["kv_cells"]
    return Counted(Pass(cycles, cells, 1), Pass(cycles, cells, sizes["q_rows"]))


def _of_tpu_inference(schedules: Schedules) -> Counted:
    """Two kernels with their sizes in their names; each has one inner loop, for all heads.

    One pass takes the KV tokens of one computation, for all fetched queries.
    """
    passes, problems = {}, []
    for part, match, schedule in _named(schedules):
        found = schedule.innermost()
        if len(found) == 1:
            passes[part] = Pass(found[0].cycles, int(match["kv"]), int(match["q"]))
        else:
            problems.append(f"{len(found)} innermost loops with products, 1 expected")
    if {"d", "m"} - passes.keys() and not problems:
        problems.append(f"kernels named {', '.join(schedules)}, one RPAd and one RPAm expected")
    return Counted(passes.get("d"), passes.get("m"), "; ".join(problems))


def _named(schedules: Schedules) -> Iterator[tuple[str, re.Match[str], Schedule]]:
    for name, schedule in schedules.items():
        match = V3.match(name)
        if match:
            yield match["part"], match, schedule


READERS: Final[Mapping[str, Callable[[Schedule, Sizes], Counted]]] = {
    "tpu": _ours,
    "jax": _of_jax,
}
"""By the short name of the kernel, see `kernel_under_test.KNOWN`."""
