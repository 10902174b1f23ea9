"""Steps with contents on their way to a checker: of the states of a search, or of renamed ones."""

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

import jax
import numpy as np

from conformance.exploration import renaming
from conformance.exploration.instances import Instance
from conformance.exploration.renaming import Naming
from conformance.exploration.search import Step
from conformance.refinement import contents, names
from conformance.refinement.transition import words
from conformance.refinement.vmapped import Takes, Tally, Transitions
from impl.setup import Setup
from spec.machines.actions import Action
from spec.state import State

BATCH: Final = 1 << 10
MOST_ENCODED: Final = 1 << 14
"""So many renamed states are kept encoded; each is needed for one step or a few."""
TOKENS: Final = 16
"""So many tokens are renamed; an alphabet has fewer."""
Keyed = tuple[Hashable, State]
"""A state, and a key that no other state has: its number, or the state itself."""


class OwnNames:
    """Hands on the steps of a search.

    illegal: also those that a caller must not take. most: as in `Waiting`.
    """

    def __init__(
        self, chosen: Instance, checker: Takes, tally: Tally, *, illegal: bool, most: int = 0
    ) -> None:
        self.chosen, self.setup = chosen, contents.setup_of(chosen)
        self._illegal, self._tally = illegal, tally
        self._waiting = Waiting(self.setup, checker, most=most)

    def visit(self, number: int, state: State, step: Step, after: int) -> None:
        """Hand on one step."""
        action = self.action(state, step)
        if action is None:
            return
        right = state if step.after is None else step.after
        if self.chosen.open_pages:
            self.take(number, step, action, (state, state), (right, right))
        else:
            self.take(number, step, action, (number, state), (after, right))

    def action(self, state: State, step: Step) -> Action | None:
        """The action of a step; None if it is not asked."""
        if not (step.legal or self._illegal):
            return None
        return self.chosen.moves[step.move].action(state)

    def take(self, number: int, step: Step, action: Action, state: Keyed, after: Keyed) -> None:
        """Judge an action that the driver refuses; hand on any other one."""
        asked = contents.ask(self.setup, self.chosen.machine, state[1], action, step.after)
        if isinstance(asked, frozenset):
            self._tally.checked += 1
            self._tally.by_driver += 1
            if not asked or any(not step.mask >> code & 1 for code in asked):
                self._tally.wrong(number, step.move)
            return
        self._waiting.add((asked.entry, asked.call), number, step, state, after)

    def flush(self) -> None:
        """Hand on every step."""
        self._waiting.flush()


class OtherNames:
    """Hands on the steps of each state under its renamings, and the names of the first one.

    own: takes every legal step in each renaming, and the illegal ones in the first. blind: gets
    each step with that of the first renaming. tally: of the latter.
    """

    def __init__(self, own: OwnNames, blind: Takes, tally: Tally, seed: int) -> None:
        self._own, self._tally, self._seed = own, tally, seed
        self._waiting = Waiting(own.setup, blind, most=MOST_ENCODED)
        self._number, self._others = -1, list[tuple[Naming, State]]()

    def visit(self, number: int, state: State, step: Step, _after: int) -> None:
        """Hand on one step in the renamings of its state."""
        action = self._own.action(state, step)
        if action is None:
            return
        if number != self._number:
            self._number = number
            drawn = namings(self._seed, number, self._own.chosen)
            self._others = [(naming, renaming.renamed(state, naming)) for naming in drawn]
        for turn, (naming, other) in enumerate(self._others[: None if step.legal else 1]):
            self._step(number * len(self._others) + turn, step, action, naming, other)
        self._with_names(number, step, action, state)

    def _step(self, at: int, step: Step, action: Action, naming: Naming, other: State) -> None:
        """The step that the specification takes in a renamed state."""
        machine = self._own.chosen.machine
        asked = renaming.renamed_action(action, naming)
        found = machine.refusals(other, asked)
        after = None if found else machine.effect(other, asked)
        mask = sum(1 << reason.value for reason in {refusal.reason for refusal in found})
        taken = Step(step.move, mask, step.legal, after)
        here: Keyed = (at, other)
        there: Keyed = here if after is None else ((at, step.move), after)
        self._own.take(at, taken, asked, here, there)

    def _with_names(self, number: int, step: Step, action: Action, state: State) -> None:
        """The action and the renamed one, in the state and in the first renamed one."""
        (naming, other), machine = self._others[0], self._own.chosen.machine
        again = renaming.renamed_action(action, naming)
        first = contents.ask(self._own.setup, machine, state, action, None)
        second = contents.ask(self._own.setup, machine, other, again, None)
        if isinstance(first, frozenset) or isinstance(second, frozenset):
            self._tally.checked += 1
            self._tally.by_driver += 1
            if first != second:
                self._tally.wrong(number, step.move)
            return
        new = np.array(naming.slots, np.int32), np.array(naming.pages, np.int32)
        both = first.entry, (first.call[0], (second.call[0], *new))
        self._waiting.add(both, number, step, ((number, 0), state), ((number, 1), other))

    def flush(self) -> None:
        """Hand on every step."""
        self._own.flush()
        self._waiting.flush()


def namings(seed: int, number: int, chosen: Instance) -> Iterator[Naming]:
    """The renamings of a state, drawn from the seed and its number. The first one keeps tokens."""
    rng = np.random.default_rng((seed, number))
    for turn, drawn in enumerate(names.drawn(seed, number, 1, chosen.geometry)):
        tokens = rng.permutation(TOKENS) if turn else np.arange(TOKENS)
        yield Naming(
            tuple(drawn.slots[0].tolist()),
            tuple(drawn.pages[0].tolist()),
            tuple(tokens.tolist()),
        )


class Waiting:
    """The steps of each entry point that do not fill a batch yet.

    most: so many encoded states are kept, 0 for all.
    """

    def __init__(self, setup: Setup, checker: Takes, *, most: int = 0) -> None:
        self._setup, self._checker, self._most = setup, checker, most
        self._table = contents.Table(setup)
        self._held: dict[str, list[tuple[int, int, int, int, int, Any]]] = {}

    def add(
        self,
        asked: tuple[str, Any],
        number: int,
        step: Step,
        state: Keyed,
        after: Keyed,
    ) -> None:
        """Keep a step, an entry point and its arguments; hand on a batch when it is full."""
        if self._most and len(self._table) >= self._most:
            self.flush()
            self._table = contents.Table(self._setup)
        before, right = self._table.place(*state), self._table.place(*after)
        entry, arguments = asked
        held = self._held.setdefault(entry, [])
        held.append((number, step.move, before, right, step.mask, arguments))
        if len(held) == BATCH:
            self._hand_on(entry)

    def flush(self) -> None:
        """Hand on every step."""
        for entry in list(self._held):
            if self._held[entry]:
                self._hand_on(entry)

    def _hand_on(self, entry: str) -> None:
        numbers, moves, before, after, masks, calls = zip(*self._held.pop(entry), strict=True)
        self._held[entry] = []
        transitions = Transitions(
            state=np.array(numbers),
            move=np.array(moves),
            before=self._table.gather(np.array(before)),
            arguments=jax.tree.map(lambda *leaves: np.stack(leaves), *calls),
            after=self._table.gather(np.array(after)),
            mask=words(np.array(masks, np.uint64)),
        )
        self._checker.add(entry, transitions)


def before(flush: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    """A function that hands on every step and then calls `then`."""

    def both() -> None:
        flush()
        then()

    return both
