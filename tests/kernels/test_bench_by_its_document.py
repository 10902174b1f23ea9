"""The arrays, bounds, pools and files of the bench beside a second reading of their documents."""

from collections.abc import Mapping
from itertools import product
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from attrs import evolve
from cell_tools import GOOD
from deep import deep_after

from conformance.kernels import answers, appending, kernel_under_test, metamorphic, standalone
from conformance.kernels.batches import FAR, SIZES, Batch, Sizes, build
from conformance.kernels.block_sizes import variants
from conformance.kernels.compile import baseline, table
from conformance.kernels.compile.loops import Pass
from conformance.kernels.trials import Job
from conformance.numerics import oracle, probabilistic_bound

SMALL: Final = Batch(lens=((2, 20), (1, 8)), seed=4)
FLOATS: Final = ("float32", "bfloat16")
BY_NAME: Final = {sizes.name: sizes for sizes in SIZES}


def narrow(sizes: Sizes) -> Sizes:
    """The sizes with few tokens, which the oracle answers sooner."""
    return evolve(sizes, tokens=4, rows=3, pages_per_seq=max(3, -(-24 // sizes.page_size)))


MIXED: Final = [
    *map(narrow, SIZES),
    *(
        evolve(narrow(SIZES[0]), name=" ".join(kinds), kinds=kinds)
        for kinds in product(FLOATS, FLOATS)
    ),
]


@pytest.mark.parametrize("sizes", MIXED, ids=lambda sizes: sizes.name)
def test_the_bounds_are_those_of_the_formats(sizes: Sizes) -> None:
    """Weights have the 16 bits in which V is read unless V is float32, and the result is as q."""
    arrays, options = build(sizes, SMALL), sizes.options
    q_kind, kv_kind = sizes.kinds
    by = options.get("v_scale", 1.0)
    asked: dict[str, Any] = {
        "scale": options.get("scale", 1.0) * options.get("k_scale", 1.0),
        "soft_cap": options.get("soft_cap"),
        "sliding_window": options.get("sliding_window"),
        "sinks": arrays.sinks,
        "scales": arrays.scales,
    }
    held: Any = tuple(arrays)
    formats: dict[str, Any] = {
        "weights": None if kv_kind == "float32" else ml_dtypes.bfloat16,
        "result": np.dtype(getattr(ml_dtypes, q_kind, q_kind)),
    }

    right = answers.right(sizes, arrays)

    answer = oracle.ragged_paged_attention(*held, **asked)
    # Each adds in an order of its own, and numbers near 1 may cancel.
    np.testing.assert_allclose(by * answer, right.answer, rtol=1e-12, atol=4 * 2.0**-52)
    bounds: list[tuple[Any, Any]] = [
        (oracle.error_bound, right.bound),
        (probabilistic_bound.probable_bound, right.likely(range(len(answer)))),
    ]
    for make, seen in bounds:
        error = make(*held, **asked, **formats)
        rounded = 0.0 if by == 1.0 else 2.0**-23 * (np.abs(answer) + error)
        np.testing.assert_allclose(abs(by) * (error + rounded), seen, rtol=1e-12)


@pytest.mark.parametrize("far", [True, False])
@pytest.mark.parametrize("count", deep_after(1, [2, 1, 5]))
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: sizes.name)
def test_rows_of_no_sequence_describe_work_that_shows(
    *, sizes: Sizes, count: int, far: bool
) -> None:
    """A row past the last sequence has cells and queries, all of them in pages that are dead."""
    wide = evolve(sizes, rows=6, tokens=8)
    batch = Batch(lens=((1, 3),) * count, far=far)

    arrays = build(wide, batch)

    dead = np.isnan(arrays.kv_pages) | (arrays.kv_pages == 127.0)
    rows = range(count, wide.rows)
    assert {wide.capacity} == {int(arrays.kv_lens[row]) for row in rows}
    for page in np.ravel([arrays.page_indices[row] for row in rows]):
        assert page == FAR if far else dead[page].all()
    starts = arrays.cu_q_lens[count + 1 :]
    assert {0, wide.tokens} >= set(starts.tolist())
    assert 0 not in np.diff(starts)
    for row, (_, cells) in enumerate(batch.lens):
        for page in arrays.page_indices[row, -(-cells // wide.page_size) :]:
            assert page == FAR if far else dead[page].all()


@pytest.mark.parametrize("twin", metamorphic.TWINS)
@pytest.mark.parametrize("cells", [15, 16, 17, 31, 32, 33, 64])
def test_a_twin_names_the_pages_of_its_cells_alone(twin: str, cells: int) -> None:
    """Exactly the pages with cells of a row are named, and they hold the cells of the original."""
    batch = Batch(lens=((1, cells), (2, 5)))
    arrays, there = build(SIZES[2], batch), metamorphic.other(SIZES[2], twin)

    laid = metamorphic.laid_out(SIZES[2], batch, arrays, twin)

    lengths = [cells, 5][:: -1 if twin == "order" else 1]
    for row, length in enumerate(lengths):
        used = -(-length // there.page_size)
        assert [FAR] * (there.pages_per_seq - used) == laid.page_indices[row, used:].tolist()
        assert FAR not in laid.page_indices[row, :used]
    named = {int(page) for page in laid.page_indices[:2].ravel() if page != FAR}
    others = [page for page in range(there.pages) if page not in named]
    assert np.isnan(laid.kv_pages[others]).all()
    assert cells + 5 == int((~np.isnan(laid.kv_pages)).any(axis=(2, 3)).sum())


KINDS: Final = sorted({sizes.kinds[1] for sizes in SIZES})


@pytest.mark.parametrize("kind", KINDS)
def test_any_one_number_of_the_pool_is_compared(kind: str) -> None:
    """A single other number, of any head of K or V, in a new cell or in another, is noticed."""
    sizes = evolve(SIZES[0], heads=(4, 2, 8), page_size=4, pages_per_seq=4, kinds=("float32", kind))
    batch = Batch(lens=((3, 9), (1, 5)), seed=2)
    task = appending.task(sizes, batch, build(sizes, batch))
    word = appending.WORDS[task.pool.dtype.itemsize]
    new = sorted(task.places)
    old = [(page, at) for page, at in np.ndindex(task.pool.shape[:2]) if (page, at) not in new]

    assert [] == appending.wrong(task, task.pool.copy())
    for place, name in (
        (new[-1], "not_appended"),
        (old[0], "overwritten"),
        (old[-1], "overwritten"),
    ):
        for head, element in np.ndindex(task.pool.shape[2:]):
            pool = task.pool.copy()
            pool.view(word)[(*place, head, element)] ^= 1
            assert [name] == appending.wrong(task, pool)
    both = task.pool.copy()
    for place in (new[0], old[0]):
        both.view(word)[(*place, 0, 0)] ^= 1
    assert ["not_appended", "overwritten"] == appending.wrong(task, both)


EVERY_VARIANT: Final = [
    (kernel, sizes.name, variant, mode)
    for kernel in ("tpu", "reference", "jax")
    for sizes in SIZES[:2]
    for variant in range(len(variants(kernel, sizes)))
    for mode in ("on_wait", "eager")
]


@pytest.mark.parametrize(("kernel", "name", "variant", "mode"), deep_after(12, EVERY_VARIANT))
def test_a_file_has_the_arguments_of_its_job(
    kernel: str, name: str, variant: int, mode: str
) -> None:
    """The file calls the kernel with the block sizes, options, dtypes and copies of the job."""
    job, sizes = Job(kernel=kernel, sizes=name, variant=variant, mode=mode), BY_NAME[name]

    text = standalone.source(job, SMALL, "wrong")

    own = variants(kernel, sizes)[variant][0]
    call = next(line for line in text.splitlines() if "out = kernel(" in line)
    for argument, value in own.items():
        assert f", {argument}={value!r}" in call
    options = {
        "sm_scale" if kernel == "jax" and one == "scale" else one: value
        for one, value in sizes.options.items()
    }
    assert all(f", {option}={value!r}" in call for option, value in options.items())
    assert (
        len({*own, *options, *kernel_under_test.find(kernel).told})
        == call.count("=") - _inner(own) - 1
    )
    assert f'dma_execution_mode="{mode}"' in text
    assert f"detect_races={mode == 'eager'}," in text
    assert f'held["q"]).astype("{sizes.kinds[0]}")' in text
    held = "rows.of" if kernel == "tpu" else ""
    pool = f'    {held}(jnp.asarray(held["kv_pages"]).astype("{sizes.kinds[1]}")),'
    assert pool in text.splitlines()
    assert ("from impl.cache import rows" in text) == (kernel == "tpu")
    compile(text, "file", "exec")


def _inner(own: Mapping[str, object]) -> int:
    """The equals signs inside of the values."""
    return sum(repr(value).count("=") for value in own.values())


SIZES_OF_MEMORY: Final = (None, 0, 1, 1000)
PASSES: Final = (None, Pass(1, 1, 1), Pass(2, 1, 1), Pass(2, 2, 1), Pass(2, 1, 2), Pass(3, 1, 2))


@pytest.mark.parametrize("part", ["decode", "prefill"])
@pytest.mark.parametrize(
    "verdicts", list(product(("ok", "fails", "refused", "undecided"), repeat=2))
)
def test_any_two_records_are_compared_by_each_figure(part: str, verdicts: tuple[str, str]) -> None:
    """More of any figure of two compiled grid points is a regression, and a lost one is said."""
    for (had, has), (took, takes) in product(
        product(SIZES_OF_MEMORY, repeat=2), product(PASSES, repeat=2)
    ):
        known: dict[str, Any] = {"decode": None, "prefill": None, "reason": "why"}
        before = evolve(GOOD, **known | {"verdict": verdicts[0], "vmem": had, part: took})
        after = evolve(GOOD, **known | {"verdict": verdicts[1], "vmem": has, part: takes})

        worse = baseline.regressions(table.targets([before]), table.targets([after]))
        unsaid = baseline.not_compared(table.targets([before]), table.targets([after]))

        lost = verdicts[0] == "ok" and verdicts[1] in {"fails", "refused"}
        both = verdicts == ("ok", "ok")
        more = both and had is not None and has is not None and has > had
        slow = both and took is not None and takes is not None and _cost(takes) > _cost(took)
        assert lost + more + slow == len(worse)
        gone = (had is not None and has is None) + (took is not None and takes is None)
        assert (verdicts == ("ok", "undecided")) + both * gone == len(unsaid)


def test_a_grid_point_that_appends_is_another_one() -> None:
    """Neither its figures nor its absence are compared with those of a kernel that only reads."""
    reads = table.targets([GOOD])
    appends = table.targets([evolve(GOOD, cell=evolve(GOOD.cell, append=True), vmem=10**9)])

    assert [] == baseline.regressions(reads, appends)
    (gone,) = baseline.not_compared(appends, reads)
    assert "appending: not in this run" in gone


def _cost(one: Pass) -> float:
    """Cycles for one KV token and query."""
    return one.cycles / (one.cells * one.tokens)
