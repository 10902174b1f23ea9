"""`python -m conformance.mutation.guards`: refine without each guard of the engine in turn.

A guard is one of the conditions that an entry point gives to `first_refusal`, or one for which the
driver refuses before a call. They are found by tracing the entry points and by reading the driver,
so that no list of them is kept. An entry point is compiled once with all its guards numbered; the
number of the one that never refuses is an argument. Without a guard refinement must fail, or a line
of `EXPLAINED` says why it cannot.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from attrs import define, field, frozen

from conformance.exploration.instances import PACKED, instance
from conformance.files.geometries import geometry_to_text
from conformance.mutation.schemata import NONE
from conformance.mutation.transitions import Batches, Graph, collected, wrong_states
from conformance.refinement import contents
from conformance.refinement.run import SMALL, Small
from conformance.refinement.transition import words
from conformance.refinement.vmapped import Kind, Transitions, part
from conformance.seeded_bugs import replaced
from impl import arguments, host
from impl.status import Guard
from spec.machines.actions import MixedRound
from spec.vocabulary import CleanupMode, Geometry, Reason

WIDTH: Final = 8
"""The guards of a batch."""

LARGER: Final = tuple(
    (rung, Geometry(pages=2, slots=2, page_size=2, pages_per_seq=2), CleanupMode.INCREMENTAL)
    for rung in ("scheduling", "rollback", "chunks", "preemption")
)
"""Within a few moves a queue fills here, a round lacks a page, and a draft could be cloned."""
LARGER_STATES: Final = 500
SCOPES: Final[tuple[tuple[Small, int], ...]] = (
    *((small, 0) for small in SMALL),
    *((small, LARGER_STATES) for small in LARGER),
)
"""The graphs, and where their exploration stops; 0 for no bound."""

DRIVERS: Final = frozenset({Reason.BATCH_WIDTH, Reason.PREFILL_WIDTH, Reason.STOPS})
"""What does not fit the arrays of an entry point, which the driver refuses."""
OF_CHUNKS: Final = DRIVERS | {Reason.SLOT_RANGE, Reason.BATCH_POSITIONS}
"""The same for chunks, which reach the device as one count for each slot."""

HOST: Final = "requests wait on the host, which no graph of refinement has; fuzzing asks it"

_PLACED: Final = "what is known has its place in the row: nothing too long is known or queued"

EXPLAINED: Final[dict[str, str]] = {
    "clone: clone 3 SLOT_RANGE": "clone 1 refuses the same child",
    "generate: round_of 2 PROPOSED": (
        "no alphabet has drafts and generate; the round that it repeats is asked"
    ),
    "generate: round_of 4 TOO_LONG": _PLACED,
    "mixed_round: round_of 8 PROPOSED": "no alphabet has drafts and chunks; a round is asked",
    "mixed_round: round_of 10 TOO_LONG": _PLACED,
    "propose: propose 4 TOO_LONG": "a prompt and its limit fit the row: propose 5 refuses the same",
    "replay: replay 5 PROPOSED": "no alphabet has drafts and a replay; enqueue is asked",
    "run_round: round_of 4 TOO_LONG": _PLACED,
}
"""For each guard without which refinement does not fail, the reason."""


@frozen
class Fate:
    """A guard, and how refinement noticed that it was missing; None if it did not."""

    guard: str
    noticed: str | None


@define
class _Numbered:
    """The guards of the entry point that is traced, and the number of the one to leave out."""

    left_out: Any = NONE
    names: list[str] = field(factory=list)

    def without(self, where: str, guards: Iterable[Guard]) -> Iterator[Guard]:
        """The guards, of which the one to leave out never refuses. where: who asks for them."""
        for index, (refuses, reason, seen, allowed) in enumerate(guards):
            name = f"{where} {index} {reason.name}"
            if name not in self.names:  # the body of a loop is traced more than once
                self.names.append(name)
            kept = self.left_out != self.names.index(name)
            yield jnp.asarray(refuses) & kept, reason, seen, allowed


@contextmanager
def _numbered(left_out: Any) -> Iterator[_Numbered]:
    """Number every guard that is given to `first_refusal` while the block runs."""
    numbered = _Numbered(left_out)

    def change(right: Callable[..., Any]) -> Callable[..., Any]:
        def first_refusal(*guards: Guard) -> Any:
            where = inspect.stack(context=0)[1].function
            return right(*numbered.without(where, guards))

        return first_refusal

    with replaced("impl.status", "first_refusal", change):
        yield numbered


def guards_of(check: Kind, transitions: Transitions) -> list[str]:
    """The names of the guards of an entry point, in order."""
    one = part(transitions, 0)

    def traced(*given: Any) -> Any:  # a new function: what was traced before is remembered
        return check.check(*given)

    with _numbered(NONE) as numbered:
        jax.make_jaxpr(traced)(one.before, one.arguments, one.after, one.mask)
    return numbered.names


def noticed(graph: Graph, kind: str) -> dict[str, int | None]:
    """For each guard of an entry point, a state from which the engine goes wrong without it."""
    check, transitions = graph.kinds[kind], graph.held[kind]
    names = guards_of(check, transitions)

    def without(left_out: Any, *given: Any) -> Any:
        with _numbered(left_out):
            return check.check(*given)

    numbers = range(NONE, len(names))
    states = dict(wrong_states(without, transitions, numbers, Batches(width=WIDTH)))
    if NONE in states:
        raise AssertionError(f"{graph.name}: {kind} is wrong with all its guards")
    return {name: states.get(number) for number, name in enumerate(names)}


@contextmanager
def _driver_without(module: ModuleType, function: str, number: int) -> Iterator[None]:
    """Take out one `if` of a function that raises a refusal, while the block runs."""
    tree = ast.parse(inspect.getsource(getattr(module, function)))
    guard = list(_refusing(tree))[number]
    guard.test = ast.Constant(value=False)
    namespace = dict(vars(module))
    exec(compile(ast.fix_missing_locations(tree), f"<{function}>", "exec"), namespace)
    with replaced(module.__name__, function, lambda _right: namespace[function]):
        contents.forget_calls()
        try:
            yield
        finally:
            contents.forget_calls()


def _refusing(tree: ast.AST) -> Iterator[ast.If]:
    """Every `if` that raises a refusal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and any(
            isinstance(one, ast.Raise) and ast.unparse(one).startswith("raise refused(")
            for one in node.body
        ):
            yield node


