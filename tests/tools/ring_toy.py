"""A paged ring behind the engine protocol: entry `position // page_size % ring` has the page.

It releases nothing when asked, and offers no Release: a page is overwritten where it stands, unless
another sequence shares it.
"""

from functools import partial
from typing import Final

from attrs import evolve
from toy_engine import Adapter, Allocator, No, Seq

from spec.attention import visible
from spec.table import Batch, unrolled
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits

BUGS: Final = {
    "overwrites a shared page": {"SHARE"},
    "overwrites what is seen": {"ATOMIC"},
    "keeps the count of the old page": {"RC", "CONS"},
    "always takes a fresh page": {"ATOMIC"},
    "looks the clone's last page up without wrapping": {"SHARE"},
    "writes to the last entry from its third lap on": {"CONTENT"},
}
"""What may be wrong, and the clauses that may say so first."""


def ring_of(sizes: Geometry) -> int:
    """The shortest ring: a window, and a page for the next cell. 0 without a window."""
    return 0 if sizes.window is None else 1 + sizes.pages_for(sizes.window - 1)


class Ring(Allocator):
    """Blocks in rings. cells: the tokens up to each cell, by block and offset."""

    def __init__(self, sizes: Geometry, batch: int) -> None:
        super().__init__(sizes, batch)
        self.sizes = sizes
        self.ring = min(ring_of(sizes) or sizes.pages_per_seq, sizes.pages_per_seq)
        self.cells: list[tuple[int, ...]] = [()] * (sizes.pages * sizes.page_size)

    def fill(self, batch: Batch) -> None:
        """Store the tokens up to each position."""
        super().fill(batch)
        for slot, position in filter(None, batch):
            seq = self.seqs[slot]
            index = position // self.size
            late = self.bug == "writes to the last entry from its third lap on"
            entry = self.ring - 1 if late and index >= 2 * self.ring else index % self.ring
            block = seq.blocks[entry]
            self.cells[block * self.size + position % self.size] = seq.prompt[: position + 1]

    def clone(self, parent: int, child: int | None, choice: int) -> int:
        """Begin a second sequence with the same ring, but for a copy of a partial last block."""
        slot = super().clone(parent, child, choice)
        source, copy = self.seqs[parent], self.seqs[slot]
        fresh, last = copy.blocks, source.cells // self.size
        copy.blocks = list(source.blocks)
        entry = last % self.ring
        if self.bug == "looks the clone's last page up without wrapping":
            entry = min(last, len(source.blocks) - 1)
        for at, block in enumerate(source.blocks):
            if fresh and at == entry:
                copy.blocks[at] = fresh[0]
                self._copy(block, fresh[0])
            else:
                self.refs[block] += 1
        return slot

    def _copy(self, source: int, block: int) -> None:
        size = self.size
        cells = self.cells[source * size : (source + 1) * size]
        self.cells[block * size : (block + 1) * size] = cells

    def _split(self, source: Seq) -> tuple[int, int]:
        """A clone takes a block for the copy of a partial one; it shares its blocks afterwards."""
        return 0, int(source.filled % self.size > 0)

    def _wanted(self, grouped: dict[int, list[int]]) -> int:
        """The blocks that a batch takes beside those that it overwrites."""
        refs, wanted = list(self.refs), 0
        for slot, positions in grouped.items():
            seq = self.seqs[slot]
            for index in self._begun(positions):
                if index < self.ring:
                    wanted += 1
                    continue
                seen = visible(seq.filled, seq.filled + 1, self.sizes.window).start // self.size
                if index - self.ring >= seen + (self.bug == "overwrites what is seen"):
                    raise No("TOO_LONG")
                if index % self.ring >= len(seq.blocks):
                    continue
                old = seq.blocks[index % self.ring]
                wanted += refs[old] > 1 or self.bug == "always takes a fresh page"
                refs[old] -= refs[old] > 1
        return wanted

    def _begun(self, positions: list[int]) -> list[int]:
        """The indices of the blocks that begin at one of these positions."""
        return [at // self.size for at in positions if at % self.size == 0]

    def _grow(self, seq: Seq, positions: list[int]) -> None:
        for index in self._begun(positions):
            if index < self.ring:
                seq.blocks.append(self._take())
                continue
            entry = index % self.ring
            old = seq.blocks[entry]
            if self.refs[old] > 1 and self.bug != "overwrites a shared page":
                seq.blocks[entry] = self._take()
                if self.bug != "keeps the count of the old page":
                    self._drop(old)
            elif self.bug == "always takes a fresh page":
                seq.blocks[entry] = self._take()
                self._drop(old)
        seq.cells += len(positions)


class RingAdapter(Adapter):
    """The adapter of a Ring; it shows tokens and cells too."""

    allocator: Ring

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, bug: str = ""
    ) -> None:
        super().__init__(geometry, limits, cleanup)
        self.profile = evolve(self.profile, ring=ring_of(geometry))
        self.allocator = Ring(geometry, limits.prefill_tokens)
        self.allocator.bug = bug

    def observe(self) -> View:
        """The view, with rows in order of position."""
        engine, sizes = self.allocator, self.profile.geometry
        seqs = [engine.seqs.get(slot, Seq()) for slot in range(sizes.slots)]
        ends = [sizes.pages_for(seq.cells) for seq in seqs]
        first = [max(0, end - engine.ring) for end in ends]
        rows = [
            unrolled(*row) for row in zip((seq.blocks for seq in seqs), first, ends, strict=True)
        ]
        return View(
            geometry=sizes,
            counts=engine.refs,
            used=[slot in engine.seqs for slot in range(sizes.slots)],
            rows=rows,
            allocated=[seq.cells for seq in seqs],
            written=[seq.filled for seq in seqs],
            first_page=first,
            tokens=[seq.prompt for seq in seqs],
            cells=tuple(engine.cells),
        )


def make_ring(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> RingAdapter:
    """A factory for `--engine`."""
    return RingAdapter(geometry, limits, cleanup)


def with_bug(bug: str) -> "partial[RingAdapter]":
    """A factory of engines with a bug."""
    return partial(RingAdapter, bug=bug)
