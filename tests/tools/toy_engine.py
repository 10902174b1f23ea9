"""A foreign engine to test the kit with: a plain block allocator, and its adapter.

It keeps no contents, takes the highest free block first, and has its own names for refusals. The
variable TOY_BUG gives it one of `BUGS`.
"""

import os
import time
from typing import Final

from conformance.protocol import Action, Profile, Result
from spec.machines import actions as act
from spec.table import Batch, by_slot
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits, Reason, refused

BUGS: Final = (
    "leak",
    "double free",
    "rename",
    "refuses what is legal",
    "does what is illegal",
    "changes when it refuses",
    "forgets to count",
    "raises",
    "exits",
    "hangs",
)


class No(Exception):
    """The allocator refuses; the message is the reason in one word."""


class Seq:
    """A sequence: its blocks, its prompt, and the numbers of cells in use and reserved."""

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.prompt: tuple[int, ...] = ()
        self.name: tuple[int, int] | None = None
        self.cells = self.filled = self.reserved = 0


class Allocator:
    """Blocks, reference counts and sequences, by slot."""

    def __init__(self, sizes: Geometry, batch: int) -> None:
        self.free, self.refs = set(range(sizes.pages)), [0] * sizes.pages
        self.seqs: dict[int, Seq] = {}
        self.size, self.slots = sizes.page_size, sizes.slots
        self.longest, self.widest = sizes.max_len, batch
        self.bug = ""

    def reserve(self, slot: int | None) -> int:
        """Begin a sequence. Returns its slot."""
        if slot is None:
            free = [one for one in range(self.slots) if one not in self.seqs]
            _require("NO_FREE_SLOT", free)
            slot = free[0]
        _require("SLOT_RANGE", 0 <= slot < self.slots)
        _require("SLOT_USED", slot not in self.seqs)
        self.seqs[slot] = Seq()
        return slot

    def assign(self, slot: int, prompt: tuple[int, ...], most: int, name: tuple[int, int]) -> None:
        """Give a sequence its prompt."""
        seq = self._find(slot)
        _require("SLOT_ASSIGNED", seq.name is None)
        _require("TOO_LONG", len(prompt) + most <= self.longest)
        _require("CHOICE_TAKEN", all(other.name != name for other in self.seqs.values()))
        self._admit(seq, len(prompt), most)
        seq.prompt, seq.name = prompt, name

    def allocate(self, batch: Batch) -> None:
        """Give blocks to the next positions of some sequences."""
        grouped = self._grouped(batch, filling=False)
        ends = [at[-1] for at in grouped.values()]
        _require("TOO_LONG", all(end < self.longest for end in ends))
        wanted = self._wanted(grouped)
        if self.bug == "changes when it refuses" and wanted > len(self.free) > 0:
            self.refs[min(self.free)] += 1
        _require("OUT_OF_PAGES", wanted <= len(self.free))
        if self.bug == "refuses what is legal":
            _require("OUT_OF_PAGES", wanted < len(self.free) or not wanted)
        for slot, positions in grouped.items():
            self._grow(self.seqs[slot], positions)

    def fill(self, batch: Batch) -> None:
        """Record that K and V of the next positions have been stored."""
        grouped = self._grouped(batch, filling=True)
        for slot, positions in grouped.items():
            _require("BATCH_POSITIONS", positions[-1] < self.seqs[slot].cells)
            _require("BATCH_UNKNOWN", positions[-1] < len(self.seqs[slot].prompt))
        for slot, positions in grouped.items():
            self.seqs[slot].filled += len(positions)

    def clone(self, parent: int, child: int | None, choice: int) -> int:
        """Begin a second sequence with the same blocks; a partial last block is copied."""
        if child is not None:
            _require("SLOT_RANGE", 0 <= child < self.slots)
        source = self._find(parent)
        _require("SLOT_USED", child is None or child not in self.seqs)
        _require("NO_FREE_SLOT", child is not None or len(self.seqs) < self.slots)
        _require("SLOT_EMPTY", source.name)
        _require("UNWRITTEN", source.cells == source.filled)
        shared, fresh = self._split(source)
        assert source.name is not None
        name = (source.name[0], choice)
        _require("CHOICE_TAKEN", all(other.name != name for other in self.seqs.values()))
        _require("OUT_OF_PAGES", fresh <= len(self.free))
        copy = self.seqs[self.reserve(child)]
        copy.prompt, copy.name, copy.cells, copy.filled = source.prompt, name, source.cells, 0
        copy.blocks, copy.filled = source.blocks[:shared], source.filled
        for block in copy.blocks:
            self.refs[block] += self.bug != "forgets to count"
        copy.blocks += [self._take() for _ in range(fresh)]
        return next(slot for slot, seq in self.seqs.items() if seq is copy)

    def release(self, slot: int) -> None:
        """End a sequence."""
        if self.bug == "does what is illegal" and slot not in self.seqs:
            return
        self._find(slot)
        blocks = self.seqs.pop(slot).blocks
        for block in blocks[:-1] if self.bug == "leak" else blocks:
            self._drop(block)
        if self.bug == "double free":
            for block in blocks:
                if self.refs[block]:
                    self._drop(block)
        if self.bug == "rename" and self.seqs and self.free:
            self._move(next(iter(self.seqs.values())))

    def _move(self, seq: Seq) -> None:
        """Compact: the table is updated, but the content of the block is not moved."""
        if seq.blocks and self.refs[seq.blocks[0]] == 1:
            old, seq.blocks[0] = seq.blocks[0], self._take()
            self._drop(old)

    def _admit(self, seq: Seq, prompt_len: int, most: int) -> None:
        """Take the blocks that a sequence gets with its prompt: none."""

    def _wanted(self, grouped: dict[int, list[int]]) -> int:
        """The blocks that a batch takes."""
        return sum(at % self.size == 0 for found in grouped.values() for at in found)

    def _split(self, source: Seq) -> tuple[int, int]:
        """The blocks that a clone shares, and those that it takes."""
        full, partial = divmod(source.filled, self.size)
        return full, int(partial > 0)

    def _grow(self, seq: Seq, positions: list[int]) -> None:
        if self.bug == "raises" and len(positions) > 2:
            raise IndexError("block table overflow")
        if self.bug == "exits" and len(positions) > 2:
            raise SystemExit(1)
        if self.bug == "hangs" and len(positions) > 2:
            time.sleep(60)
        seq.blocks += [self._take() for position in positions if position % self.size == 0]
        seq.cells += len(positions)

    def _grouped(self, batch: Batch, *, filling: bool) -> dict[int, list[int]]:
        _require("BATCH_WIDTH", len(batch) <= self.widest)
        grouped = by_slot(batch)
        _require("SLOT_RANGE", all(0 <= slot < self.slots for slot in grouped))
        _require("SLOT_UNUSED", all(slot in self.seqs for slot in grouped))
        _require("SLOT_EMPTY", not filling or all(self.seqs[slot].name for slot in grouped))
        for slot, positions in grouped.items():
            start = self.seqs[slot].filled if filling else self.seqs[slot].cells
            wanted = list(range(start, start + len(positions)))
            _require("BATCH_POSITIONS", positions == wanted)
        return grouped

    def _find(self, slot: int) -> Seq:
        _require("SLOT_RANGE", 0 <= slot < self.slots)
        _require("SLOT_UNUSED", slot in self.seqs)
        return self.seqs[slot]

    def _take(self) -> int:
        block = max(self.free)
        self.free.remove(block)
        self.refs[block] = 1
        return block

    def _drop(self, block: int) -> None:
        self.refs[block] -= 1
        if not self.refs[block]:
            self.free.add(block)


