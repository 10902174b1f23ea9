"""The adapter of Levanter's page table, token queue and page cache.

It drives the installed package: `SequenceTable`, `PageTable`, `TokenQueue`, `KvPageCache`.
Levanter's model, server and trainer are not imported. One adapter serves two releases;
docs/findings/index.md has their versions and the findings.

Levanter itself must refuse when no slot is free, when the named slot is used, and when pages run
out. Every other check is guarded: the layer above makes it. `Caller` keeps what that layer has and
Levanter does not: which allocated cells are written, and how much of a prompt is known. A batch is
sent as that layer sends it: the tokens of a slot together and in order, slots in any order, padding
last.

The length of an unused slot is normalised: one of Levanter's two ways to free leaves 0 in it, the
other 2,000,000.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

from conformance.engines.caller import Caller
from conformance.engines.levanter_calls import Held, library
from conformance.protocol import ANSWERS, Action, EngineFailed, Profile, Result
from spec import model
from spec.machines import actions as act
from spec.table import Batch, BatchPlan, Entry
from spec.view import View
from spec.vocabulary import INVALID, CleanupMode, Geometry, Limits, Reason

ToRow = Callable[[Sequence[int]], tuple[int, ...]]
"""From Levanter's row to one in which no page is INVALID."""

OWN: Final = frozenset(
    {
        (act.Reserve, Reason.NO_FREE_SLOT),
        (act.Reserve, Reason.SLOT_USED),
        (act.Allocate, Reason.OUT_OF_PAGES),
        (act.Clone, Reason.NO_FREE_SLOT),
        (act.Clone, Reason.SLOT_USED),
        (act.Clone, Reason.OUT_OF_PAGES),
    }
)
"""Levanter's own refusals. A clone first reserves its slot, as `clone_sequence` does."""

UNCHECKED: Final = frozenset({(act.Reserve, Reason.SLOT_RANGE), (act.Allocate, Reason.TOO_LONG)})
"""Refusals that Levanter lacks, though its documentation states them or no layer above has them."""

OFFERED: Final[frozenset[type]] = frozenset(
    {
        act.Reserve,
        act.Assign,
        act.Allocate,
        act.Write,
        act.Clone,
        act.Free,
        act.Enqueue,
        act.Pack,
        act.Purge,
    }
)


