"""Batches taken slot by slot and cell by cell, beside a second reading of what is left of each."""

from itertools import product
from typing import Any, Final

import pytest

from conformance.rungs.registry import ACTIONS
from spec.machines.actions import Allocate, Write

ENTRIES: Final = (None, (0, -1), (0, 0), (0, 1), (1, 0), (1, 2))
BATCHES: Final = [batch for size in range(5) for batch in product(ENTRIES, repeat=size)]


@pytest.mark.parametrize("kind", [Allocate, Write])
def test_each_slot_has_its_positions_and_all_the_padding(kind: Any) -> None:
    """Slots come in the order of the batch; each has its own entries and the padding, in order."""
    for batch in BATCHES:
        parts = ACTIONS[kind].by_slot(kind(batch))

        slots = list[int]()
        for entry in batch:
            if entry is not None and entry[0] not in slots:
                slots.append(entry[0])
        expected = []
        for slot in slots:
            own = list(batch)
            for entry in batch:
                if entry is not None and entry[0] != slot:
                    own.remove(entry)
            expected.append(kind(tuple(own)))
        assert tuple(expected or [kind(batch)]) == parts


def test_each_position_is_alone_unless_a_sequence_begins() -> None:
    """Positions come in order, without padding; a batch that may begin a sequence stays whole."""
    for batch in BATCHES:
        parts = ACTIONS[Allocate].by_position(Allocate(batch))

        entries = sorted({entry: batch.count(entry) for entry in batch if entry}.items())
        begins = not entries or entries[0][0][1] in {-1, 0}
        single = [Allocate((entry,)) for entry, times in entries for _ in range(times)]
        assert ((Allocate(batch),) if begins else tuple(single)) == parts


def test_other_actions_stay_whole() -> None:
    """An action without positions is its only part."""
    for kind in ACTIONS.keys() - {Allocate, Write}:
        action = object()
        assert (action,) == ACTIONS[kind].by_slot(action) == ACTIONS[kind].by_position(action)
