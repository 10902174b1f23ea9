"""Histories of pages, clones and plans, worked out by hand from docs/sources.md.

Every literal here was written down before the code ran. Pages are taken lowest first unless a
history names them.
"""

from spec_tools import (
    MACHINE,
    cells,
    climb,
    counts,
    everything_freed,
    geometry,
    machine,
    rows,
    sequence,
    span,
)

from spec import table
from spec.cells import POISON
from spec.machines import scheduling
from spec.machines.actions import (
    Allocate,
    Assign,
    Clone,
    Enqueue,
    Free,
    Pack,
    Reserve,
    Reset,
    Round,
    Write,
)
from spec.state import State
from spec.table import BatchPlan, Sequence
from spec.vocabulary import Params, Reason, ResetMode

SIX = (10, 11, 12, 13, 14, 15)
EIGHT = (*SIX, 16, 17)
LONG = Params(max_new=4)


def begun(state: State, slot: int, prompt: tuple[int, ...]) -> State:
    """A slot whose prompt is written, in the lowest pages."""
    batch = span(slot, 0, len(prompt))
    return climb(
        state,
        Reserve(slot),
        Assign(slot, prompt, LONG, request=slot),
        Allocate(batch),
        Write(batch),
    )


def test_toy_example_of_page_mapping() -> None:
    """Row [2, 7] in pages of 4 puts position 5 at destination 29 and hides positions 6 and 7."""
    # Source: docs/sources.md, "Mapping".
    # 5 // 4 = 1, 5 % 4 = 1, row[1] = 7, and 7 * 4 + 1 = 29. Positions 6 and
    # 7 would be 30 and 31, which the previous owner of page 7 had written.
    state = machine(geometry(pages=10, page_size=4, slots=4, pages_per_seq=4))
    state = climb(state, Reserve(0), Assign(0, tuple(range(90, 98)), LONG, request=0))
    state = MACHINE.step(state, Allocate(span(0, 0, 8)), (2, 7))
    state = climb(state, Write(span(0, 0, 8)), Free(0))
    state = climb(state, Reserve(3), Assign(3, SIX, LONG, request=1))
    state = MACHINE.step(state, Allocate(span(3, 0, 6)), (2, 7))
    state = climb(state, Write(span(3, 0, 6)))

    seen = sequence(state, 3)
    plan = table.plan(state.sequences, ((3, 5),), 4)
    assert (2, 7) == seen.row
    assert 29 == table.destination(seen.row, 5, 4)
    assert (29,) == plan.destinations
    assert (6,) == plan.kv_lens
    assert (8, 9, 10, 11, 28, 29) == table.read_set(seen, 5, 4)
    assert ((10, 11, 12, 13, 14), SIX, POISON, POISON) == cells(state)[7]
    assert (0, 0, 1, 0, 0, 0, 0, 1, 0, 0) == counts(state)


def test_growth_across_page_boundaries() -> None:
    """A sequence takes a page exactly when a position begins one."""
    # Pages of 2. The prompt of 2 fills page 0; position 2 begins page 1, position 3 fills it,
    # position 4 begins page 2. Source: docs/sources.md, "Allocation".
    state = begun(machine(geometry(pages=4, page_size=2, slots=1, pages_per_seq=4)), 0, (5, 6))
    grown = [state]
    for token in (7, 8, 9):
        state = climb(state, Enqueue(0, token), Pack())
        position = sequence(state, 0).allocated
        state = climb(state, Allocate(((0, position),)), Write(((0, position),)))
        grown.append(state)

    assert [((0,),), ((0, 1),), ((0, 1),), ((0, 1, 2),)] == [rows(state) for state in grown]
    assert [2, 3, 4, 5] == [sequence(state, 0).written for state in grown]
    assert (1, 1, 1, 0) == counts(state)
    assert ((5, 6, 7, 8, 9), POISON) == cells(state)[2]


def test_clone_inside_a_page() -> None:
    """Six tokens in pages of 4: the clone shares page 0 and gets a copy of page 1 in page 2."""
    # Source: docs/sources.md, "Clones".
    # Then both append: position 6 is offset 2, so destinations 1*4+2 = 6 and
    # 2*4+2 = 10.
    state = begun(machine(geometry(pages=4, page_size=4, slots=2, pages_per_seq=3)), 0, SIX)
    cloned = climb(state, Clone(0, choice=1))
    batch = ((1, 6), None, (0, 6))
    grown = climb(cloned, Enqueue(0, 20), Enqueue(1, 21), Pack(), Allocate(batch), Write(batch))

    assert ((0, 1), (0, 2)) == rows(cloned)
    assert (2, 1, 1, 0) == counts(cloned)
    assert cells(cloned)[1] == cells(cloned)[2]
    assert (6, 10) == table.plan(grown.sequences, batch, 4).destinations
    assert ((0, 1), (0, 2)) == rows(grown)
    assert (2, 1, 1, 0) == counts(grown)
    assert (SIX[:5], SIX, (*SIX, 20), POISON) == cells(grown)[1]
    assert (SIX[:5], SIX, (*SIX, 21), POISON) == cells(grown)[2]


