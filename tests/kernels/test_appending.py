"""Kernels that write new cells: destinations, runs, the returned pool, and planted bugs."""

import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve
from deep import deep_after
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.kernels import answers, appending, interpret, jobs, processes
from conformance.kernels.batches import SIZES, Batch, Lost, build
from conformance.kernels.block_sizes import variants
from conformance.kernels.kernel_under_test import find, find_appending
from conformance.kernels.processes import Tried
from conformance.kernels.trials import Job, Trial, Wrong
from impl.attention import places
from impl.attention.appending import append_and_attend
from impl.attention.interface import Pool
from impl.attention.tpu import append_and_attend as append_and_attend_tpu
from impl.attention.tpu import fresh, writing
from impl.attention.tpu.blocks import UNPLANNED
from impl.attention.tpu.shape import Blocks, Shape
from impl.cache import paged, rows
from spec.vocabulary import INVALID
from spec.vocabulary.errors import InvalidInput

WINDOWED: Final = SIZES[2]
"""A shape to which the destinations of new cells are given."""
UNGUIDED: Final = SIZES[6]
"""One to which they are not."""
BATCH: Final = Batch(lens=((3, 40), (0, 7), (1, 16), (16, 16)), seed=5)


def test_a_token_belongs_where_its_position_says() -> None:
    """Page size 4, row [2, 7], position 5 is cell 29; a token without a cell has no place."""
    pool = Pool(pages=8, page_size=4, kv_heads=1)
    lens, table = jnp.array([6, 9, 1, 4]), jnp.array([[2, 7], [0, 1], [9, 9], [3, 3]])
    starts = jnp.array([0, 3, 5, 6, 2])  # of three sequences; the rest is padding
    place = jax.jit(partial(places.of, pool, tokens=8))

    beyond = INVALID  # position 8 of two pages of 4, page 9 of 8, and two tokens of no sequence
    expected = [11, 28, 29, 7, beyond, beyond, beyond, beyond]
    assert expected == place(lens, table, starts, jnp.array([3])).tolist()
    early = place(jnp.array([1, 9, 1, 4]), table, starts, jnp.array([1])).tolist()
    assert [INVALID, INVALID, 8, *[INVALID] * 5] == early


RUNS: Final = jax.jit(partial(writing.runs, page_size=4))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([-1, -1, *range(9)]), min_size=12, max_size=12))
def test_runs_are_neighbours_of_one_page(starts: list[int]) -> None:
    """The run at each token is the number of consecutive cells of one page from there on."""
    pieces, begun = [], 0
    for before, start in pairwise([-2, *starts]):
        neighbours = before >= 0 and start == before + 1 and start % 4
        begun += not (neighbours or (start == -1 == before))
        pieces.append(begun)
    sizes = [len(list(group)) for _, group in groupby(pieces)]
    expected = [count for size in sizes for count in range(size, 0, -1)]

    assert expected == RUNS(jnp.array(starts)).tolist()


def test_tokens_of_an_operand_lie_as_their_positions_do() -> None:
    """The rows of tokens in the operand match their positions modulo the unit, without overlaps."""
    lens, starts = jnp.array([40, 7, 16, 16]), jnp.array([0, 3, 3, 4, 20])
    shape = Shape(
        tokens=24, seqs=4, q_heads=8, kv_heads=2, group=4, head_dim=128, page_size=16, pages=9,
        pages_per_seq=3, q_dtype="bfloat16", kv_dtype="bfloat16", scale=1.0, v_scale=1.0,
        soft_cap=None, window=None, vmem=0, cores=1, blocks=UNPLANNED, byte_products=True,
        negative_zeros=True, fresh=True,
    )  # fmt: skip
    cells = jnp.broadcast_to(jnp.arange(24)[:, None, None] + 1, (24, 2, 256))

    found, given = fresh.operand(shape, cells, lens, starts, jnp.array([4]))

    token = np.arange(20)
    seq = np.array([0] * 3 + [2] + [3] * 16)
    at = fresh.place(shape, token, seq, np.array(lens)[seq], np.array(starts)[seq + 1])
    assert 4 == shape.unit
    assert at.tolist() == given[:20].tolist()
    assert (token + 1).tolist() == found[::2, 0][at].tolist()
    position = np.array(lens)[seq] - np.array(starts)[seq + 1] + token
    assert not ((at - position) % shape.unit).any()


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes import the toy kernels."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "tools"))


def call(batch: Batch, kernel: Any = append_and_attend, **changed: Any) -> tuple[Any, Any, Any]:
    """The answer, the pool and the task of a batch with float32 sizes. changed: other operands."""
    task = appending.task(FLOAT, batch, build(FLOAT, batch))
    q, pool, *others = map(jnp.asarray, task.arrays)
    own: Any = {**task.new, **FLOAT.options, **changed}
    if kernel is append_and_attend_tpu:
        pool, own = rows.of(pool), {"page_size": FLOAT.page_size, **own}
    found = jax.jit(lambda *arrays: kernel(*arrays, **own))(q, pool, *others)
    return np.asarray(found[0]), np.asarray(found[1]), task