def make(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> "Table":
    """The adapter with a caller that avoids the known findings."""
    return Table(geometry, limits, cleanup, careful=True)


def make_bare(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> "Table":
    """The adapter with a caller that does not: it records the findings under docs/findings."""
    return Table(geometry, limits, cleanup, careful=False)


class Table:
    """See `conformance.protocol`.

    careful: refuse UNCHECKED, and keep a copy of the state that a call may lose.
    """

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, careful: bool
    ) -> None:
        self._lib = library()
        self._caller = Caller(geometry, limits, cleanup)
        self._careful = careful
        self._held: Held = self._lib.initial(geometry, limits)
        self._profile = Profile(
            name=f"levanter {self._lib.version}",
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=OFFERED,
            policy="any",
            guarded=ANSWERS - (OWN if careful else OWN | UNCHECKED),
        )

    @property
    def profile(self) -> Profile:
        """No policy: it takes the lowest free page, but slots in the order of the batch."""
        return self._profile

    def apply(self, action: Action) -> Result:
        """Call Levanter; a refusal changes nothing."""
        result = self._drive(action)
        self._caller.note(action)
        return result

    def _drive(self, action: Action) -> Result:
        match action:
            case act.Reserve(slot):
                return self._reserve(slot)
            case act.Allocate(batch):
                return self._allocate(batch)
            case act.Write(batch):
                self._write(batch)
            case act.Clone(parent, child):
                return self._clone(parent, child)
            case act.Free(int(slot)):
                self._free(slot)
            case act.Enqueue(slot, token):
                self._enqueue(token, slot, len(self._text(slot)))
            case act.Pack():
                return self._pack()
            case act.Purge(slot):
                self._purge(slot)
            case _:  # Assign: the prompt is the caller's
                return None
        return None

    def _reserve(self, slot: Any) -> int:
        table, *rest = self._held
        table, got = self._lib.reserve(table, slot)
        self._held = (table, *rest)
        return got

    def _allocate(self, batch: Batch) -> BatchPlan:
        entries = grouped(batch)
        table, pages, info = self._lib.allocate(self._held, entries, self._width)
        self._held = (table, pages, *self._held[2:])
        return plan(info, batch, entries, self._lib.row)

    def _write(self, batch: Batch) -> None:
        """Write as a forward pass does, to the destinations of an allocation of no new token."""
        entries = grouped(batch)
        _, _, info = self._lib.allocate(self._held, entries, self._width)
        words = [model.contents(self._text(slot)[: position + 1]) for slot, position in entries]
        *rest, kv = self._held
        self._held = (*rest, self._lib.write(kv, info, words, self._width))

    def _clone(self, parent: int, child: int | None) -> int:
        """Clone as `GenState.clone_sequence` does: reserve, share, copy a partial last page."""
        table, pages, queue, kv = self._held
        reserved, got = self._lib.reserve(table, child)
        kept = self._lib.copied(pages) if self._careful else pages
        table, pages = self._lib.clone(reserved, kept, parent, got)
        last, partial = divmod(table.seq_lens.array[parent].item(), table.page_size)
        if partial:
            row = table.page_indices.array[:, last].tolist()
            kv = self._lib.copy_page(kv, row[parent], row[got])
        self._held = table, pages, queue, kv
        for queued in self._caller.state.queue:
            if queued.slot == parent:
                self._enqueue(queued.token, got, queued.position)
        return got

    def _free(self, slot: int) -> None:
        """Free even slots in one of Levanter's two ways, odd slots in the other."""
        table, pages, *rest = self._held
        if slot % 2:
            mask = [slot == one for one in range(self._profile.geometry.slots)]
            after = self._lib.free_by_mask(table, pages, mask)
        else:
            after = self._lib.free(table, pages, slot)
        self._held = (*after, *rest)
        self._purge(slot)

    def _enqueue(self, token: int, slot: int, position: int) -> None:
        table, pages, queue, kv = self._held
        self._held = table, pages, self._lib.enqueue(queue, token, slot, position), kv

    def _pack(self) -> Result:
        table, pages, queue, kv = self._held
        queue, packed = self._lib.pack(queue, self._profile.limits.round_tokens)
        self._held = table, pages, queue, kv
        return tuple(zip(*packed, strict=True))

    def _purge(self, slot: int) -> None:
        table, pages, queue, kv = self._held
        self._held = table, pages, self._lib.purge(queue, slot), kv

    def _text(self, slot: int) -> tuple[int, ...]:
        sequence = self._caller.state.sequences[slot]
        return () if sequence is None else sequence.tokens

    @property
    def _width(self) -> int:
        return self._profile.limits.prefill_tokens

    def observe(self) -> View:
        """Levanter's own arrays; `written` and `tokens` are the caller's."""
        try:
            return self._view()
        except RuntimeError as error:  # arrays that were donated to a call that then failed
            raise EngineFailed(f"Levanter's arrays cannot be read: {error}") from error

    def _view(self) -> View:
        table, pages, queue, kv = self._held
        used = table.used_mask.array.tolist()
        lengths = zip(table.seq_lens.array.tolist(), used, strict=True)
        queued = (queue.queued_tokens, queue.queued_slot_ids, queue.queued_pos_ids)
        entries = zip(*(part.array.tolist() for part in queued), strict=True)
        sequences = self._caller.state.sequences
        return View(
            geometry=self._profile.geometry,
            counts=tuple(pages.page_ref_counts.array.tolist()),
            used=tuple(used),
            rows=tuple(self._lib.row(row) for row in table.page_indices.array.tolist()),
            allocated=tuple(length if held else 0 for length, held in lengths),
            written=tuple(one.written if one else 0 for one in sequences),
            tokens=tuple(one.tokens if one else () for one in sequences),
            queue=tuple(entries)[: int(queue.num_queued_tokens)],
            cells=self._lib.cells(kv),
            expected=model.contents,
        )


def grouped(batch: Batch) -> list[Entry]:
    """The tokens of each slot together and in order, slots in order of appearance, no padding."""
    entries = [entry for entry in batch if entry is not None]
    slots = list(dict.fromkeys(slot for slot, _ in entries))
    return sorted(entries, key=lambda entry: (slots.index(entry[0]), entry[1]))


def plan(info: Any, batch: Batch, entries: Sequence[Entry], row: ToRow) -> BatchPlan:
    """A `PageBatchInfo` with its sequences sorted by slot; `order` is the order sent."""
    ends, count = info.cu_q_lens.array.tolist(), int(info.num_seqs)
    rows, lengths = info.page_indices.array.tolist(), info.seq_lens.array.tolist()
    slots, sent = info.slot_ids.array.tolist(), info.new_token_dests.array.tolist()
    by_slot = sorted(range(count), key=lambda index: slots[index])
    spans = [range(ends[index], ends[index + 1]) for index in by_slot]
    tokens = [token for span in spans for token in span]
    return BatchPlan(
        slot_ids=tuple(slots[index] for index in by_slot),
        page_indices=tuple(
            tuple(page for page in row(rows[index]) if page != INVALID) for index in by_slot
        ),
        kv_lens=tuple(lengths[index] for index in by_slot),
        cu_q_lens=(0, *accumulate(len(span) for span in spans)),
        num_seqs=count,
        order=tuple(batch.index(entries[token]) for token in tokens),
        destinations=tuple(sent[token] for token in tokens),
    )