def test_clone_at_a_page_boundary() -> None:
    """Eight tokens in pages of 4: the clone takes no page, and each side then begins its own."""
    # Source: docs/sources.md, "Clones".
    # Slots ascending: slot 0 takes page 2 (destination 8), slot 1 page 3 (12).
    state = begun(machine(geometry(pages=4, page_size=4, slots=2, pages_per_seq=3)), 0, EIGHT)
    cloned = climb(state, Clone(0, choice=1))
    batch = ((1, 8), (0, 8))
    grown = climb(cloned, Enqueue(0, 20), Enqueue(1, 21), Pack(), Allocate(batch), Write(batch))

    assert ((0, 1), (0, 1)) == rows(cloned)
    assert (2, 2, 0, 0) == counts(cloned)
    assert (8, 12) == table.plan(grown.sequences, batch, 4).destinations
    assert ((0, 1, 2), (0, 1, 3)) == rows(grown)
    assert (2, 2, 1, 1) == counts(grown)
    assert ((*EIGHT, 21), POISON, POISON, POISON) == cells(grown)[3]


def test_clone_takes_the_pending_token_along() -> None:
    """A clone in mid-decode copies the queued token, behind what waits already."""
    # The parent's token 20 waits at position 6; after the clone both wait, and one round writes
    # destinations 6 and 10, as if the token had been enqueued for each.
    state = begun(machine(geometry(pages=4, page_size=4, slots=2, pages_per_seq=3)), 0, SIX)
    state = climb(state, Enqueue(0, 20), Clone(0, choice=1))
    after = climb(state, Round())

    waiting = [(queued.token, queued.slot, queued.position) for queued in state.queue]
    assert [(20, 0, 6), (20, 1, 6)] == waiting
    assert (*SIX, 20) == cells(after)[1][2] == cells(after)[2][2]
    assert [(0, 7), (1, 7)] == [(queued.slot, queued.position) for queued in after.queue]


def test_a_parent_freed_before_its_clone() -> None:
    """The shared page survives its first owner; the parent's partial page dies at once."""
    # Counts (2,1,1,0) lose the row [0,1], then the row [0,2].
    state = begun(machine(geometry(pages=4, page_size=4, slots=2, pages_per_seq=3)), 0, SIX)
    orphan = climb(state, Clone(0, choice=1), Free(0))
    empty = climb(orphan, Free(1))

    assert (None, (0, 2)) == rows(orphan)
    assert (1, 0, 1, 0) == counts(orphan)
    assert tuple(SIX[: end + 1] for end in range(4)) == cells(orphan)[0]
    assert (POISON,) * 4 == cells(orphan)[1]
    assert (0, 0, 0, 0) == counts(empty)
    assert ((POISON,) * 4,) * 4 == cells(empty)


def test_a_parent_freed_after_its_clone() -> None:
    """The parent reads all it had once its clone is gone, and its freed page is taken again."""
    # Counts (2,1,1,0) lose the row [0,2]: page 2 is free. The next clone copies page 1 into it.
    state = begun(machine(geometry(pages=4, page_size=4, slots=2, pages_per_seq=3)), 0, SIX)
    alone = climb(state, Clone(0, choice=1), Free(1))
    again = climb(alone, Clone(0, choice=1))

    assert ((0, 1), None) == rows(alone)
    assert (1, 1, 0, 0) == counts(alone)
    assert tuple(SIX[: end + 1] for end in range(6)) == table.read(cells(alone), sequence(alone, 0))
    assert ((0, 1), (0, 2)) == rows(again)
    assert (0, 0, 0, 0) == counts(everything_freed(again))


def test_sharing_counts_only_full_blocks() -> None:
    """Of 40 tokens in blocks of 16 two blocks are shared and one is copied; of 32 two and none."""
    # Source: docs/sources.md, "Shared blocks".
    # 40 // 16 = 2 full blocks, 8 tokens in the tail.
    sizes = geometry(pages=6, page_size=16, slots=2, pages_per_seq=3)
    forty = climb(begun(machine(sizes), 0, tuple(range(40))), Clone(0, choice=1))
    even = climb(begun(machine(sizes), 0, tuple(range(32))), Clone(0, choice=1))

    assert ((0, 1, 2), (0, 1, 3)) == rows(forty)
    assert (2, 2, 1, 1, 0, 0) == counts(forty)
    assert ((0, 1), (0, 1)) == rows(even)
    assert (2, 2, 0, 0, 0, 0) == counts(even)


