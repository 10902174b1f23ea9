"""Toy engines with a capacity policy: the allocator of `toy_engine`, which also shows its cells."""

from typing import Final

from attrs import evolve
from toy_engine import Adapter, Allocator, No, Seq

from spec.table import Batch
from spec.view import View
from spec.vocabulary import Capacity, CleanupMode, Geometry, Limits

LAZY: Final = Capacity(copy="lazy")
AHEAD: Final = Capacity(lookahead=3)
BOTH: Final = Capacity(copy="lazy", lookahead=3)
WHOLE: Final = Capacity(reserve="request")
LAZY_WHOLE: Final = Capacity(copy="lazy", lookahead=1, reserve="request")


class Frugal(Allocator):
    """An allocator with a capacity policy. cells: the tokens up to each cell, by block, offset.

    bug: "" or one of those that the code names.
    """

    def __init__(self, capacity: Capacity, sizes: Geometry, batch: int) -> None:
        super().__init__(sizes, batch)
        self.lazy, self.ahead = capacity.copy == "lazy", capacity.lookahead
        self.whole = capacity.reserve == "request"
        self.cells: list[tuple[int, ...]] = [()] * (sizes.pages * sizes.page_size)
        self._origin: dict[int, int] = {}
        self._copied: int | None = None

    def allocate(self, batch: Batch) -> None:
        """Give blocks to the next positions of some sequences."""
        self._copied = None
        super().allocate(batch)

    def fill(self, batch: Batch) -> None:
        """Store the tokens up to each position."""
        super().fill(batch)
        for slot, position in filter(None, batch):
            seq = self.seqs[slot]
            block = seq.blocks[position // self.size]
            if self.bug == "writes to the old block":
                block = self._origin.get(block, block)
            self.cells[block * self.size + position % self.size] = seq.prompt[: position + 1]

    def clone(self, parent: int, child: int | None, choice: int) -> int:
        """Begin a second sequence; a partial block that it does not share is copied."""
        slot = super().clone(parent, child, choice)
        self.seqs[slot].reserved = self.seqs[parent].reserved
        for source, copy in zip(self.seqs[parent].blocks, self.seqs[slot].blocks, strict=False):
            self._copy(source, copy)
        return slot

    def release(self, slot: int) -> None:
        """End a sequence."""
        seq = self.seqs.get(slot)
        if seq and self.bug == "keeps the blocks ahead":
            seq.blocks = seq.blocks[: -(-seq.cells // self.size)]
        super().release(slot)

    def _admit(self, seq: Seq, prompt_len: int, most: int) -> None:
        """Take the blocks of the whole request, if that is the policy."""
        if not self.whole:
            return
        cells = prompt_len + (0 if self.bug == "reserves for the prompt alone" else most)
        missing = self._width(seq.cells, cells) - len(seq.blocks)
        missing += _MISCOUNTED.get(self.bug, 0) if missing else 0
        short = missing > len(self.free)
        if short and self.bug == "keeps what it took":
            seq.blocks += [self._take() for _ in range(len(self.free))]
        if short and self.bug != "takes what there is":
            raise No("OUT_OF_PAGES")
        seq.blocks += [self._take() for _ in range(min(missing, len(self.free)))]
        seq.reserved = cells

    def _width(self, cells: int, reserved: int) -> int:
        """The blocks of a sequence with so many cells in use and reserved."""
        most = self.longest + self.size * (self.bug == "takes blocks past the longest")
        return -(-min(max(cells + self.ahead * (cells > 0), reserved), most) // self.size)

    def _wanted(self, grouped: dict[int, list[int]]) -> int:
        refs, wanted, copies = list(self.refs), 0, 0
        for slot, positions in grouped.items():
            seq = self.seqs[slot]
            if self._copies(seq, refs):
                refs[seq.blocks[seq.cells // self.size]] -= 1
                copies += 1
            if self.bug == "does not count the blocks ahead":
                wanted += sum(at % self.size == 0 for at in positions)
            else:
                wanted += self._width(positions[-1] + 1, seq.reserved) - len(seq.blocks)
        return self._counted(wanted, copies, len(grouped))

    def _counted(self, wanted: int, copies: int, slots: int) -> int:
        """The blocks that a batch takes, as the check of what is free counts them."""
        last = wanted + copies == len(self.free)
        if self.bug == "refuses the last blocks for several" and last and slots > 1:
            return wanted + copies + 1
        if self.bug == "refuses the last block for a copy" and last and copies:
            return wanted + copies + 1
        if self.bug == "does not count the copies":
            return wanted
        return wanted + copies

    def _split(self, source: Seq) -> tuple[int, int]:
        shared = -(-source.filled // self.size) if self.lazy else source.filled // self.size
        if self.bug == "shares a reserved block":
            shared = max(shared, min(len(source.blocks), shared + 2))
        reserved = 0 if self.bug == "a clone reserves nothing" else source.reserved
        return shared, max(0, self._width(source.filled, reserved) - shared)

    def _copies(self, seq: Seq, refs: list[int]) -> bool:
        """Whether a sequence that appends has to copy a block first."""
        if not self.lazy or seq.cells % self.size == 0 or self.bug == "appends in place":
            return False
        own = self.bug.startswith("copies its own block")
        return own or refs[seq.blocks[seq.cells // self.size]] > 1

    def _grow(self, seq: Seq, positions: list[int]) -> None:
        if self._copies(seq, self.refs) and self.free:
            index = seq.cells // self.size
            source, seq.blocks[index] = seq.blocks[index], self._block_of_a_copy()
            self._origin[seq.blocks[index]] = source
            if self.bug != "does not copy the cells":
                self._copy(source, seq.blocks[index])
            if self.bug not in {"keeps the count", "copies its own block and keeps it"}:
                self._drop(source)
        seq.cells += len(positions)
        missing = self._width(seq.cells, seq.reserved) - len(seq.blocks)
        seq.blocks += [self._take() for _ in range(min(missing, len(self.free)))]

    def _block_of_a_copy(self) -> int:
        if self.bug == "one block for all copies" and self._copied is not None:
            self.refs[self._copied] += 1
            return self._copied
        self._copied = self._take()
        return self._copied

    def _copy(self, source: int, block: int) -> None:
        size = self.size
        cells = self.cells[source * size : (source + 1) * size]
        self.cells[block * size : (block + 1) * size] = cells


_MISCOUNTED: Final = {"reserves a block too few": -1, "reserves a block too many": 1}


class FrugalAdapter(Adapter):
    """The adapter of a Frugal; it shows tokens and cells too.

    declared: the policy of its profile.
    """

    allocator: Frugal

    def __init__(
        self,
        geometry: Geometry,
        limits: Limits,
        cleanup: CleanupMode,
        *,
        capacity: Capacity,
        declared: Capacity | None = None,
        bug: str = "",
    ) -> None:
        super().__init__(geometry, limits, cleanup)
        declared = capacity if declared is None else declared
        self.profile = evolve(
            self.profile,
            copy=declared.copy,
            lookahead=declared.lookahead,
            reserve=declared.reserve,
        )
        self.allocator = Frugal(capacity, geometry, limits.prefill_tokens)
        self.allocator.bug = bug

    def observe(self) -> View:
        """The view, with tokens and cells."""
        seqs, slots = self.allocator.seqs, range(self.profile.geometry.slots)
        tokens = tuple(seqs[slot].prompt if slot in seqs else () for slot in slots)
        return evolve(super().observe(), tokens=tokens, cells=tuple(self.allocator.cells))


def make_lazy(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> FrugalAdapter:
    """A factory for `--engine`: copies are lazy."""
    return FrugalAdapter(geometry, limits, cleanup, capacity=LAZY)


def make_ahead(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> FrugalAdapter:
    """A factory for `--engine`: three cells are taken ahead."""
    return FrugalAdapter(geometry, limits, cleanup, capacity=AHEAD)


def make_whole(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> FrugalAdapter:
    """A factory for `--engine`: the blocks of a request are reserved with its prompt."""
    return FrugalAdapter(geometry, limits, cleanup, capacity=WHOLE)
