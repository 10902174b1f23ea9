"""Names of pages, slots and tokens: states and actions with other ones, and keys up to renaming.

No guard of the specification depends on a page id, so states that differ in page ids alone have the
same refusals, and successors that differ in page ids alone. Without a queue and outputs that holds
of slots as well, and without a model that draws of tokens: see `instances.SYMMETRIC`.
"""

from collections.abc import Callable, Hashable, Iterator
from itertools import permutations
from typing import Any, Final

from attrs import evolve, fields, frozen

from spec.index import Indexed
from spec.machines.actions import Action
from spec.rung import Machine
from spec.state import PER_SLOT, InFlight, State
from spec.table import Sequence
from spec.vocabulary import INVALID, Tokens

_NAMING_PAGES: Final = frozenset({"sequences", "cells", "counts", "indexed", "flights"})
"""Components that name pages. The rows in the key stand for them, and the keys of the index."""
_OF_SLOTS: Final = frozenset({"slot", "parent", "child", "choice"})
"""The fields of actions that hold a slot; in SYMMETRIC the choice of a slot is its number."""
_OF_TOKENS: Final = frozenset({"prompt", "tokens"})


@frozen
class Naming:
    """New names: of each slot, of each page, and of each token that is below their number."""

    slots: tuple[int, ...]
    pages: tuple[int, ...]
    tokens: tuple[int, ...] = ()

    def slot(self, slot: int) -> int:
        """The new name of a slot; what is none stays."""
        return _named(self.slots, slot)

    def page(self, page: int) -> int:
        """The new name of a page."""
        return _named(self.pages, page)

    def text(self, tokens: Tokens) -> Tokens:
        """The tokens with their new names."""
        return tuple(_named(self.tokens, token) for token in tokens)


def renamed(state: State, naming: Naming) -> State:
    """The state with other names, of a machine without a queue and outputs."""
    assert not state.queue, "the order of a queue is one of slots"
    assert not state.flights, "what is in flight names pages"

    def placed(entries: tuple[Any, ...], names: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple(entries[names.index(name)] for name in range(len(names))) if entries else ()

    def sequence(one: Sequence | None) -> Sequence | None:
        return one and evolve(
            one, row=tuple(map(naming.page, one.row)), tokens=naming.text(one.tokens)
        )

    slots: dict[str, Any] = {name: placed(getattr(state, name), naming.slots) for name in PER_SLOT}
    slots["sequences"] = tuple(map(sequence, slots["sequences"]))
    slots["proposed"] = tuple(map(naming.text, slots["proposed"]))
    slots["details"] = tuple(
        one and evolve(one, choice=naming.slot(one.choice)) for one in slots["details"]
    )
    return state._replace(
        **slots,
        cells=tuple(tuple(map(naming.text, page)) for page in placed(state.cells, naming.pages)),
        counts=placed(state.counts, naming.pages),
        indexed=tuple(
            one and evolve(one, chain=naming.text(one.chain))
            for one in placed(state.indexed, naming.pages)
        ),
    )


def renamed_action(action: Action, naming: Naming) -> Action:
    """The action with other names; an id that is out of range stays."""
    held = {one.name: getattr(action, one.name) for one in fields(type(action))}
    changed: dict[str, Any] = {
        name: naming.slot(value) if name in _OF_SLOTS else naming.text(value)
        for name, value in held.items()
        if name in _OF_SLOTS | _OF_TOKENS and value is not None
    }
    if "batch" in held:
        changed["batch"] = tuple(
            entry and (naming.slot(entry[0]), entry[1]) for entry in held["batch"]
        )
    other: Action = evolve(action, **changed)
    return other


def key(machine: Machine, state: State, *, texts: bool = True) -> Hashable:
    """A key that two states share exactly if they differ in page ids alone.

    texts: whether the values of tokens count, or their number alone.
    """
    return _key(machine, state, tuple if texts else len)


def open_key(machine: Machine, state: State) -> Hashable:
    """A key that two states share only if they differ in the names of pages and tokens alone."""
    met: dict[int, int] = {}
    return _key(
        machine, state, lambda text: tuple(met.setdefault(token, len(met)) for token in text)
    )


def orbit(machine: Machine, state: State) -> Iterator[Hashable]:
    """The `open_key` of the state under each order of its slots."""
    pages = tuple(range(state.geometry.pages))
    for slots in permutations(range(state.geometry.slots)):
        yield open_key(machine, renamed(state, Naming(slots, pages)))


def _key(machine: Machine, state: State, said: Callable[[Tokens], Hashable]) -> Hashable:
    names = {INVALID: INVALID}  # no page: it keeps its name
    rows = tuple(
        sequence
        and (
            tuple(names.setdefault(page, len(names)) for page in sequence.row),
            said(sequence.tokens),
            sequence.allocated,
            sequence.written,
        )
        for sequence in state.sequences
    )
    entries = [(one.context, one.chain, one.rank, page) for page, one in _entered(state)]
    indexed = tuple(
        (context, said(chain), rank, names.get(page))
        for context, chain, rank, page in sorted(entries)
    )
    flights = tuple(
        evolve(flight, parts=tuple(_renamed_part(part, names) for part in flight.parts))
        for flight in state.flights
    )
    others = (name for name in machine.components if name not in _NAMING_PAGES)
    return rows, indexed, flights, tuple(getattr(state, name) for name in others)


def _renamed_part(part: InFlight, names: dict[int, int]) -> InFlight:
    return evolve(part, pages=tuple(names.setdefault(page, len(names)) for page in part.pages))


def _entered(state: State) -> Iterator[tuple[int, Indexed]]:
    """The pages of the index."""
    return ((page, one) for page, one in enumerate(state.indexed) if one is not None)


def _named(names: tuple[int, ...], number: int) -> int:
    return names[number] if 0 <= number < len(names) else number
