"""Refinement of many mutants at once: every transition of small graphs, in batches under `vmap`.

The transitions are collected once, from the engine without a mutant. Only the entry point of a
transition runs the mutant: what puts a state into the engine and compares the result does not.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import jax
import numpy as np
from attrs import define, field, frozen

from conformance.exploration.instances import PACKED, instance
from conformance.files.geometries import geometry_to_text
from conformance.lockstep.watchdog import Watchdog
from conformance.mutation import schemata
from conformance.refinement import allocator, contents
from conformance.refinement.run import SMALL, Refinement, Small, refine_cells, refine_small
from conformance.refinement.vmapped import Kind, Transitions, joined, padded, part
from conformance.runtime.unoptimised import compiler_options
from impl import entries
from spec.vocabulary import CleanupMode, Geometry

WIDTH: Final = 32
"""The mutants of a batch."""
LENGTH: Final = 512
"""The transitions of a batch."""
BATCH_SECONDS: Final = 120.0
"""How long a batch may take, compilation included, before it counts as hanging."""
LARGER: Final[Small] = (
    "lifecycle",
    Geometry(pages=3, slots=2, page_size=2, pages_per_seq=2),
    CleanupMode.INCREMENTAL,
)
"""A graph with more pages than a page has cells."""


@define
class Graph:
    """The transitions of a graph by entry point, and the check of each."""

    name: str
    kinds: dict[str, Kind]
    held: dict[str, Transitions]


@define
class _Taker:
    """Keeps transitions, see `conformance.refinement.vmapped.Takes`."""

    parts: dict[str, list[Transitions]] = field(factory=dict)

    def add(self, kind: str, transitions: Transitions) -> None:
        """Keep them."""
        if len(transitions.mask):
            self.parts.setdefault(kind, []).append(transitions)

    def finish(self) -> None:
        """Nothing is left to do."""


def collected(small: Small, *, most_states: int = 0) -> Graph:
    """Every transition of one graph, legal or not. most_states: as in `refine_cells`."""
    rung, geometry, cleanup = small
    found, run = _Taker(), Refinement()
    if rung == PACKED:
        kinds = allocator.kinds(allocator.setup_of(geometry))
        refine_small(small, run, found)
    else:
        chosen = instance(rung, geometry, cleanup)
        kinds = contents.kinds(contents.setup_of(chosen))
        refine_cells(chosen, run, found, illegal=True, most_states=most_states)
    held = {kind: joined(parts) for kind, parts in found.parts.items()}
    return Graph(f"{rung} {geometry_to_text(geometry)}", kinds, held)


@frozen(kw_only=True)
class Batches:
    """How mutants are judged. width: the most in a batch. begin: is told each before it runs.

    watchdog: watches each batch.
    """

    width: int = WIDTH
    begin: Callable[[Sequence[int]], None] = lambda _: None
    watchdog: Watchdog | None = None

    def right(self, mutants: Sequence[int], check: Callable[[], Any]) -> Any:
        """The result of a check as numpy, under the watchdog."""
        self.begin(mutants)
        if self.watchdog is None:
            return np.asarray(check())
        self.watchdog.begin((), BATCH_SECONDS)
        try:
            return np.asarray(check())
        finally:
            self.watchdog.end()


def judge(
    numbers: Iterable[int],
    batches: Batches,
    *,
    keep: Callable[[int, str], None],
    graphs: Sequence[Small] = (*SMALL, LARGER),
) -> None:
    """Check mutants on every transition of the graphs, each until one is wrong.

    keep: takes the number of a mutant that is killed, and by what.
    """
    alive = set(numbers)
    for small in graphs:
        graph = collected(small)
        for name, transitions in sorted(graph.held.items()):
            for number, how in list(_wrong(graph.kinds[name], transitions, alive, batches)):
                alive.discard(number)
                keep(number, f"{graph.name}: {name} {how}")


def _wrong(
    kind: Kind, transitions: Transitions, numbers: set[int], batches: Batches
) -> Iterator[tuple[int, str]]:
    """The mutants that go wrong in transitions of this kind, and how."""
    together, alone = _met(kind, part(transitions, 0), numbers)
    for number in sorted(alone):
        try:
            state = _state_of_one(kind, transitions, number, batches)
        except Exception as error:
            yield number, f"raises {type(error).__name__}"
        else:
            if state is not None:
                yield number, f"from state {state}"
    for number, state in wrong_states(_checked(kind), transitions, sorted(together), batches):
        yield number, f"from state {state}"


def _met(kind: Kind, one: Transitions, numbers: set[int]) -> tuple[set[int], set[int]]:
    """The mutants that this kind meets: those that a traced number selects, and the others."""
    choice = schemata.CHOICE
    choice.traced.clear()
    jax.eval_shape(_checked(kind), np.int32(0), *_given(one))
    met = choice.traced & numbers
    return met - choice.static, met & choice.static


def wrong_states(
    checked: Callable[..., Any],
    transitions: Transitions,
    numbers: Sequence[int],
    batches: Batches,
) -> Iterator[tuple[int, int]]:
    """The mutants that are wrong, each with a state from which it goes wrong.

    checked: from the number of a mutant and one transition to whether the engine agrees.
    """
    every = jax.vmap(checked, (None, 0, 0, 0, 0))
    check = jax.jit(
        jax.vmap(every, (0, None, None, None, None)), compiler_options=compiler_options()
    )
    alive = list(numbers)
    for some in _slices(transitions):
        wrong = set[int]()
        for at in range(0, len(alive), batches.width):
            mutants = alive[at : at + batches.width]
            chosen = np.full(batches.width, schemata.NONE, np.int32)
            chosen[: len(mutants)] = mutants
            right = batches.right(mutants, partial(check, chosen, *_given(some)))
            for number, row in zip(mutants, right, strict=False):
                if not row.all():
                    wrong.add(number)
                    yield number, int(some.state[int(np.argmin(row))])
        alive = [number for number in alive if number not in wrong]


def _state_of_one(
    kind: Kind, transitions: Transitions, number: int, batches: Batches
) -> int | None:
    """A state from which a mutant that is compiled by itself goes wrong."""
    check = jax.jit(jax.vmap(partial(_checked(kind), number)), compiler_options=compiler_options())
    for some in _slices(transitions):
        right = batches.right([number], partial(check, *_given(some)))
        if not right.all():
            return int(some.state[int(np.argmin(right))])
    return None


def _slices(transitions: Transitions) -> Iterator[Transitions]:
    size = min(LENGTH, len(transitions.mask))
    for start in range(0, len(transitions.mask), size):
        yield padded(part(transitions, slice(start, start + size)), size)


def _given(transitions: Transitions) -> tuple[Any, ...]:
    return transitions.before, transitions.arguments, transitions.after, transitions.mask


def _checked(kind: Kind) -> Callable[..., Any]:
    """The check of a kind with the number of a mutant, which only its entry point runs."""

    def check(number: Any, *given: Any) -> Any:
        with _mutant_in(kind.name, number):
            return kind.check(*given)

    return check


@contextmanager
def _mutant_in(name: str, number: Any) -> Iterator[None]:
    """Let the entry point run a mutant while the block runs."""
    right = getattr(entries, name)

    def entry(*given: Any) -> Any:
        with schemata.choosing(number):
            return right(*given)

    setattr(entries, name, entry)
    try:
        yield
    finally:
        setattr(entries, name, right)
