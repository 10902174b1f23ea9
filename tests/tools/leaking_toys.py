"""Toy engines that refuse more than the specification: by a rule of their own, or by a leak.

They copy lazily, and their counts come from the reference counts: what a leak has lost is free in
every view.
"""

from typing import Final

from attrs import evolve
from capacity_toys import LAZY, Frugal, FrugalAdapter
from toy_engine import No, Seq

from spec.table import Batch, by_slot
from spec.vocabulary import CleanupMode, Geometry, Limits

LEAKS: Final = (
    "returns nothing",
    "keeps a partial last block",
    "never returns block 3",
    "loses a block with a copy",
)
RULES: Final = ("a watermark of 3 blocks", "at most 5 positions in a batch", "no third sequence")
INVERTED: Final = "an inverted check"
"""What needs a page is always refused."""


class Leaky(Frugal):
    """An allocator with one of the leaks, or one of the rules."""

    def allocate(self, batch: Batch) -> None:
        """Give blocks to the next positions of some sequences."""
        slots = by_slot(batch).keys() & self.seqs.keys()
        copied = any(self._copies(self.seqs[slot], self.refs) for slot in slots)
        super().allocate(batch)
        if self.bug == LEAKS[3] and copied and self.free:
            self.free.pop()

    def _wanted(self, grouped: dict[int, list[int]]) -> int:
        wanted, cells = super()._wanted(grouped), sum(map(len, grouped.values()))
        too_wide = self.bug == RULES[1] and cells > 5
        if too_wide or (self.bug == INVERTED and 0 < wanted <= len(self.free)):
            return len(self.free) + 1
        return wanted + 3 * (self.bug == RULES[0] and wanted > 0)

    def reserve(self, slot: int | None) -> int:
        """Begin a sequence."""
        taken = super().reserve(slot)
        if self.bug == RULES[2] and len(self.seqs) > 2:
            del self.seqs[taken]
            raise No("NO_FREE_SLOT")
        return taken

    def release(self, slot: int) -> None:
        """End a sequence."""
        seq, free = self.seqs.get(slot, Seq()), set(self.free)
        super().release(slot)
        if self.bug == LEAKS[0]:
            self.free = free
        if self.bug == LEAKS[1] and seq.cells % self.size:
            self.free -= {seq.blocks[-1]} - free

    def _drop(self, block: int) -> None:
        super()._drop(block)
        if self.bug == LEAKS[2]:
            self.free -= {3}


def make_inverted(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> FrugalAdapter:
    """The factory for `--engine`, of an inverted check."""
    return make_leaky(geometry, limits, cleanup, bug=INVERTED)


def make_leaky(
    geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, bug: str = ""
) -> FrugalAdapter:
    """The factory. bug: one of LEAKS or RULES, or none."""
    adapter = FrugalAdapter(geometry, limits, cleanup, capacity=LAZY)
    adapter.profile = evolve(adapter.profile, refuses="may_refuse_more")
    adapter.allocator = Leaky(LAZY, geometry, limits.prefill_tokens)
    adapter.allocator.bug = bug
    return adapter