def test_plan_of_a_shuffled_padded_batch() -> None:
    """A batch in any order, padded, of slots 1, 4 and 7, is planned by slot, then position."""
    # Source: docs/sources.md, "Token queue" and "Batch plan".
    # Pages of 4. By slot: 1 has positions 0, 1, 2 at
    # indices 3, 7, 6 (page 6: 24, 25, 26); 4 has 4, 5 at indices 5, 2 (page 7: 28, 29); 7 has 8 at
    # index 1 (8 // 4 = 2, page 5: 20). Queries per slot 3, 2, 1 sum to 0, 3, 5, 6.
    table_rows: dict[int, Sequence] = {
        1: Sequence(row=(6,), tokens=(1, 2, 3), allocated=3),
        4: Sequence(row=(2, 7), tokens=SIX, allocated=6, written=4),
        7: Sequence(row=(0, 3, 5), tokens=tuple(range(9)), allocated=9, written=8),
    }
    sequences = tuple(table_rows.get(slot) for slot in range(9))
    batch = (None, (7, 8), (4, 5), (1, 0), None, (4, 4), (1, 2), (1, 1), None)

    assert BatchPlan(
        slot_ids=(1, 4, 7),
        page_indices=((6,), (2, 7), (0, 3, 5)),
        kv_lens=(3, 6, 9),
        cu_q_lens=(0, 3, 5, 6),
        num_seqs=3,
        order=(3, 7, 6, 5, 2, 1),
        destinations=(24, 25, 26, 28, 29, 20),
    ) == table.plan(sequences, batch, 4)


def test_shuffled_padded_batch_is_written_in_place() -> None:
    """The same holds of a batch that allocates: slots 1 and 4, ascending, take pages 0, 1 and 2."""
    # Slot 1 needs 1 page for 3 positions, slot 4 needs 2 for 6, whatever the order in the batch.
    state = machine(geometry(pages=4, page_size=4, slots=6, pages_per_seq=3))
    state = climb(state, Reserve(4), Assign(4, SIX, LONG, request=4))
    state = climb(state, Reserve(1), Assign(1, (1, 2, 3), LONG, request=1))
    batch = (*span(4, 3, 6), None, *span(1, 1, 3), *span(4, 0, 3), None, (1, 0), None)

    state = climb(state, Allocate(batch), Write(batch))

    assert (None, (0,), None, None, (1, 2), None) == rows(state)
    assert ((1,), (1, 2), (1, 2, 3), POISON) == cells(state)[0]
    assert (SIX[:5], SIX, POISON, POISON) == cells(state)[2]


def test_queue_packs_in_order_of_arrival_and_sorts_by_slot() -> None:
    """Two of three queued tokens leave, the first two to arrive, and are then sorted by slot."""
    # Source: docs/sources.md, "Token queue".
    # Arrival: slots 5, 1, 3; a round takes 2, so 1 and 5, and 3 stays. The
    # positions, 2 and 3, are in the other order.
    state = machine(geometry(pages=9, page_size=2, slots=6, pages_per_seq=4), round_tokens=2)
    for slot, prompt in ((5, (1, 2)), (1, (3, 4, 5)), (3, (6,))):
        state = begun(state, slot, prompt)
    state = climb(state, Enqueue(5, 70), Enqueue(1, 71), Enqueue(3, 72))
    leaving = scheduling.packed(state)
    after = climb(state, Round())

    assert [(71, 1, 3), (70, 5, 2)] == [(one.token, one.slot, one.position) for one in leaving]
    assert (3, 1, 5) == tuple(one.slot for one in after.queue)
    assert (1, 4, 3) == tuple(one.position for one in after.queue)
    # Slot 5 had page 0, slot 1 pages 1 and 2, slot 3 page 3; only position 2 of slot 5 begins one.
    assert (None, (1, 2), None, (3,), None, (0, 4)) == rows(after)


def test_refused_round_leaves_the_queue_untouched() -> None:
    """Two slots need a page each and one is free: neither moves, not even the one that could."""
    # Pages of 2, prompts of 2 in pages 0 and 1 of 3; both next positions begin a page.
    state = machine(geometry(pages=3, page_size=2, slots=2, pages_per_seq=3))
    state = begun(begun(state, 0, (1, 2)), 1, (3, 4))
    state = climb(state, Enqueue(0, 7), Enqueue(1, 8))
    found = MACHINE.refusals(state, Round())
    after, rounds, why = scheduling.generate(MACHINE, state)

    assert {Reason.OUT_OF_PAGES} == {refusal.reason for refusal in found}
    assert [(2, "at most 1 pages")] == [(refusal.seen, refusal.allowed) for refusal in found]
    assert (state, 0, found) == (after, rounds, why)
    assert ((0, 1), None) == rows(climb(state, Free(1), Round()))


def test_logical_reset_in_mid_flight() -> None:
    """A reset with tokens queued, cells unwritten and pages shared gives a new machine."""
    # Afterwards slot 0 and page 0 are the first to be taken again, and hold only the new prompt.
    fresh = machine(geometry(pages=4, page_size=4, slots=2, pages_per_seq=3))
    state = climb(begun(fresh, 0, SIX), Clone(0, choice=1), Enqueue(0, 20), Allocate(((1, 6),)))
    again = begun(climb(state, Reset()), 0, (1, 2, 3))

    assert fresh == climb(state, Reset()) == climb(state, Reset(ResetMode.PHYSICAL))
    assert ((0,), None) == rows(again)
    assert (1, 0, 0, 0) == counts(again)
    assert ((1,), (1, 2), (1, 2, 3), POISON) == cells(again)[0]
