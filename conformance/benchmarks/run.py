"""`python -m conformance.benchmarks.run`: growth and overhead as ratios, measured in the same run.

Each figure is a time over that of a reference, in turns with it, medians of both. Whether an entry
point copies the pool is read from the compiled program, and only that can fail: clocks of shared
machines drift, so a missed target is reported and not asserted.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import jax
import jax.numpy as jnp
from attrs import asdict, evolve, frozen
from rich.console import Console
from rich.table import Table

from conformance.benchmarks.timing import (
    GEOMETRY,
    LIMITS,
    WIDE,
    Prepared,
    Prompting,
    allocating,
    calling,
    exact,
    importing,
    modelling,
    programs,
    request,
    rounding,
    take_turns,
    wait,
    wide,
)
from conformance.engines import pool_copies
from conformance.files import atomic
from impl import entries
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.models.llama import Llama
from impl.setup import Setup
from impl.state.pages import lowest_free

MANY_PAGES: Final = 65_536
MANY_SLOTS: Final = 1_024
POOL_PAGES: Final = 4_096
COPY_SHARE: Final = 0.25
"""The extra time allowed in the large pool, as a share of one copy of that pool."""
TOUCHING: Final = ("write", "clone", "prefill_requests", "run_round", "generate", "reset_logical")
"""The entry points that --quick times. The pool-copy check covers all."""


@frozen
class Figure:
    """One measured number. most: the target; None if there is none."""

    name: str
    value: float
    unit: str
    most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        return None if self.most is None else self.value <= self.most


@frozen
class Result:
    """copying: entry points that copy the pool, and why."""

    figures: tuple[Figure, ...]
    copying: dict[str, tuple[str, ...]]


def main(argv: list[str] | None = None) -> int:
    """Measure, print a table, and return 1 only if an entry point copies the pool."""
    options = _options(argv)
    started = time.perf_counter()
    result = measure(TOUCHING, turns=10) if options.quick else measure(entries.ALL, turns=60)
    show(result)
    if options.json:
        atomic.write(options.json, to_json(result, time.perf_counter() - started))
    return 1 if result.copying else 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.benchmarks.run",
        description="Measure ratios, and check that no entry point copies the pool.",
        epilog="example: python -m conformance.benchmarks.run --quick --json bench.json",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, fewer figures")
    return parser.parse_args(argv)


def measure(names: Sequence[str], *, turns: int) -> Result:
    """Every figure, `turns` repetitions of each side, and the pool-copy check. names: to time."""
    compiled = {pages: programs(pages) for pages in (GEOMETRY.pages, POOL_PAGES)}
    figures = (
        *import_times(turns=max(3, turns // 6)),
        reset_growth(turns=turns),
        *allocation_growth(turns=turns),
        slots_growth(turns=turns),
        *pool_growth(compiled, names, turns=max(5, turns // 4)),
        *round_over_model(turns=turns),
        *prefix_hits(turns=max(5, turns // 4)),
    )
    state = pool_copies.abstract_state(wide(POOL_PAGES))
    problems = {
        name: pool_copies.entry_problems(name, program, state)
        for name, program in compiled[POOL_PAGES].items()
    }
    return Result(figures, {name: found for name, found in problems.items() if found})


def import_times(*, turns: int) -> Iterator[Figure]:
    """Milliseconds of imports in fresh processes, without the start of the interpreter."""
    everything = "import pkgutil, spec\nfor part in pkgutil.walk_packages(spec.__path__, 'spec.'):"
    statements = {
        "import spec": "import spec",
        "import all of spec": f"{everything} __import__(part.name)",
    }
    times = take_turns([importing(code) for code in statements.values()], turns=turns)
    for name, found in zip(statements, times, strict=True):
        yield Figure(name, found * 1e3, "ms", 150.0)


def reset_growth(*, turns: int) -> Figure:
    """Logical reset with many pages, relative to few."""
    calls = [calling(Engine(exact(pages=pages)), "reset_logical") for pages in (MANY_PAGES, 64)]
    many, few = take_turns(calls, turns=turns)
    return Figure(f"logical reset: {MANY_PAGES} pages over 64", many / few, "x", 2.0)


def allocation_growth(*, turns: int) -> Iterator[Figure]:
    """The extra time of allocation with many pages, over one pass that finds free pages."""
    width = LIMITS.prefill_tokens // GEOMETRY.page_size + GEOMETRY.slots
    find = jax.jit(lambda counts: lowest_free(counts, width))
    counts = jnp.zeros((MANY_PAGES,), jnp.int32)

    def one_pass() -> float:
        start = time.perf_counter()
        find(counts).block_until_ready()
        return time.perf_counter() - start

    find(counts).block_until_ready()
    calls = [allocating(exact(pages=MANY_PAGES)), allocating(exact(pages=64)), one_pass]
    many, few, alone = take_turns(calls, turns=turns)
    yield Figure(f"allocation: {MANY_PAGES} pages over 64", many / few, "x")
    passes = (many - few) / alone
    yield Figure("the same difference over one pass over the counts", passes, "x", 1.5)


def slots_growth(*, turns: int) -> Figure:
    """Allocation of the same batch with many slots, relative to few."""
    calls = [allocating(exact(slots=slots)) for slots in (MANY_SLOTS, GEOMETRY.slots)]
    many, few = take_turns(calls, turns=turns)
    name = f"allocation of one batch: {MANY_SLOTS} slots over {GEOMETRY.slots}"
    return Figure(name, many / few, "x", 1.25)


def pool_growth(
    compiled: dict[int, dict[str, jax.stages.Compiled]], names: Sequence[str], *, turns: int
) -> Iterator[Figure]:
    """For each entry point, the extra time in a large pool, over one copy of that pool."""
    large, small = (Prepared(pages, compiled[pages]) for pages in (POOL_PAGES, GEOMETRY.pages))
    pools = jax.tree.map(jnp.copy, large.cache)
    copy = jax.jit(lambda cache: jax.tree.map(lambda pool: pool + 1, cache))

    def one_copy() -> float:
        start = time.perf_counter()
        wait(copy(pools))
        return time.perf_counter() - start

    one_copy()
    for name in names:
        calls = [large.entry(name), small.entry(name), one_copy]
        many, few, whole = take_turns(calls, turns=turns)
        most = None if name == "reset_physical" else COPY_SHARE
        title = f"{name}: {POOL_PAGES} pages less 64, over a copy of the pool"
        yield Figure(title, (many - few) / whole, "x", most)


def round_over_model(*, turns: int) -> Iterator[Figure]:
    """A decode round, relative to the model's own step and draw on the same batch."""
    real = evolve(WIDE, layers=4, embed=256, mlp=1024, vocabulary=1024)
    for name, model in (("integer model", IntegerModel()), ("small Llama", real)):
        setup = Setup(geometry=GEOMETRY, limits=LIMITS, model=model)
        weights = jax.jit(model.init)(jax.random.key(0)) if isinstance(model, Llama) else ()
        engine = Engine(setup, weights)
        for first in (0, 4):
            engine.prefill([request(first + number, 32, 90) for number in range(4)])
        held = engine.extract()
        calls = [rounding(engine, weights, held), modelling(setup, weights, held)]
        whole, alone = take_turns(calls, turns=turns)
        yield Figure(f"decode round over the model alone: {name}", whole / alone, "x")


