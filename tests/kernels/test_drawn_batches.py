"""Drawn batches: each is as full as was wanted, and nothing that is promised is left out."""

import itertools
import json
from collections import Counter
from functools import cache
from typing import Any, Final

import numpy as np
import pytest
from attrs import evolve, fields
from deep import deep_after
from hypothesis import Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from conformance.kernels import batches
from conformance.kernels.batches import (
    EVERY,
    HIDDEN,
    RESERVED,
    SIZES,
    Batch,
    Lost,
    Needle,
    Sizes,
    build,
    drawn,
    drawn_at_edges,
    first,
    rows_of,
    within_cells,
    within_rows,
)
from conformance.kernels.block_sizes import variants
from impl.attention.tpu.shape import Blocks

STEP: Final = 24
DRAWS: Final = 200
SEEDS: Final = range(6)
"""Draws of one seed follow each other's choices, so that some lengths are rare under it."""


SHAPES: Final = {sizes.name: sizes for sizes in (SIZES[1], SIZES[7])}
MOSTLY: Final = deep_after(1, SHAPES)


@cache
def every(name: str) -> list[Batch]:
    """Some hundred batches of these sizes."""
    return [batch for number in SEEDS for batch in of_seed(SHAPES[name], number)]


def of_seed(sizes: Sizes, number: int) -> list[Batch]:
    """What one seed draws."""
    return taken(drawn(sizes, units=(STEP,)), number)


def taken(strategy: SearchStrategy[Batch], number: int) -> list[Batch]:
    """What one seed draws from a strategy."""
    found: list[Batch] = []

    @seed(number)
    @settings(max_examples=DRAWS, database=None, deadline=None, phases=[Phase.generate])
    @given(strategy)
    def take(batch: Batch) -> None:
        found.append(batch)

    take()
    return found


OTHER: Final = Batch(
    lens=((1, 17), (3, 20)),
    seed=5,
    needles=((1, 2, Needle.OWN),),
    shared=(1,),
    repeated=(0,),
    ordered=True,
    far=True,
    behind=True,
    steep=True,
    extreme=True,
    plain=True,
    lost=(1, Lost.PAST),
)


@pytest.mark.parametrize("name", [one.name for one in fields(Batch)])
def test_every_field_of_a_batch_is_read_back(name: str) -> None:
    """A batch of a finding is the same batch when it is run again, whichever field it has."""
    batch = evolve(Batch(lens=((1, 1),)), **{name: getattr(OTHER, name)})

    assert Batch(lens=((1, 1),)) != batch
    assert batch == Batch.from_json(json.loads(json.dumps(batch.to_json())))


@pytest.mark.parametrize("wanted", list(itertools.product((0, 5, 99), (1, 4, 40), repeat=2)))
def test_a_sequence_gets_the_queries_that_it_wants(wanted: tuple[int, ...]) -> None:
    """What is left limits it, of which each sequence after it has one; its cells do not."""
    sizes = SIZES[1]
    some = [wanted[:2], wanted[2:], (3, 7), (99, 40)]

    lens = batches.fitting(sizes, [(queries, cells) for queries, cells in some])

    assert [cells for _, cells in some] == [cells for _, cells in lens]
    for index, (queries, _) in enumerate(some):
        before, after = sum(given for given, _ in lens[:index]), len(some) - index - 1
        assert min(queries, sizes.tokens - before - after) == lens[index][0]


@pytest.mark.deep
@pytest.mark.parametrize("name", MOSTLY)
def test_all_that_is_promised_is_drawn(name: str) -> None:
    """Each flag has both values, each needle its place, and each edge of pages and steps is met."""
    sizes, found = SHAPES[name], every(name)
    edges = {0, 1, sizes.capacity - 1, sizes.capacity}
    for step in (sizes.page_size, STEP):
        edges |= {step - 1, step, step + 1, 2 * step, 2 * step + 1, 4 * step}

    lens = Counter(cells for batch in found for _, cells in batch.lens)
    asked = Counter(queries for batch in found for queries, _ in batch.lens)

    assert edges <= set(lens)
    assert {0, 1, 2, min(sizes.tokens, sizes.page_size)} <= asked.keys()
    assert {True, False} == {sum(q for q, _ in one.lens) == sizes.tokens for one in found}
    assert set(range(1, sizes.rows + 1)) == {len(batch.lens) for batch in found}
    assert set(itertools.product((True, False), repeat=4)) == {
        (one.far, one.behind, one.steep, one.extreme) for one in found
    }
    assert {False} == {one.plain for one in found}
    assert set(Needle) == {where for one in found for _, _, where in one.needles}
    assert {0, 1, 2, 3} == {len(one.needles) for one in found}
    assert set(range(1, sizes.rows)) == {row for one in found for row in one.shared}
    assert set(range(sizes.rows)) == {row for one in found for row in one.repeated}
    assert {0, 1, 2} <= {one.lost[0] for one in found if one.lost} <= set(range(sizes.rows))
    assert {*Lost, None} == {one.lost and one.lost[1] for one in found}


