"""The harness that holds accelerators to the specification, step for step.

An accelerator is a second form of the states of a machine, for speed: bytes for millions of states
at once, or a table that is changed in place. Its moves stand for actions of the specification. A
rung needs none.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from attrs import frozen

from conformance.recordings.fields import plain_result
from conformance.rungs.registry import legal_results
from spec.fields import BY_NAME, entries
from spec.machines.actions import Action
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Reason

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


class Accelerator(Protocol[M_contra]):
    """One state in the second form. It is never changed: a move gives another one."""

    def actions(self, move: M_contra, state: State) -> tuple[Action, ...]:
        """The actions that a move stands for in this state of the specification, in order."""
        ...

    def reasons(self, move: M_contra) -> frozenset[Reason]:
        """The reasons for which a move is refused; empty if it is legal."""
        ...

    def after(self, move: M_contra) -> "Accelerator[M_contra]":
        """The state after a legal move."""
        ...

    def results(self) -> Collection[object] | None:
        """The legal results of the last move as plain data; None if the form has no results."""
        ...

    def shown(self) -> Mapping[str, Mapping[int, object]]:
        """The fields that the form holds, by slot or page, as recordings have them."""
        ...


@frozen
class Beside(Generic[M]):
    """A state of the specification, and the same state in the second form."""

    machine: Machine
    state: State
    form: Accelerator[M]

    def take(self, move: M) -> "Beside[M] | None":
        """Take a move on both sides and compare them. None if it is refused on both."""
        state, results = self.state, list[object]()
        for action in self.form.actions(move, self.state):
            found = self.machine.refusals(state, action)
            if found:
                assert self.form.reasons(move) == {one.reason for one in found}, (self.state, move)
                return None
            before, state = state, self.machine.effect(state, action)
            results = [*map(plain_result, legal_results(self.machine, before, action, state))]
        assert self.form.reasons(move) == frozenset(), (self.state, move)
        form = self.form.after(move)
        shown = form.results()
        assert shown is None or list(shown) == results, (self.state, move)
        after = Beside(self.machine, state, form)
        assert after.same(), (self.state, move)
        return after

    def same(self) -> bool:
        """Whether the second form holds what the specification shows."""
        return all(self._same(name, values) for name, values in self.form.shown().items())

    def _same(self, name: str, values: Mapping[int, object]) -> bool:
        field = BY_NAME[name]
        wanted = entries(field, field.of(self.state))
        return values == {index: field.to_record(entry) for index, entry in wanted.items()}


def every_transition(
    start: Beside[M], alphabet: Callable[[Beside[M]], Iterable[M]]
) -> tuple[int, int]:
    """Take every move in every reachable state. Returns the numbers of states and transitions.

    alphabet: a function that lists the moves of a state, first those that leave it as it is.
    """
    waiting, seen, taken = deque([start]), {start.state}, 0
    assert start.same()
    while waiting:
        here = waiting.popleft()
        for move in alphabet(here):
            taken += 1
            after = here.take(move)
            if after is not None and after.state == here.state:
                here = after  # what the form alone remembers of the move is seen by the next one
            elif after is not None and after.state not in seen:
                seen.add(after.state)
                waiting.append(after)
    return len(seen), taken