def prefix_hits(*, turns: int) -> Iterator[Figure]:
    """The time to the first token with an index of prefixes, over that without one.

    Each kind of prompt has an engine of its own: without an index no page is ever idle.
    """
    shared, own = 512, 32
    model = evolve(WIDE, layers=4, embed=256, mlp=1024, vocabulary=1024)
    plain, missing, hitting = (Prompting(model, shared=shared, own=own) for _ in range(3))
    calls = [plain.plain, missing.missing, hitting.hitting]
    take_turns(calls, turns=6)  # they compile, and fill the pools with pages of the index
    without, unfound, found = take_turns(calls, turns=turns)
    size = f"a prompt of {shared + own} tokens"
    yield Figure(f"first token of {size}: {shared} are hit", found / without, "x")
    yield Figure(
        f"first token of {size}: looked up, not hit, published", unfound / without, "x", 1.03
    )


def show(result: Result) -> None:
    """Print a table of the figures, and the result of the pool-copy check."""
    table = Table("figure", "value", "target", "")
    for one in result.figures:
        target = "" if one.most is None else f"at most {one.most:g} {one.unit}"
        mark = {None: "", True: "met", False: "NOT met"}[one.met]
        table.add_row(one.name, f"{one.value:.2f} {one.unit}", target, mark)
    console = Console(width=110)
    console.print(table)
    for name, found in result.copying.items():
        console.print(f"FAILS: {name}: {'; '.join(found)}")
    if not result.copying:
        console.print(f"none of {len(entries.ALL)} entry points copies the pool, once compiled")


def to_json(result: Result, seconds: float) -> str:
    """One JSON object; its verdict is that of the pool-copy check."""
    figures = [asdict(one) | {"met": one.met} for one in result.figures]
    content = {
        "command": "bench",
        "verdict": "fails" if result.copying else "holds",
        "seconds": round(seconds, 3),
        "figures": figures,
        "copying": {name: list(found) for name, found in result.copying.items()},
    }
    return json.dumps(content, indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(main())