def _require(word: str, holds: object) -> None:
    if not holds:
        raise No(word)


OFFERED: Final[frozenset[type]] = frozenset(
    {act.Reserve, act.Assign, act.Allocate, act.Write, act.Clone, act.Free}
)
GUARDED: Final = frozenset({(act.Assign, Reason.STOPS)})


class Adapter:
    """The adapter of the allocator; see `conformance.protocol`."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        self.profile = Profile(name="toy", geometry=geometry, limits=limits, cleanup=cleanup,
                               actions=OFFERED, policy="any", guarded=GUARDED)  # fmt: skip
        self.allocator = Allocator(geometry, limits.prefill_tokens)

    def apply(self, action: Action) -> Result:
        """Translate an action to a call, and a refusal of the allocator to Refused."""
        engine = self.allocator
        try:
            match action:
                case act.Reserve(slot):
                    return engine.reserve(slot)  # type: ignore[arg-type]
                case act.Assign(slot, prompt, params):
                    engine.assign(slot, prompt, params.max_new, (action.request, action.choice))
                case act.Allocate(batch):
                    engine.allocate(batch)
                case act.Write(batch):
                    engine.fill(batch)
                case act.Clone(parent, child, choice):
                    return engine.clone(parent, child, choice)
                case act.Free(int(slot)):
                    engine.release(slot)
        except No as no:
            raise refused(Reason[str(no)]) from no
        return None

    def observe(self) -> View:
        """The view: blocks and lengths, without tokens and contents."""
        engine, sizes = self.allocator, self.profile.geometry
        seqs = [engine.seqs.get(slot, Seq()) for slot in range(sizes.slots)]
        return View(geometry=sizes, counts=engine.refs, rows=[it.blocks for it in seqs],
            used=[slot in engine.seqs for slot in range(sizes.slots)],
            allocated=[it.cells for it in seqs], written=[it.filled for it in seqs])  # fmt: skip


def make(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Adapter:
    """The factory for `--engine toy_engine:make`."""
    adapter = Adapter(geometry, limits, cleanup)
    adapter.allocator.bug = os.environ.get("TOY_BUG", "")
    return adapter
