"""`python -m conformance.bench`: what must not grow, as ratios measured in the same run.

Each figure is a time over that of a peer, taken in turns with it, medians of both. Whether an entry
point copies the pool is not timed but read from the compiled program, and is the only thing that
can fail here: clocks of shared machines lie, and targets missed are reported, not asserted.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import jax
import jax.numpy as jnp
from attrs import asdict, evolve, frozen
from rich.console import Console
from rich.table import Table

from conformance import gate
from impl import arguments, entries
from impl.engine import compiled
from impl.models.integer import IntegerModel
from impl.setup import Setup
from impl.state import State, initial
from spec.vocabulary import Geometry, Limits, default_limits

SMALL: Final = Geometry(pages=64, page_size=16, slots=8, pages_per_seq=8)
PAGES: Final = 65_536
GATE_PAGES: Final = 4_096
SLOTS: Final = 1_024
IMPORT_MS: Final = 150.0


@frozen
class Figure:
    """One measured number. most: the target; None where the number is only told."""

    name: str
    value: float
    unit: str
    most: float | None

    @property
    def met(self) -> bool | None:
        """Whether the target is met, if there is one."""
        return None if self.most is None else self.value <= self.most


def main(argv: list[str] | None = None) -> int:
    """Measure, print a table, and return 1 only if an entry point copies the pool."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m conformance.bench")
    parser.add_argument("--json", metavar="FILE", help="write the figures as one JSON object")
    parser.add_argument("--quick", action="store_true", help="few repetitions, for a first look")
    options = parser.parse_args(argv)
    turns = 3 if options.quick else 15
    figures = [
        import_time(turns=3),
        reset_growth(turns=turns),
        *allocation(turns=turns),
        slots_growth(turns=turns),
        round_over_model(turns=turns),
    ]
    large = _setup(evolve(SMALL, pages=GATE_PAGES), default_limits(SMALL))
    copies = {name: gate.check_entry(large, name) for name in entries.NAMES}
    copying = {name: found for name, found in copies.items() if found}
    _print(figures, copying)
    if options.json:
        result = {"figures": [asdict(one) | {"met": one.met} for one in figures], "gate": copying}
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if copying else 0


def import_time(*, turns: int) -> Figure:
    """Milliseconds that `import spec` and all its machines take in a fresh process."""
    code = "import time; t = time.perf_counter(); import spec, spec.machines.admission; "
    code += "print((time.perf_counter() - t) * 1e3)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(turns)
    ]
    return Figure("import spec with every machine", median(times), "ms", IMPORT_MS)


def reset_growth(*, turns: int) -> Figure:
    """Logical reset of many pages over that of few."""
    many = evolve(SMALL, pages=PAGES)
    value = _ratio(_entry(many, "reset_logical"), _entry(SMALL, "reset_logical"), turns=turns)
    return Figure(f"logical reset, {PAGES} pages over {SMALL.pages}", value, "x", 2.0)


def allocation(*, turns: int) -> list[Figure]:
    """Allocation in a large pool over one pass that finds free pages, and over a small pool."""
    many = evolve(SMALL, pages=PAGES)
    limits = default_limits(SMALL)
    counts = jnp.zeros((PAGES,), jnp.int32)
    most = limits.prefill_tokens // SMALL.page_size + SMALL.slots
    find = jax.jit(lambda found: jnp.nonzero(found == 0, size=most, fill_value=PAGES)[0])

    def one_pass() -> None:
        find(counts).block_until_ready()

    large = _allocation(many, limits)
    return [
        Figure(
            f"allocation, {PAGES} pages, over one pass over the counts",
            _ratio(large, one_pass, turns=turns),
            "x",
            None,
        ),
        Figure(
            f"the same, less an allocation in {SMALL.pages} pages",
            _difference_ratio(large, _allocation(SMALL, limits), one_pass, turns=turns),
            "x",
            1.5,
        ),
    ]


def slots_growth(*, turns: int) -> Figure:
    """Allocation of the same batch with many slots over that with few."""
    limits = evolve(default_limits(SMALL), queue=2 * SLOTS, outputs=2 * SLOTS)
    many = evolve(SMALL, slots=SLOTS)
    value = _ratio(_allocation(many, limits), _allocation(SMALL, limits), turns=turns)
    return Figure(f"allocation, {SLOTS} slots over {SMALL.slots}, same batch", value, "x", 1.5)


def round_over_model(*, turns: int) -> Figure:
    """A decode round with nothing queued over the smallest call: its planning and dispatch."""
    value = _ratio(_entry(SMALL, "run_round"), _entry(SMALL, "pack"), turns=turns)
    return Figure("decode round over packing alone", value, "x", None)


def _setup(geometry: Geometry, limits: Limits | None = None) -> Setup:
    return Setup(geometry=geometry, limits=limits or default_limits(geometry), model=IntegerModel())


def _entry(geometry: Geometry, name: str) -> Callable[[], None]:
    return _caller(_setup(geometry, default_limits(SMALL)), name)


def _allocation(geometry: Geometry, limits: Limits) -> Callable[[], None]:
    """Allocate the same 17 cells of slot 0 again and again: the state is that after a reserve."""
    setup = _setup(geometry, limits)
    batch = arguments.batch(setup, [(0, position) for position in range(17)])
    reserve, allocate = compiled(setup, "reserve"), compiled(setup, "allocate")
    free = compiled(setup, "free")
    state = [initial(setup)]

    def call() -> None:
        state[0], report = allocate((), state[0], *batch)
        report.block_until_ready()

    def again() -> None:
        state[0], _ = free((), state[0], arguments.slot(setup, 0))
        state[0], report = reserve((), state[0], arguments.slot(setup, 0))
        report.block_until_ready()

    again()
    call()
    call.__dict__["before"] = again
    return call


def _caller(setup: Setup, name: str, *rest: Any) -> Callable[[], None]:
    run = compiled(setup, name)
    state: list[State] = [initial(setup)]

    def call() -> None:
        state[0], report = run((), state[0], *rest)
        report.block_until_ready()

    call()
    return call


def _times(calls: list[Callable[[], None]], turns: int) -> list[list[float]]:
    """Seconds of each call, in turns; what a call says must come `before` it is not timed."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(20 * turns):
        for call, found in zip(calls, times, strict=True):
            before = call.__dict__.get("before")
            if before is not None:
                before()
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
    return times


def _ratio(one: Callable[[], None], peer: Callable[[], None], *, turns: int) -> float:
    first, second = _times([one, peer], turns)
    return median(first) / median(second)


def _difference_ratio(
    large: Callable[[], None], small: Callable[[], None], peer: Callable[[], None], *, turns: int
) -> float:
    """What the large call takes beyond the small one, over the peer."""
    first, second, third = _times([large, small, peer], turns)
    return (median(first) - median(second)) / median(third)


def _print(figures: list[Figure], copying: dict[str, tuple[str, ...]]) -> None:
    table = Table("figure", "value", "target", "")
    for one in figures:
        target = "" if one.most is None else f"at most {one.most:g} {one.unit}"
        mark = {None: "", True: "met", False: "NOT met"}[one.met]
        table.add_row(one.name, f"{one.value:.2f} {one.unit}", target, mark)
    console = Console()
    console.print(table)
    for name, found in copying.items():
        console.print(f"FAILS: {name}: {'; '.join(found)}")
    if not copying:
        console.print(f"no entry point of {len(entries.NAMES)} copies the pool (compiled program)")


if __name__ == "__main__":
    sys.exit(main())
