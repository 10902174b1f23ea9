"""Every state that a suite can reach, every move from each, and what there is to be covered.

States are taken up to renaming of pages: no guard looks at the name of a page, so what is refused
and what can follow is the same. Where nothing is drawn, no guard looks at tokens either.
"""

from collections.abc import Hashable, Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Final

from attrs import frozen

from conformance.fuzzing.coverage import Coverage
from conformance.vectors.suites import Suite
from spec.machines.actions import Action, Admit, Round
from spec.state import State
from spec.vocabulary import Reason, Request


@frozen
class Step:
    """A move in a state. after: the number of the state it leads to, the same if it is refused.

    kind: the action, and whether it is done or refused. items: what it covers by itself, its
    outcome first.
    """

    move: int
    kind: str
    items: tuple[str, ...]
    after: int


class Reach:
    """The graph of a suite. steps: of each state by number, 0 the initial one; by move."""

    def __init__(self, suite: Suite) -> None:
        self.suite = suite
        self.steps: list[dict[int, Step]] = []
        states = [suite.initial()]
        numbers = {_named(suite, states[0]): 0}
        for state in states:  # grows as it is walked
            steps = self.steps_of(state)
            self.steps.append({})
            for number, step, after in steps:
                known = len(self.steps) - 1
                if after is not None:
                    known = numbers.setdefault(_named(suite, after), len(states))
                    if known == len(states):
                        states.append(after)
                self.steps[-1][number] = Step(number, *step, known)

    def steps_of(
        self, state: State
    ) -> Iterator[tuple[int, tuple[str, tuple[str, ...]], State | None]]:
        """Each move that means something here, its kind and items, and the state it leads to."""
        machine = self.suite.machine
        for number, move in enumerate(self.suite.moves):
            action = move.action(state)
            if action is None:
                continue
            reasons = frozenset(found.reason for found in machine.refusals(state, action))
            after = None if reasons else machine.effect(state, action)
            why = "+".join(sorted(reason.name for reason in reasons))
            kind = f"{type(action).__name__} {'refused' if reasons else 'done'}"
            outcome = f"{type(action).__name__}: {why or 'done'}"
            corners = _corners(state, action, reasons, after or state)
            if isinstance(action, Admit) and after is not None:
                corners.append(_let_in(state.waiting, len(after.waiting)))
            yield number, (kind, (outcome, *corners)), after

    @cached_property
    def choices(self) -> tuple[tuple[Step, ...], ...]:
        """Of each state the steps that differ in more than the move, the first of each."""
        return tuple(
            tuple({(step.items, step.after): step for step in reversed(steps.values())}.values())[
                ::-1
            ]
            for steps in self.steps
        )

    @cached_property
    def coverable(self) -> frozenset[str]:
        """Everything that some history covers: what single steps do, and every pair of kinds."""
        found, kinds = set[str](), [set[str]() for _ in self.steps]
        for steps in self.steps:
            for step in steps.values():
                found.update(step.items)
                kinds[step.after].add(step.kind)
        for before, steps in zip(kinds, self.steps, strict=True):
            after = {step.kind for step in steps.values()}
            found.update(pair(one, other) for one in before for other in after)
        return frozenset(found)

    def taken(self, moves: Iterable[int]) -> list[Step] | None:
        """The steps of a history from the initial state; None if a move means nothing there."""
        steps, state = list[Step](), 0
        for move in moves:
            step = self.steps[state].get(move)
            if step is None:
                return None
            steps.append(step)
            state = step.after
        return steps


def _corners(
    state: State,
    action: Action,
    reasons: frozenset[Reason],
    after: State,
) -> list[str]:
    """The corners of one step, by action and by whether pages are shared then."""
    if reasons and Reason.OUT_OF_PAGES not in reasons:
        return []  # what else is refused is no corner
    seen = Coverage()
    seen.record(state, action, reasons, after)
    names = sorted(seen.corners)
    if isinstance(action, Round) and not reasons:
        names.append(_shape([queued.slot for queued in state.queue[: state.limits.round_tokens]]))
    shared = max(state.counts) > 1
    if shared and not reasons:
        names.append("done")
    where = f"{type(action).__name__}, pages shared" if shared else type(action).__name__
    return [f"{name} ({where})" for name in names]


def _let_in(waiting: tuple[Request, ...], left: int) -> str:
    """How many were let in, and whether their order can be told from that of their lengths."""
    lengths = [len(request.prompt) for request in waiting]
    order = "" if lengths == sorted(lengths) else ", a longer one before a shorter"
    return f"{len(waiting) - left} of {len(waiting)} let in{order} (Admit)"


def _shape(slots: list[int]) -> str:
    """How many tokens of each slot, slots ascending, and whether they arrived like that."""
    shape = "batch of " + " and ".join(str(slots.count(slot)) for slot in sorted(set(slots)))
    if slots == sorted(slots):
        return shape
    first = list(dict.fromkeys(slots))
    return f"{shape}, interleaved" if first == sorted(first) else f"{shape}, not sorted"


def pair(before: str, after: str) -> str:
    """The item that two steps in a row cover."""
    return f"{before} > {after}"


def is_pair(item: str) -> bool:
    """Whether an item is two steps in a row, and not what a single one shows."""
    return " > " in item


def covered(steps: list[Step]) -> set[str]:
    """What a history covers."""
    found = {item for step in steps for item in step.items}
    found.update(pair(one.kind, two.kind) for one, two in pairwise(steps))
    return found


def _named(suite: Suite, state: State) -> Hashable:
    """The same for two states exactly if they differ in names alone."""
    names: dict[int, int] = {}
    rows = tuple(
        sequence
        and (
            tuple(names.setdefault(page, len(names)) for page in sequence.row),
            sequence.tokens if suite.texts else len(sequence.tokens),
            sequence.allocated,
            sequence.written,
        )
        for sequence in state.sequences
    )
    others = (name for name in suite.machine.components if name not in _NAMING_PAGES)
    return rows, tuple(getattr(state, name) for name in others)


_NAMING_PAGES: Final = frozenset({"sequences", "cells", "counts"})
"""Components that name pages; the rows say all that they say."""