FLOAT: Final = evolve(WINDOWED, kinds=("float32", "float32"))


def test_the_reference_writes_and_attends() -> None:
    """Each new cell is in its place, and all other cells are unchanged bit for bit."""
    out, pool, task = call(BATCH)

    right = answers.right(FLOAT, build(FLOAT, BATCH))
    assert right.ratio(out, rows=20) < 1.0
    assert [] == appending.wrong(task, pool)
    assert 20 == len(task.places)
    nowhere = call(BATCH, destinations=jnp.full(FLOAT.tokens, INVALID))[1]
    assert ["not_appended"] == appending.wrong(task, nowhere)


def test_no_two_dead_cells_are_alike() -> None:
    """A moved NaN and a missing new cell are both found, since no two dead cells are equal."""
    task = appending.task(FLOAT, BATCH, build(FLOAT, BATCH))
    dead = np.argwhere(np.isnan(task.pool).all(axis=(2, 3)))
    moved, lost = task.pool.copy(), task.pool.copy()
    moved[tuple(dead[0])] = task.pool[tuple(dead[1])]
    lost[next(iter(task.places))] = 0.0

    assert ["overwritten"] == appending.wrong(task, moved)
    assert ["not_appended"] == appending.wrong(task, lost)
    assert np.isnan(task.arrays.kv_pages[next(iter(task.places))]).all()


def test_pages_with_new_cells_are_not_held_together() -> None:
    """Pages with new cells are not shared, and pages of older cells stay shared."""
    kept = Batch(lens=((1, 33), (2, 35)), shared=(1,))

    assert kept == appending.apart(FLOAT, kept)
    assert () == appending.apart(FLOAT, evolve(kept, lens=((1, 33), (4, 35)))).shared
    assert () == appending.apart(FLOAT, Batch(lens=((20, 33),), repeated=(0,))).repeated


ROWS: Final = ((3, 40), (0, 7), (2, 16), (16, 16))
LIMITS: Final[Mapping[Lost, tuple[str, str]]] = {
    Lost.BEFORE: ("position >= 0", "position >= -99"),
    Lost.PAST: ("position < page_indices.shape[1] * page_size", "position >= -99"),
    Lost.OUTSIDE: ("owned &= (page >= 0) & (page < pages)", "pass"),
}
"""For each reason why a token has no cell: a line of `places.of`, and one without the limit."""


@pytest.mark.parametrize("seed", deep_after(1, [0, 1]))
@pytest.mark.parametrize("why", LIMITS)
@pytest.mark.parametrize("planted", deep_after(2, [None, *LIMITS]))
def test_a_token_that_is_written_although_it_has_no_cell_is_noticed(
    planted: Lost | None, why: Lost, seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without one of its limits the reference overwrites a cell, and with all of them none."""
    if planted is not None:
        names = dict(vars(places))
        exec(inspect.getsource(places.of).replace(*LIMITS[planted]), names)
        monkeypatch.setattr(places, "of", names["of"])
    job = Job(kernel="reference", sizes=UNGUIDED.name, append=True, results=str(tmp_path / "lines"))
    kernel = find_appending("reference")
    assert kernel is not None
    trial = Trial(job, kernel, {})

    with pytest.raises(Wrong) if why is planted else nullcontext():
        trial.check(Batch(lens=ROWS, lost=(2, why), seed=seed))

    said = trial.found["what"] if trial.found else []
    assert (["overwritten"] if why is planted else []) == said


@pytest.mark.parametrize("planted", [False, True])
def test_a_destination_of_no_cell_that_is_written_is_noticed(
    *, planted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A number below 0 would be that of a cell at the end. To most shapes none is given."""
    if planted:
        names = dict(vars(paged))
        right = "jnp.where(destinations < 0, INVALID, destinations)"
        exec(inspect.getsource(paged.write).replace(right, "destinations"), names)
        monkeypatch.setattr(paged, "write", names["write"])
    kernel = find_appending("reference")
    assert kernel is not None
    said = []
    for sizes in (UNGUIDED, WINDOWED):
        results = str(tmp_path / sizes.name)
        job = Job(kernel="reference", sizes=sizes.name, append=True, results=results)
        assert job.destinations == (sizes is WINDOWED)
        trial = Trial(job, kernel, {})
        with nullcontext() if sizes is UNGUIDED or not planted else pytest.raises(Wrong):
            trial.check(Batch(lens=ROWS))
        said.append(trial.found["what"] if trial.found else [])

    assert [[], ["overwritten"] if planted else []] == said


def test_nothing_is_promised_of_such_tokens_by_other_kernels() -> None:
    """Another function than ours is not given any, nor is one that writes no cells."""
    batch = Batch(lens=ROWS, lost=(2, Lost.PAST))
    for name, append in (("reference", False), ("tpu", False), ("toys:right", True)):
        job = Job(kernel=name, sizes=WINDOWED.name, append=append)
        assert evolve(batch, lost=None) == Trial(job, find("reference"), {}).allowed(batch)
        assert not job.destinations


@pytest.mark.parametrize("kernel", [append_and_attend, append_and_attend_tpu])
@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("keys", {"keys": np.zeros((40, 1, 64), np.float32)}),
        ("values", {"values": np.zeros((40, 1, 128), jnp.bfloat16)}),
        ("destinations", {"destinations": np.zeros(3, np.int32)}),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    kernel: Any, what: str, change: dict[str, Any]
) -> None:
    """An operand of another shape, or of another dtype than the pool, is refused by name."""
    with pytest.raises(InvalidInput) as caught:
        call(BATCH, kernel, **change)
    assert what == caught.value.name


