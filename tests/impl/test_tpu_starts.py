"""How the TPU kernel cuts a fetch into steps of decoding, and marks runs of pages in its table."""

from typing import Final

import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conformance.kernels.compile.known_kernels import shaped
from impl.attention import tpu
from impl.attention.tpu import decode
from impl.attention.tpu.shape import LANES, Blocks, Shape

BLOCKS: Final = Blocks(kv_pages=32, decode_cells=64, decode_steps=4, q_rows=16, prefill_cells=128)
MOST: Final = 1024
"""Cells of a fetch in these tests."""


def shape(*, window: int | None = None, heads: int = 8, page_size: int = 32) -> Shape:
    """A shape with 100 pages in a row of the table."""
    return tpu.shape_of(
        shaped((40, 8, 128), jnp.bfloat16),
        shaped((300, page_size * heads, 256), jnp.bfloat16),
        shaped((3, 100), jnp.int32),
        page_size=page_size,
        sliding_window=window,
        blocks=evolve(BLOCKS, kv_pages=MOST // page_size),
        chip="v6e",
    )


def covered(shape: Shape, low: int, high: int) -> list[tuple[int, int, bool]]:
    """The steps over these cells, in order: from, to, and whether it is part of a group."""
    cut = decode.cut(shape, decode.Span(*map(jnp.int32, (0, low, high))))
    first, begin, end, last = (int(one) for one in cut)
    size, group = shape.blocks.decode_cells, shape.blocks.decode_steps
    rest = last * size
    grouped = range(begin * group, end * group)
    found = [(at * size, (at + 1) * size, at in grouped) for at in range(first, last)]
    fitting = [cells for cells in shape.rest_cells if cells >= high - rest]
    return found + [(rest, rest + min(fitting, default=0), False)] * (high > rest)


@settings(deadline=None)  # the first example compiles
@given(low=st.integers(0, MOST - 1), count=st.integers(1, MOST), heads=st.sampled_from((2, 8)))
@example(low=0, count=MOST, heads=8)
@example(low=0, count=1, heads=8)
@example(low=200, count=3, heads=2)
def test_each_visible_cell_is_in_one_step(low: int, count: int, heads: int) -> None:
    """Steps follow each other without a gap, and those of groups have visible cells alone."""
    high = min(low + count, MOST)
    found = covered(shape(window=300, heads=heads), low, high)

    assert found[0][0] <= low < found[0][1]
    assert found[-1][0] < high <= found[-1][1]
    assert [end for _, end, _ in found[:-1]] == [begin for begin, _, _ in found[1:]]
    assert all(low <= begin and end <= high for begin, end, grouped in found if grouped)


@pytest.mark.parametrize(("high", "last"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64)])
def test_the_last_step_is_as_short_as_its_cells_allow(high: int, last: int) -> None:
    """Of eight KV heads a register has 16 cells, and a step is a half, a quarter or whole."""
    assert [(0, last, False)] == covered(shape(), 0, high)


@settings(deadline=None)
@given(st.lists(st.integers(0, 299), min_size=100, max_size=100), st.sets(st.integers(0, 80)))
def test_a_run_is_marked_if_each_id_is_the_next(ids: list[int], runs: set[int]) -> None:
    """The first id of an aligned block of ids is negative then; other ids stay as they are."""
    sizes = shape()
    for at in runs:
        ids[at : at + 20] = range(ids[at], ids[at] + 20)
    table = jnp.asarray([ids] * 3, jnp.int32)
    found = np.asarray(tpu._ids(sizes, table)).reshape(3, -1)
    plain = np.minimum(np.array(ids), sizes.pages - 1)
    blocks = np.pad(plain, (0, found.shape[1] - 100)).reshape(-1, sizes.together)
    expected = np.zeros_like(blocks, bool)
    expected[:, 0] = [list(block) == [*range(block[0], block[0] + 16)] for block in blocks]

    assert (16, LANES) == (sizes.together, found.shape[1])
    assert np.array_equal(expected.reshape(-1), found[0] < 0)
    assert np.array_equal(blocks.reshape(-1), np.maximum(found[0], ~found[0]))


def test_pages_that_fill_no_tile_are_no_runs() -> None:
    """A page of one cell of two KV heads is less than a tile, and copied by itself."""
    assert not shape(heads=2, page_size=1).runs
