"""An allocator of blocks from another project, in a package of its own, and its adapter.

If FOREIGN_BUG is set to any text, a release keeps the last block.
"""

import os

from conformance.protocol import Action, Profile
from spec.machines.actions import Allocate, Free, Reserve
from spec.table import by_slot
from spec.view import View
from spec.vocabulary import INVALID, CleanupMode, Geometry, Limits, Reason, Refusal, refused


class No(Exception):
    """The allocator refuses; the message is the reason in one word."""


class Blocks:
    """A stack of free blocks, and the length of each sequence."""

    def __init__(self, sizes: Geometry, widest: int) -> None:
        self.sizes, self.widest, self.free = sizes, widest, list(range(sizes.pages))
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def open(self, slot: int | None) -> int:
        """Begin a sequence. Returns its slot."""
        unused = [one for one in range(self.sizes.slots) if one not in self.tables]
        _require("NO_FREE_SLOT", holds=slot is not None or bool(unused))
        slot = unused[0] if slot is None else slot
        _require("SLOT_RANGE", holds=0 <= slot < self.sizes.slots)
        _require("SLOT_USED", holds=slot in unused)
        self.tables[slot], self.lengths[slot] = [], 0
        return slot

    def grow(self, positions: dict[int, list[int]], width: int) -> None:
        """Cover the next positions of some sequences."""
        _require("BATCH_WIDTH", holds=width <= self.widest)
        for slot in positions:
            self._find(slot)
        for slot, wanted in positions.items():
            start = self.lengths[slot]
            following = list(range(start, start + len(wanted)))
            _require("BATCH_POSITIONS", holds=wanted == following)
        longest = max((wanted[-1] for wanted in positions.values()), default=0)
        _require("TOO_LONG", holds=longest < self.sizes.max_len)
        missing = {
            slot: self.sizes.pages_for(wanted[-1] + 1) - len(self.tables[slot])
            for slot, wanted in positions.items()
        }
        _require("OUT_OF_PAGES", holds=sum(missing.values()) <= len(self.free))
        for slot, count in missing.items():
            self.tables[slot] += [self.free.pop() for _ in range(count)]
            self.lengths[slot] += len(positions[slot])

    def close(self, slot: int) -> None:
        """End a sequence."""
        self._find(slot)
        del self.lengths[slot]
        table = self.tables.pop(slot)
        self.free += table[:-1] if os.environ.get("FOREIGN_BUG") else table

    def _find(self, slot: int) -> None:
        _require("SLOT_RANGE", holds=0 <= slot < self.sizes.slots)
        _require("SLOT_UNUSED", holds=slot in self.tables)


def _require(word: str, *, holds: bool) -> None:
    if not holds:
        raise No(word)


class Adapter:
    """The adapter of the allocator; see `conformance.protocol`."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        self.profile = Profile(
            name="blocks", geometry=geometry, limits=limits, cleanup=cleanup, policy="any",
            actions=frozenset({Reserve, Allocate, Free}))  # fmt: skip
        self.pool = Blocks(geometry, limits.prefill_tokens)

    def apply(self, action: Action) -> int | None:
        """Translate an action to a call, and a refusal of the allocator to Refused."""
        try:
            match action:
                case Reserve(None | int() as slot):
                    return self.pool.open(slot)
                case Allocate(batch):
                    self.pool.grow(by_slot(batch), len(batch))
                case Free(int(slot)):
                    self.pool.close(slot)
        except No as no:
            raise refused([Refusal(Reason[str(no)], None, None)]) from no
        return None

    def observe(self) -> View:
        """The rows and lengths of all sequences."""
        pool, sizes, slots = self.pool, self.profile.geometry, range(self.profile.geometry.slots)
        tables = [pool.tables.get(slot, []) for slot in slots]
        return View(
            geometry=sizes, used=tuple(slot in pool.tables for slot in slots),
            counts=tuple(int(page not in pool.free) for page in range(sizes.pages)),
            rows=tuple((*row, *[INVALID] * (sizes.pages_per_seq - len(row))) for row in tables),
            allocated=tuple(pool.lengths.get(slot, 0) for slot in slots),
        )  # fmt: skip
