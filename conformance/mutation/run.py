"""`make mutants`: mutation testing of the engine by refinement.

The transitions of a few small graphs are collected once. A mutant is planted, the traces of its
entry points are compared with the clean engine's, and those that differ are compiled and applied to
the collected transitions, until one has a wrong result. A mutant that survives must be explained.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, ParamSpec, TypedDict, TypeVar

import jax
import numpy as np
from attrs import astuple, define, field, frozen
from rich.console import Console
from rich.progress import track

from conformance.exploration.instances import PACKED, instance
from conformance.mutation.explained import EQUIVALENT
from conformance.mutation.operator import TARGETS, Mutant, mutants
from conformance.refinement import allocator, contents
from conformance.refinement.run import SMALL, Refinement, Small, refine_small
from conformance.refinement.vmapped import Kind, Transitions, joined, padded, part
from conformance.runtime.sources import digest
from conformance.runtime.unoptimised import compiler_options
from conformance.seeded_bugs import replaced
from spec.vocabulary import CleanupMode, Geometry

P = ParamSpec("P")
R = TypeVar("R")

SIZE: Final = 1 << 11
LARGER: Final[Small] = (
    "lifecycle",
    Geometry(pages=3, slots=2, page_size=2, pages_per_seq=2),
    CleanupMode.INCREMENTAL,
)
"""The graph for survivors of the small ones: it has more pages than a page has cells."""

RESULTS: Final = Path(".kvspec/mutants.jsonl")


@define
class Kept:
    """The transitions of a graph, by kind, and the check of each kind."""

    scope: str
    kinds: dict[str, Kind]
    held: dict[str, list[Transitions]] = field(factory=dict)
    traced: dict[str, str] = field(factory=dict)
    reached: dict[str, set[str]] = field(factory=dict)

    def add(self, kind: str, transitions: Transitions) -> None:
        """Add transitions."""
        if len(transitions.mask):
            self.held.setdefault(kind, []).append(transitions)

    def finish(self) -> None:
        """Concatenate the transitions, and trace the clean engine."""
        self.held = {kind: [joined(parts)] for kind, parts in self.held.items()}
        self.traced = {kind: self.trace(kind) for kind in self.held}

    def trace(self, kind: str) -> str:
        """The traced program of a check of this kind, as text."""
        one = part(self.held[kind][0], 0)

        def check(*given: object) -> Any:  # a new function: what was traced before is remembered
            return self.kinds[kind].check(*given)

        return str(jax.make_jaxpr(check)(one.before, one.arguments, one.after, one.mask))

    def wrong(self, kind: str) -> int | None:
        """The number of a state from which the current engine goes wrong."""
        whole = self.held[kind][0]
        check = jax.jit(jax.vmap(self.kinds[kind].check), compiler_options=compiler_options())
        for start in range(0, len(whole.mask), SIZE):
            some = part(whole, slice(start, start + SIZE))
            full = padded(some, SIZE)
            right = np.asarray(check(full.before, full.arguments, full.after, full.mask))
            if not right.all():
                return int(full.state[int(np.argmin(right))])
        return None


@frozen
class Fate:
    """The outcome of a mutant: how it was noticed, or None."""

    mutant: str
    noticed: str | None


class Line(TypedDict):
    """A fate as it is kept in the file. source: a digest of what it depends on."""

    mutant: str
    noticed: str | None
    source: str


@cache
def _keep(small: Small) -> Kept:
    name, geometry, cleanup = small
    if name == PACKED:
        kinds = allocator.kinds(allocator.setup_of(geometry))
    else:
        kinds = contents.kinds(contents.setup_of(instance(name, geometry, cleanup)))
    found = Kept(f"{name} {','.join(map(str, filter(None, astuple(geometry))))}", kinds)
    refine_small(small, Refinement(), found)
    found.reached = _reached(found)
    return found


def _reached(found: Kept) -> dict[str, set[str]]:
    """The kinds that call each mutated function: only those need to be checked."""
    called: set[str] = set()

    def watched(name: str, right: Callable[P, R]) -> Callable[P, R]:
        def wrapper(*given: P.args, **named: P.kwargs) -> R:
            called.add(name)
            return right(*given, **named)

        return wrapper

    reached: dict[str, set[str]] = {}
    with ExitStack() as stack:
        for module, functions in TARGETS.items():
            for function in functions:
                watch = partial(watched, f"{module}.{function}")
                stack.enter_context(replaced(module, function, watch))
        for kind in found.held:
            called.clear()
            found.trace(kind)
            for name in called:
                reached.setdefault(name, set()).add(kind)
    return reached


def judge(mutant: Mutant) -> Fate:
    """The fate of a mutant in the small graphs or, if it survives them, in the larger one."""
    found = fate(mutant, map(_keep, SMALL))
    return found if found.noticed else fate(mutant, [_keep(LARGER)])


def fate(mutant: Mutant, graphs: Iterable[Kept]) -> Fate:
    """Plant a mutant, and check until it is noticed."""
    with replaced(mutant.module, mutant.function, mutant.build):
        for graph in graphs:
            for kind in sorted(graph.reached.get(f"{mutant.module}.{mutant.function}", ())):
                try:
                    if graph.trace(kind) == graph.traced[kind]:
                        continue
                    state = graph.wrong(kind)
                except Exception as error:
                    return Fate(mutant.id, f"{graph.scope}: {kind} raises {type(error).__name__}")
                if state is not None:
                    return Fate(mutant.id, f"{graph.scope}: {kind} from state {state}")
    return Fate(mutant.id, None)


def main() -> int:
    """Judge every mutant that has no result yet; return 0 if each survivor is explained."""
    done = _done()
    left = [mutant for mutant in mutants() if mutant.id not in done]
    for mutant in track(left, description="mutants", console=Console(stderr=True)):
        found = judge(mutant)
        done[mutant.id] = found.noticed
        _append(found)
    return _tell(done)


def _tell(done: dict[str, str | None]) -> int:
    survivors = [name for name, noticed in done.items() if noticed is None]
    unexplained = [name for name in survivors if name not in EQUIVALENT]
    gone = sorted(set(EQUIVALENT) - set(survivors))
    print(f"{len(done)} mutants, {len(done) - len(survivors)} noticed, "
          f"{len(survivors) - len(unexplained)} explained as equivalent")  # fmt: skip
    for name in survivors:
        if name in EQUIVALENT:
            print(f"equivalent: {name}: {EQUIVALENT[name]}")
    for name in unexplained:
        print(f"NOT noticed and not explained: {name}")
    for name in gone:
        print(f"explained as equivalent, and noticed or gone: {name}")
    return 1 if unexplained or gone else 0


@cache
def _sources() -> str:
    """A digest of the sources of the engine and of the specification that judges it."""
    return digest("spec", "impl")


def _done() -> dict[str, str | None]:
    """The earlier results with the same sources."""
    found: dict[str, str | None] = {}
    for line in _lines():
        if line["source"] == _sources():
            found[line["mutant"]] = line["noticed"]
    return found


def _lines() -> Iterator[Line]:
    if RESULTS.exists():
        for line in RESULTS.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:  # the last line of a run that was cut off
                return


def _append(found: Fate) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    line = Line(mutant=found.mutant, noticed=found.noticed, source=_sources())
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    sys.exit(main())