def test_who_takes_no_new_cells_is_not_checked_on_it() -> None:
    """The plan names the parameters that a kernel lacks for new cells; both of ours have them."""
    assert all(find_appending(name) is not None for name in ("tpu", "reference"))
    foreign = jobs.plan(find("math:dist"), cases=4, seed=0)
    assert "keys, values" == foreign.left_out["new cells, written by the kernel"]
    assert not any(job.append for job in foreign.jobs)
    planned = jobs.plan(find("tpu"), cases=4, seed=0).jobs
    written = [sizes for sizes in SIZES if sizes.append]
    expected = sum((1 + sizes.races) * len(variants("tpu", sizes)) for sizes in written)
    assert expected == sum(job.append for job in planned)


@pytest.mark.deep
@pytest.mark.usefixtures("toys")
def test_the_kernel_reads_its_operands_and_writes_the_pool() -> None:
    """Our kernel writes its operands, and one that ignores them is found."""
    planned = [
        Job(kernel=name, sizes=SIZES[0].name, cases=2, append=True, shrink=False)
        for name in ("tpu", "kernel_toys:stale")
    ]
    ours, stale = every = [Tried(job) for job in planned]
    processes.make_all(every, update=lambda *_: None, stall=600.0)

    assert ("passed", []) == (ours.ended, ours.what), ours.text
    assert ("finding", ["not_appended", "wrong"]) == (stale.ended, stale.what), stale.text


def test_some_tokens_are_lost_only_where_destinations_can_say_so() -> None:
    """Then about half of them have no cell; the table could leave out none of them alone."""
    batch = Batch(lens=ROWS, lost=(3, Lost.SOME))
    for sizes in (WINDOWED, UNGUIDED):
        job = Job(kernel="tpu", sizes=sizes.name, append=True)
        allowed = Trial(job, find("tpu"), {}).allowed(batch)
        assert job.destinations == (allowed.lost is not None)

    _, given = appending.steered(WINDOWED, batch, destinations=True)
    assert given is not None
    cells = WINDOWED.pages * WINDOWED.page_size
    named = [0 <= one < cells for one in given[: sum(queries for queries, _ in ROWS)]]
    assert all(named[:5])
    assert 3 < sum(named[5:]) < 13


@pytest.mark.deep
@pytest.mark.parametrize("mode", interpret.Mode)
@pytest.mark.parametrize(
    "destinations",
    [[112, 113, INVALID], [112, INVALID, INVALID], [112, INVALID, 114]],
)
def test_each_destination_gets_its_cell(destinations: list[int], mode: interpret.Mode) -> None:
    """Whichever tokens of a block have none, the others are stored and nothing else changes."""
    pool = jnp.zeros((16, 16, 4, 128), jnp.bfloat16)
    cells = jnp.ones((3, 2, 128), jnp.bfloat16)
    _, found = append_and_attend_tpu(
        jnp.ones((3, 8, 128), jnp.bfloat16),
        rows.of(pool),
        jnp.array([35]),
        jnp.array([[3, 5, 7]]),
        jnp.array([0, 3]),
        jnp.array([1]),
        keys=cells,
        values=cells,
        destinations=jnp.array(destinations, jnp.int32),
        page_size=16,
        blocks=Blocks(kv_pages=8, decode_cells=64, decode_steps=4, q_rows=16, prefill_cells=128),
        interpret=interpret.parameters(mode),
        chip="v5e",
    )

    stored = np.asarray(rows.interleaved(found, kv_heads=2, head_dim=128)).reshape(-1, 4, 128)
    assert sorted(set(destinations) - {INVALID}) == np.flatnonzero(stored.any(axis=(1, 2))).tolist()
