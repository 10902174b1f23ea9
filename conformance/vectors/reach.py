"""The graph of a suite: every reachable state, every move from it, and the items to cover.

States are identified up to renaming of pages: no guard depends on a page id, so renamed states have
the same refusals and the same successors. In a suite that draws no tokens, no guard depends on
token values either, and only the number of tokens is compared.
"""

from collections.abc import Hashable, Iterable, Iterator
from functools import cached_property
from itertools import pairwise

from attrs import frozen

from conformance.exploration import renaming
from conformance.rungs.coverage import Coverage
from conformance.rungs.pages import REFUSED
from conformance.rungs.sharing import SHARED
from conformance.vectors.suites import Suite
from spec import index
from spec.machines.actions import Action, Admit, Hit, Publish, Round
from spec.machines.pages import used
from spec.machines.prefix import key
from spec.state import State
from spec.vocabulary import Reason, Request


@frozen
class Step:
    """A move in a state. move: its number in the suite. after: the number of the resulting state,
    which is the same state if the action is refused.

    kind: the action, and whether it is done or refused. items: the items that the step alone
    covers, its outcome first.
    """

    move: int
    kind: str
    items: tuple[str, ...]
    after: int


class Reach:
    """The graph of a suite. steps: for each state, its steps by number of the move.

    The index in `steps` is the number of the state; state 0 is the initial one.
    """

    def __init__(self, suite: Suite) -> None:
        self.suite = suite
        self.steps: list[dict[int, Step]] = []
        states = [suite.initial()]
        numbers = {self._key(states[0]): 0}
        for state in states:  # grows as it is walked
            steps = self.steps_of(state)
            self.steps.append({})
            for number, step, after in steps:
                known = len(self.steps) - 1
                if after is not None:
                    known = numbers.setdefault(self._key(after), len(states))
                    if known == len(states):
                        states.append(after)
                self.steps[-1][number] = Step(number, *step, known)

    def _key(self, state: State) -> Hashable:
        return renaming.key(self.suite.machine, state, texts=self.suite.texts)

    def steps_of(
        self, state: State
    ) -> Iterator[tuple[int, tuple[str, tuple[str, ...]], State | None]]:
        """Each move that applies in a state, with its kind, its items and the next state.

        The next state is None if the action is refused.
        """
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
            corners += _elsewhere(state, action, reasons)
            yield number, (kind, (outcome, *corners)), after

    @cached_property
    def choices(self) -> tuple[tuple[Step, ...], ...]:
        """The steps of each state, without those that equal an earlier one in all but the move."""
        return tuple(
            tuple({(step.items, step.after): step for step in reversed(steps.values())}.values())[
                ::-1
            ]
            for steps in self.steps
        )

    @cached_property
    def exits(self) -> tuple[tuple[Step, ...], ...]:
        """Of the choices in each state, the first of each kind that leads to each state."""
        found = [dict[tuple[int, str], Step]() for _ in self.steps]
        for known, choices in zip(found, self.choices, strict=True):
            for step in choices:
                known.setdefault((step.after, step.kind), step)
        return tuple(tuple(known.values()) for known in found)

    @cached_property
    def _items(self) -> dict[tuple[int, str], frozenset[str]]:
        """What `items` has found."""
        return {}

    def items(self, state: int, before: str) -> frozenset[str]:
        """Every item that one step in a state covers, after a step of kind `before`."""
        found = self._items.get((state, before))
        if found is None:
            steps = self.choices[state]
            alone = {item for step in steps for item in step.items}
            found = frozenset(alone.union(pair(before, step.kind) for step in steps))
            self._items[state, before] = found
        return found

    @cached_property
    def coverable(self) -> frozenset[str]:
        """Every item that some history covers: the items of steps, and the pairs of kinds."""
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
        """The steps of these moves from the initial state; None if a move does not apply."""
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
    """The boundary cases of one step, by action and by whether pages are shared after it."""
    seen = Coverage()
    seen.record(state, action, reasons, after)
    names = sorted(seen.corners.keys() - {REFUSED, SHARED})  # each item says both already
    if isinstance(action, Round) and not reasons:
        names.append(_shape([queued.slot for queued in state.queue[: state.limits.round_tokens]]))
    shared = max(state.counts) > 1
    if shared and not reasons:
        names.append("done")
    where = f"{type(action).__name__}, pages shared" if shared else type(action).__name__
    return [f"{name} ({where})" for name in names]


def _let_in(waiting: tuple[Request, ...], left: int) -> str:
    """The number of admitted requests, and whether their order differs from order by length."""
    lengths = [len(request.prompt) for request in waiting]
    order = "" if lengths == sorted(lengths) else ", a longer one before a shorter"
    return f"{len(waiting) - left} of {len(waiting)} let in{order} (Admit)"


def _elsewhere(state: State, action: Action, reasons: frozenset[Reason]) -> list[str]:
    """Whether the index has the text of a slot under another context, or in another page."""
    match action:
        case Hit(slot, length) if reasons == {Reason.NOT_INDEXED}:
            text, context = used(state, slot).tokens[:length], state.contexts[slot]
            others = (one for one in state.indexed if one and one.context != context)
            return ["text under another context (Hit)"] * any(one.chain == text for one in others)
        case Publish(slot, length) if not reasons:
            pages = range(length // state.geometry.page_size)
            found = (index.find(state.indexed, *key(state, slot, page)) for page in pages)
            row = used(state, slot).row
            return ["text in another page (Publish)"] * any(
                there not in (None, page) for there, page in zip(found, row, strict=False)
            )
    return []


def _shape(slots: list[int]) -> str:
    """The number of tokens of each slot, slots ascending, and the order in which they arrived."""
    shape = "batch of " + " and ".join(str(slots.count(slot)) for slot in sorted(set(slots)))
    if slots == sorted(slots):
        return shape
    first = list(dict.fromkeys(slots))
    return f"{shape}, interleaved" if first == sorted(first) else f"{shape}, not sorted"


def pair(before: str, after: str) -> str:
    """The item that two consecutive steps of these kinds cover."""
    return f"{before} > {after}"


def is_pair(item: str) -> bool:
    """Whether an item is a pair of consecutive steps, rather than an item of one step."""
    return " > " in item


def covered(steps: list[Step]) -> set[str]:
    """Every item that a history covers."""
    found = {item for step in steps for item in step.items}
    found.update(pair(one.kind, two.kind) for one, two in pairwise(steps))
    return found