@pytest.mark.deep
def test_large_batches_work_past_their_first_sequences() -> None:
    """Every batch has more sequences than 127, and a third has queries past these."""
    (sizes,) = (one for one in SIZES if one.fewest > 1)

    found = of_seed(sizes, SEEDS[0])
    working = [batch for batch in found if any(queries for queries, _ in batch.lens[128:])]
    assert all(128 < len(batch.lens) <= sizes.rows for batch in found)
    assert len(working) > len(found) / 3


@pytest.mark.parametrize("name", MOSTLY)
def test_what_is_drawn_exists(name: str) -> None:
    """Queries fit the batch, and their cells where that is asked for; what else it names exists."""
    sizes = SHAPES[name]

    for batch in every(name):
        rows: Any = range(len(batch.lens))
        assert batch == within_rows(sizes, batch)
        assert all(queries >= 0 <= cells <= sizes.capacity for queries, cells in batch.lens)
        assert all(queries <= cells for queries, cells in within_cells(batch).lens)
        assert all(row in rows and 0 <= at < batch.lens[row][0] for row, at, _ in batch.needles)
        assert {*batch.shared, *batch.repeated} <= {*rows}
        assert all(0 < row for row in batch.shared)


WINDOWED: Final = SIZES[8]
BLOCKS: Final = (16, 128)


@cache
def at_edges() -> list[Batch]:
    """Some hundred batches at the edges of these blocks."""
    strategy = drawn_at_edges(WINDOWED, units=BLOCKS)
    return [batch for number in SEEDS for batch in taken(strategy, number)]


@pytest.mark.parametrize("first_one", [True, False])
@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize("beside", [-1, 0, 1])
def test_queries_of_blocks_see_up_to_an_edge(*, first_one: bool, newest: bool, beside: int) -> None:
    """The first and the last query of a block see up to, or from, each edge and beside it."""
    window = WINDOWED.window
    assert window is not None
    met = 0
    for batch in at_edges():
        for queries, cells in batch.lens:
            position = cells - queries + (0 if first_one else BLOCKS[0] - 1)
            edge = position + 1 if newest else position - window + 1
            met += queries > BLOCKS[0] and edge > 0 and (edge - beside) % BLOCKS[1] == 0

    assert met >= 3


def test_every_query_has_a_needle_at_an_edge() -> None:
    """With one that it must not see, its value has the other sign than with one that it sees."""
    lens = ((5, 1500), (1, 1400))
    for where in (Needle.NEXT, Needle.OWN, Needle.BEHIND, Needle.OLDEST):
        batch = Batch(lens=lens, needles=((0, EVERY, where), (1, EVERY, where)))
        arrays, window = build(WINDOWED, batch), WINDOWED.window
        assert window is not None
        for row, (queries, cells) in enumerate(lens):
            for index in range(queries):
                position = cells - queries + index
                at = {
                    Needle.NEXT: position + 1,
                    Needle.OWN: position,
                    Needle.BEHIND: position - window,
                    Needle.OLDEST: position - window + 1,
                }[where]
                page, offset = divmod(at, WINDOWED.page_size)
                held = arrays.kv_pages[arrays.page_indices[row, page], offset]
                query = arrays.q[arrays.cu_q_lens[row] + index, 0]
                assert set(np.sign(held[0] * query)) == {1.0}
                assert set(np.sign(held[1] * query)) == {-1.0 if where in HIDDEN else 1.0}


def test_queries_go_past_the_end_of_q() -> None:
    """Of some batches the last sequence has more queries than rows are left; others are full."""
    found = at_edges()
    over = [sum(queries for queries, _ in one.lens) - WINDOWED.tokens for one in found]

    assert {1, 20} <= set(over)
    for batch in found:
        last = len(batch.lens) - 1
        rows = [rows_of(WINDOWED, batch, row) for row in range(last + 1)]
        assert rows[:-1] == [queries for queries, _ in batch.lens[:-1]]
        assert sum(rows) <= WINDOWED.tokens
        assert rows == [queries for queries, _ in within_rows(WINDOWED, batch).lens]


def test_ids_go_on_past_the_end_of_a_row() -> None:
    """Where page ids rise they do, unless entries past the end name no page at all."""
    lens = ((1, 150), (3, 300))
    for far, number in itertools.product((True, False), (0, 1)):
        batch = Batch(lens=lens, ordered=True, far=far, seed=number)
        table = batches.integers(WINDOWED, batch).page_indices
        rises = bool((np.diff(table[0, :RESERVED]) == 1).all())
        assert rises == batch.goes_on == (not (far and number))


def test_new_tokens_begin_before_a_later_fetch() -> None:
    """In the first batch of some shape: a kernel may count them from the start of that fetch."""
    longer = []
    for sizes in SIZES:
        blocks = variants("tpu", sizes)[0][0].get("blocks")
        if not isinstance(blocks, Blocks):
            continue
        fetch = blocks.kv_pages * sizes.page_size
        longer += [queries == cells > fetch for queries, cells in first(sizes).lens]

    assert any(longer)
