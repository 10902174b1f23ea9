"""The mapping from (slot, position) to (page, offset), and the plan of a batch.

There is one mapping and no mirror of it: `row[position // page_size]` is the page and `position %
page_size` the offset. By hand: page size 4, row (2, 7), position 5 is destination 29. Source:
docs/sources.md, "Mapping" and "Batch plan".
"""

from collections.abc import Iterable
from collections.abc import Sequence as Listing

from attrs import frozen

from spec.attention import visible
from spec.cells import Cells
from spec.vocabulary import INVALID, Tokens

Entry = tuple[int, int]
"""One token of a batch: (slot, position)."""

Batch = tuple[Entry | None, ...]
"""Tokens of any slots in any order; None is padding and may stand anywhere."""


@frozen
class Sequence:
    """The sequence in a used slot; its three lengths are `len(tokens)`, `allocated` and `written`.

    row: pages, in order of position. allocated: cells that tokens may be written in. written: cells
    that hold K and V. reserved: cells that the row covers whether or not they are allocated.
    """

    row: tuple[int, ...] = ()
    tokens: Tokens = ()
    allocated: int = 0
    written: int = 0
    reserved: int = 0

    @property
    def pages(self) -> tuple[int, ...]:
        """The pages that the row names."""
        if INVALID not in self.row:
            return self.row
        return tuple(page for page in self.row if page != INVALID)

    @property
    def settled(self) -> bool:
        """Whether every allocated cell is written, so that the sequence may be cloned."""
        return self.allocated == self.written


Sequences = tuple[Sequence | None, ...]
"""`sequences[slot]`; None is an unused slot."""


@frozen(kw_only=True)
class BatchPlan:
    """A planned batch for attention and the cache update, in plan order: by slot, then position.

    slot_ids, page_indices, kv_lens: one per sequence in the batch. cu_q_lens: prefix sums of
    the numbers of queries; num_seqs + 1 entries. order: index in the caller's batch of each
    planned token. destinations: `page * page_size + offset` of each planned token.
    """

    slot_ids: tuple[int, ...]
    page_indices: tuple[tuple[int, ...], ...]
    kv_lens: tuple[int, ...]
    cu_q_lens: tuple[int, ...]
    num_seqs: int
    order: tuple[int, ...]
    destinations: tuple[int, ...]


def destination(row: Listing[int], position: int, page_size: int) -> int:
    """The linear index of the cell that holds `position`: what vLLM calls its `slot_mapping`."""
    return row[position // page_size] * page_size + position % page_size


def unrolled(ring: Listing[int], first: int, end: int) -> tuple[int, ...]:
    """The row of `end` pages of a paged ring, which has entry i at `i % len(ring)`.

    first: so many pages are given up, or released; INVALID stands for them. A truncation does not
    bring them back, so it is the most that the row has ever given up.
    """
    return (INVALID,) * first + tuple(ring[entry % len(ring)] for entry in range(first, end))


def read_set(
    sequence: Sequence, position: int, page_size: int, window: int | None = None
) -> tuple[int, ...]:
    """The cells that the query at `position` reads, in order: its own visible history."""
    seen = visible(position, position + 1, window)
    return tuple(destination(sequence.row, past, page_size) for past in seen)


def readable(sequence: Sequence, position: int, page_size: int, window: int | None) -> bool:
    """Whether the row still names every page that the query at `position` reads."""
    first = visible(position, position + 1, window).start
    return INVALID not in sequence.row[first // page_size : position // page_size + 1]


def read(cells: Cells, sequence: Sequence, first: int = 0) -> tuple[Tokens, ...]:
    """The tags of a sequence's written cells from `first` on, read through its row."""
    if not sequence.row:
        return ()
    index, offset = divmod(first, len(cells[0]))
    tags: list[Tokens] = []
    for page in sequence.row[index:]:
        tags.extend(cells[page])
    return tuple(tags[offset : sequence.written - first + offset])


def by_slot(batch: Batch) -> dict[int, list[int]]:
    """The positions that a batch names for each slot, slots ascending, positions ascending."""
    grouped: dict[int, list[int]] = {}
    for entry in batch:
        if entry is not None:
            slot, position = entry
            if slot not in grouped:
                grouped[slot] = []
            grouped[slot].append(position)
    for positions in grouped.values():
        positions.sort()
    return dict(sorted(grouped.items()))


def plan(sequences: Sequences, batch: Batch, page_size: int) -> BatchPlan:
    """Plan a batch whose cells are allocated. Source: docs/sources.md, "Batch plan"."""
    order = sorted(
        (index for index, entry in enumerate(batch) if entry is not None),
        key=lambda index: batch[index] or (0, 0),
    )
    grouped = by_slot(batch)
    involved = [sequences[slot] or Sequence() for slot in grouped]
    return BatchPlan(
        slot_ids=tuple(grouped),
        page_indices=tuple(sequence.row for sequence in involved),
        kv_lens=tuple(sequence.allocated for sequence in involved),
        cu_q_lens=_prefix_sums(len(positions) for positions in grouped.values()),
        num_seqs=len(grouped),
        order=tuple(order),
        destinations=tuple(
            destination(sequence.row, position, page_size)
            for sequence, positions in zip(involved, grouped.values(), strict=True)
            for position in positions
        ),
    )


def _prefix_sums(lengths: Iterable[int]) -> tuple[int, ...]:
    sums = [0]
    for length in lengths:
        sums.append(sums[-1] + length)
    return tuple(sums)
