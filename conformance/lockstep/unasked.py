"""What an engine does to its index without being asked, as its view shows it.

Most engines publish, merge and evict by a policy of their own. The specification then takes each
such action that the view of the engine shows, before the action that the engine was asked for or
after it, and the action must be legal there. So a policy is free, and a mistake is none of it: a
page that is published too early, or evicted while a row names it, is no legal action, and a
difference remains. What of a policy is not followed is in docs/prefix.md. Source: docs/sources.md,
"Prefix cache".
"""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple, Protocol

from attrs import frozen

from conformance.protocol import Action
from spec import index, pool
from spec.fields import IndexEntry, index_entry
from spec.index import Index
from spec.machines.actions import Evict, Merge, Publish
from spec.machines.prefix import key
from spec.rung import Machine
from spec.state import State

Rows = tuple[tuple[int, ...], ...]


class Seen(Protocol):
    """What is read of the view of an engine."""

    @property
    def rows(self) -> Rows:
        """The pages of each slot."""
        ...

    @property
    def indexed(self) -> tuple[IndexEntry, ...] | None:
        """The key of each page; None: the engine does not show it."""
        ...


class Taken(NamedTuple):
    """An action that an engine took unasked, with the states before and after it."""

    before: State
    action: Action
    after: State


@frozen
class Unasked:
    """The actions of these classes that an engine takes unasked. seen: its view after a step."""

    machine: Machine
    kinds: frozenset[type]
    seen: Seen

    def first(self, state: State, action: Action, before: Seen) -> Iterator[Taken]:
        """Those that come before an action that is legal. before: the view before the step.

        What the action itself does to the index is left to it, and it stays legal.
        """
        after = self.machine.effect(state, action)
        while taken := self._next(state, after, (before.rows,), action):
            yield taken
            state = taken.after
            after = self.machine.effect(state, action)

    def then(self, state: State, before: Seen) -> Iterator[Taken]:
        """Those that come after an action, or where it was refused. before: as for `first`."""
        while taken := self._next(state, state, (before.rows, self.seen.rows), None):
            yield taken
            state = taken.after

    def _next(
        self, state: State, after: State, rows: tuple[Rows, ...], action: Action | None
    ) -> Taken | None:
        """The next action that a state lacks. after: the state in which that shows."""
        for candidate in self._lacking(state, after.indexed, rows):
            if not self._may(state, candidate) or self.machine.refusals(state, candidate):
                continue
            reached = self.machine.effect(state, candidate)
            stays = action is None or not self.machine.refusals(reached, action)
            if stays and reached != state:
                return Taken(state, candidate, reached)
        return None

    def _may(self, state: State, action: Action) -> bool:
        """Whether the engine may take an action unasked.

        An engine that evicts may have several pages of one key, and shows the first of them. When
        that one is evicted, its key moves to another one: for a page in a row that is a merge.
        """
        if type(action) in self.kinds or not isinstance(action, Merge):
            return type(action) in self.kinds
        page = index.find(state.indexed, *key(state, action.slot, action.entry))
        return Evict in self.kinds and page is not None and pool.is_free(state.counts, page)

    def _lacking(self, state: State, reached: Index, rows: tuple[Rows, ...]) -> Iterator[Action]:
        """What leads from an index to that of the view. rows: of the engine, in order of time."""
        shown = self.seen.indexed or ()
        held = {index_entry(entry) for entry in reached if entry}
        for entry in sorted(held - {*shown}, key=lambda one: (len(one), one)):
            yield Evict(entry[1:], entry[0])
        new = [(page, entry) for page, entry in enumerate(shown) if entry and entry not in held]
        for page, entry in sorted(new, key=lambda one: len(one[1])):
            before = entry[: -state.geometry.page_size]
            if len(before) > 1 and before not in held:
                continue  # the page before it enters first, perhaps by another slot
            for slot, place in _places(state, rows, page):
                if _key(state, slot, place) == entry:
                    yield Publish(slot, len(entry) - 1)
        for page, entry in enumerate(shown):
            for slot, place in _places(state, rows[-1:], page) if entry in held else ():
                if _key(state, slot, place) == entry and _names_another(state, slot, place):
                    yield Merge(slot, place)


def _places(state: State, rows: tuple[Rows, ...], page: int) -> Iterator[tuple[int, int]]:
    """The slots whose rows name a page of the engine, each with the place in its row.

    Those that named it earlier come first: a row that names it since was merged.
    """
    for slot, row in chain.from_iterable(map(enumerate, rows)):
        if state.sequences[slot] is not None and page in row:
            yield slot, row.index(page)


def _key(state: State, slot: int, place: int) -> IndexEntry | None:
    """The key of a page of a slot as an entry of `indexed`; None without so many tokens."""
    context, chain = key(state, slot, place)
    return (context, *chain) if len(chain) == (place + 1) * state.geometry.page_size else None


def _names_another(state: State, slot: int, place: int) -> bool:
    """Whether a row of a state names another page than the one with its key."""
    sequence = state.sequences[slot]
    assert sequence is not None
    row = sequence.row
    return place < len(row) and row[place] != index.find(state.indexed, *key(state, slot, place))