def driver_guards() -> Iterator[tuple[str, int, str]]:
    """The function, the number and the name of each guard of the driver's arguments."""
    for name, function in vars(arguments).items():
        if isinstance(function, FunctionType) and function.__module__ == arguments.__name__:
            for number, node in enumerate(_refusing(ast.parse(inspect.getsource(function)))):
                reason = re.search(r"Reason\.(\w+)", ast.unparse(node))
                assert reason, f"{name}: a refusal has a reason"
                yield name, number, f"driver: {name} {number} {reason[1]}"


def driver_noticed(small: Small, function: str, number: int) -> str | None:
    """How a small graph shows that the driver lacks a guard; None if it does not."""
    rung, geometry, cleanup = small
    chosen = instance(rung, geometry, cleanup)
    setup, state = contents.setup_of(chosen), chosen.initial()
    kinds, held = contents.kinds(setup), contents.encode(setup, state)
    with _driver_without(arguments, function, number):
        for move in chosen.moves:
            action = move.action(state)
            found = chosen.machine.refusals(state, action) if action is not None else ()
            if action is None or not found:
                continue
            reasons = {refusal.reason for refusal in found}
            if reasons.isdisjoint(OF_CHUNKS if isinstance(action, MixedRound) else DRIVERS):
                continue
            try:
                asked = contents.ask(setup, chosen.machine, state, action, None)
            except (IndexError, ValueError) as error:
                return f"{rung} {geometry_to_text(geometry)}: {move} raises {type(error).__name__}"
            if isinstance(asked, frozenset):
                continue
            mask = words(np.array([sum(1 << reason.value for reason in reasons)], np.uint64))[0]
            if not jax.jit(kinds[asked.entry].check)(held, asked.call, held, mask):
                return f"{rung} {geometry_to_text(geometry)}: {move} is not refused as it must be"
    return None


def host_guards() -> list[str]:
    """The guards of the host, which keeps the waiting requests: refinement asks it nothing."""
    found = []
    for name, function in vars(host).items():
        if isinstance(function, FunctionType) and function.__module__ == host.__name__:
            for number, node in enumerate(_reasons(ast.parse(inspect.getsource(function)))):
                found.append(f"host: {name} {number} {node}")
    return found


def _reasons(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Reason":
            yield node.attr


def fates() -> list[Fate]:
    """The fate of each guard that refinement can ask for, in order of its name."""
    found: dict[str, str | None] = {}
    for small, most_states in SCOPES:
        graph = collected(small, most_states=most_states)
        for kind in graph.held:
            for name, state in noticed(graph, kind).items():
                guard = f"{kind}: {name}"
                there = None if state is None else f"{graph.name}, state {state}"
                found[guard] = found.get(guard) or there
    for function, number, guard in driver_guards():
        layers = (small for small in SMALL if small[0] != PACKED)
        told = (driver_noticed(small, function, number) for small in layers)
        found[guard] = next(filter(None, told), None)
    return [Fate(guard, found[guard]) for guard in sorted(found)]


def main() -> int:
    """Leave out each guard in turn; return 0 if each that is not noticed is explained."""
    every = fates()
    missed = [one.guard for one in every if one.noticed is None]
    for one in every:
        print(
            f"{one.guard}: {one.noticed or EXPLAINED.get(one.guard, 'NOT noticed, not explained')}"
        )
    for guard in host_guards():
        print(f"{guard}: {HOST}")
    explained = [guard for guard in missed if guard in EXPLAINED]
    print(
        f"{len(every)} guards, {len(every) - len(missed)} noticed, {len(explained)} explained; "
        f"{len(host_guards())} guards of the host are not asked"
    )
    for guard in sorted(EXPLAINED.keys() - set(missed)):
        print(f"explained, and noticed or gone: {guard}")
    return 0 if sorted(missed) == sorted(EXPLAINED) else 1


if __name__ == "__main__":
    sys.exit(main())
