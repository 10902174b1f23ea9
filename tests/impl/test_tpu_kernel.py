"""The TPU kernel, interpreted: copies happen when awaited, and unwritten memory is NaN."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve, frozen
from deep import deep_after
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance.kernels.compile.known_kernels import shaped
from conformance.numerics import oracle
from conformance.runtime.unoptimised import compiler_options
from impl.attention.reference import ragged_paged_attention as reference
from impl.attention.tpu import ragged_paged_attention, shape_of
from impl.attention.tpu.blocks import CHIPS, UNPLANNED, check, need, plan
from impl.attention.tpu.cells import without_negative_zeros
from impl.attention.tpu.shape import Blocks, Shape
from impl.cache import rows, scales
from spec.vocabulary.errors import InvalidInput

SMALL: Final = Blocks(kv_pages=8, decode_cells=64, decode_steps=4, q_rows=16, prefill_cells=128)
LONG: Final = evolve(SMALL, kv_pages=64)
"""Fetches of 1,024 cells, with whole groups of steps visible."""
LENS: Final = ((1, 37), (5, 30), (0, 9))
MIXED: Final = ((1, 37), (5, 130), (17, 17), (1, 1), (0, 9), (1, 300), (3, 65))
"""Query tokens and cells of each sequence: decode and prefill, and one without queries."""


SINKS: Final = np.array([0.5, -np.inf, -30.0, 3.0, 30.0, -3e38, 3e38, 1e-40], np.float32)
"""Of eight query heads; with the two that are far out nothing is to overflow."""


@frozen(kw_only=True)
class Case:
    """Shapes and options of one batch."""

    q_heads: int = 8
    kv_heads: int = 2
    head_dim: int = 128
    page_size: int = 16
    kv: str = "bfloat16"
    q: str = "bfloat16"
    lens: tuple[tuple[int, int], ...] = MIXED
    blocks: Blocks | None = SMALL
    chip: str | None = None
    options: Mapping[str, Any] = MappingProxyType({"scale": 0.09})
    scaled: bool = False

    def scales(self, pool: Any) -> Any:
        """Scales of every cell and KV head, NaN where K and V are dead; None without."""
        if not self.scaled:
            return None
        rng, held = np.random.default_rng(9), np.asarray(pool, np.float32)[..., 0]
        drawn = rng.choice([-1.5, -0.2, 0.0, 0.3, 1.0], held.shape)
        dead = np.isnan(held) | (held == 127.0)
        return jnp.asarray(np.where(dead, np.nan, drawn), jnp.float32)

    def arrays(self) -> tuple[Any, ...]:
        """q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs; NaN in every dead cell."""
        rng = np.random.default_rng(len(self.lens) + self.head_dim)
        counts = [-(-count // self.page_size) for _, count in self.lens]
        pages, width = sum(counts) + 2, max(counts) + 1
        order = iter(rng.permutation(pages))
        table = np.full((len(self.lens), width), 1 << 20, np.int32)
        pool = rng.normal(size=(pages, self.page_size, 2 * self.kv_heads, self.head_dim))
        dead = np.ones((pages, self.page_size), bool)
        for row, (_, count) in enumerate(self.lens):
            for entry in range(counts[row]):
                table[row, entry] = next(order)
                dead[table[row, entry], : count - entry * self.page_size] = False
        pool[dead] = 100 if self.kv == "int8" else np.nan
        starts = np.cumsum([0, *(queries for queries, _ in self.lens)])
        q = rng.normal(size=(starts[-1] + 3, self.q_heads, self.head_dim))
        return (
            jnp.asarray(q, self.q),
            jnp.asarray(pool * 20 if self.kv == "int8" else pool).astype(self.kv),
            jnp.array([count for _, count in self.lens]),
            jnp.asarray(table),
            jnp.asarray(starts),
            jnp.array(len(self.lens)),
        )


CASES: Final = {
    "float32, window and cap": Case(
        kv="float32",
        q="float32",
        head_dim=64,
        options={"sliding_window": 20, "soft_cap": 5.0, "scale": 0.1},
    ),
    "8 bits, one head": Case(
        q_heads=4,
        kv_heads=1,
        page_size=32,
        kv="float8_e5m2",
        blocks=evolve(SMALL, decode_cells=128),
        options={"k_scale": 0.5, "v_scale": 2.0, "scale": 0.1},
    ),
    "e4m3, two heads in a word": Case(kv="float8_e4m3fn"),
    "e4m3, widened after": Case(kv="float8_e4m3fn", chip="v4"),
    "e4m3, three heads, widened before": Case(
        q_heads=6,
        kv_heads=3,
        kv="float8_e4m3fn",
        page_size=32,
        blocks=evolve(SMALL, decode_cells=128),
    ),
    "e4m3, eight heads": Case(q_heads=16, kv_heads=8, kv="float8_e4m3fn", page_size=32),
    "head_dim 192, int8": Case(kv="int8", head_dim=192, options={"scale": 0.002}),
    "long, two cores": Case(lens=((1, 1200), (20, 700)), blocks=LONG, chip="v5p"),
    "planned, int8": Case(kv="int8", page_size=32, blocks=None, options={"scale": 0.002}),
    "sinks, pages of one, a negative scale": Case(
        page_size=1,
        blocks=evolve(SMALL, kv_pages=256),
        options={"scale": -0.1, "sinks": SINKS},
    ),
    "sinks, float16, pages of 12": Case(
        q="float16",
        page_size=12,
        blocks=evolve(SMALL, kv_pages=32),
        options={"scale": 0.1, "sinks": SINKS, "v_scale": 2.0},
    ),
    "sinks beside nothing": Case(
        lens=((5, 3), (2, 1), (1, 0), (1, 9), (4, 4)),
        kv="float32",
        q="float32",
        options={"scale": 0.1, "sinks": SINKS},
    ),
    "scales of cells, int8": Case(
        q_heads=16,
        kv_heads=8,
        kv="int8",
        lens=((1, 37), (5, 130), (17, 17), (0, 9), (1, 300)),
        options={"scale": 0.05, "v_scale": 0.1},
        scaled=True,
    ),
    "scales of cells, three heads, a window, a cap": Case(
        q_heads=6,
        kv_heads=3,
        kv="float8_e4m3fn",
        page_size=128,
        lens=((1, 37), (17, 140), (1, 300)),
        blocks=evolve(SMALL, kv_pages=2, decode_cells=128),
        options={"scale": 0.1, "sliding_window": 150, "soft_cap": 5.0},
        scaled=True,
    ),
    "scales of cells, one head, float32": Case(
        q_heads=2,
        kv_heads=1,
        kv="float32",
        q="float32",
        page_size=128,
        lens=((1, 37), (17, 140), (1, 300)),
        blocks=evolve(SMALL, kv_pages=2, decode_cells=128),
        scaled=True,
    ),
    "wide heads, odd many, widened": Case(
        q_heads=6,
        kv_heads=3,
        head_dim=256,
        page_size=32,
        kv="float8_e4m3fn",
        q="float32",
        blocks=evolve(SMALL, decode_cells=128),
        options={"scale": -0.1, "sliding_window": 70},
    ),
}


@pytest.fixture
def interpreted() -> Iterator[pltpu.InterpretParams]:
    """Interpretation with copies at their wait, NaN in unwritten memory, and checked reads."""
    yield pltpu.InterpretParams(
        dma_execution_mode="on_wait", uninitialized_memory="nan", out_of_bounds_reads="raise"
    )
    pltpu.reset_tpu_interpret_mode_state()  # type: ignore[no-untyped-call]


def as_rows(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arrays with the pool in the shape that the kernel takes."""
    q, kv_pages, *others = arrays
    return q, rows.of(kv_pages), *others


def difference(case: Case, interpret: pltpu.InterpretParams, *, jitted: bool) -> float:
    """The largest error over the bound in the rows of sequences; a NaN counts as infinite."""
    arrays, options = case.arrays(), dict(case.options)
    how: Any = options | {"blocks": case.blocks, "chip": case.chip, "interpret": interpret}
    how["page_size"] = case.page_size
    factors = case.scales(arrays[1])
    kernel: Any = partial(ragged_paged_attention, **how)
    if case.scaled:
        kernel, options["scales"] = partial(kernel, scales=scales.of(factors)), factors
    if jitted:
        kernel = jax.jit(kernel, compiler_options=compiler_options())
    found = np.asarray(kernel(*as_rows(arrays)), np.float64)
    options["scale"] = options.get("scale", 1.0) * options.pop("k_scale", 1.0)
    by = options.pop("v_scale", 1.0)
    known: Any = [np.asarray(array, np.float64) for array in arrays[:2]]
    known += [np.asarray(array) for array in arrays[2:]]
    right = by * oracle.ragged_paged_attention(*known, **options)
    exact = "float32" in {case.q, case.kv}
    given: Any = options | {"result": case.q, "weights": None if exact else "bfloat16"}
    sizes = (case.blocks.decode_cells, case.blocks.prefill_cells) if case.blocks else (1, 1)
    bound = by * np.maximum(
        *(oracle.error_bound(*known, **given, block_cells=size) for size in sizes)
    )
    assert not found[case.arrays()[4][-1] :].any()  # rows of no sequence
    wrong = np.where(found == right, 0.0, np.inf)
    error = np.where(bound > 0, np.abs(found - right) / np.where(bound > 0, bound, 1), wrong)
    return float(np.max(np.where(np.isnan(error), np.inf, error)))


OFTEN: Final = {"planned, int8", "sinks beside nothing", "scales of cells, int8"}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=() if name in OFTEN else pytest.mark.deep)
        for name, case in CASES.items()
    ],
)
def test_the_kernel_is_attention(case: Case, interpreted: pltpu.InterpretParams) -> None:
    """The answer is within the bound, whatever dead cells hold: called as it is, and jitted."""
    first = case is next(iter(CASES.values()))  # jitted is quicker, and one must not be

    assert difference(case, interpreted, jitted=not first) <= 1.0


def test_an_approximate_reciprocal_has_the_bits_of_a_result(
    interpreted: pltpu.InterpretParams,
) -> None:
    """The assumption of docs/attention.md, in the interpreter: one rounding to bfloat16."""

    def kernel(total: Any, out: Any) -> None:
        rough: Any = pl.reciprocal
        out[...] = rough(total[...], approx=True)

    totals = np.random.default_rng(0).uniform(1.0, 4096.0, (512, 128)).astype(np.float32)
    found = pl.pallas_call(kernel, out_shape=jax.typeof(jnp.asarray(totals)), interpret=interpreted)
    error = np.abs(totals.astype(np.float64) * np.asarray(found(totals), np.float64) - 1.0).max()

    unit = 2.0**-8
    assert unit / 4 < error <= unit / (1 - unit)


@pytest.mark.parametrize("part", ["K", "V"])
def test_a_nan_in_a_live_cell_comes_out(part: str, interpreted: pltpu.InterpretParams) -> None:
    """Each query that sees it has NaN for an answer, in decoding and in a prefill, and no other."""
    case = Case(lens=((1, 37), (20, 30), (2, 2)))
    q, pool, lens, table, starts, count = case.arrays()
    for row, position in ((0, 3), (1, 20), (2, 0)):  # the last is all that its first query sees
        place = table[row, position // 16], position % 16
        pool = pool.at[*place, 0 if part == "K" else 1].set(np.nan)  # of the first KV head
    arrays = as_rows((q, pool, lens, table, starts, count))
    own: Any = {"page_size": 16, "scale": 0.09, "blocks": SMALL, "interpret": interpreted}

    out = np.isnan(np.asarray(ragged_paged_attention(*arrays, **own), np.float32))

    seeing = np.array([True, *[False] * 10, *[True] * 12, *[False] * 3])
    assert out[seeing][:, :4].all()
    assert not out[~seeing].any() or part == "V"  # V of a hidden cell is weighed with 0


def test_a_negative_zero_loses_its_sign_and_nothing_else_changes() -> None:
    """Only the byte of a negative zero changes, in every place of a word."""
    rng = np.random.default_rng(0)
    every = np.concatenate([rng.permutation(256) for _ in range(64)]).astype(np.uint8)
    found = without_negative_zeros(jnp.asarray(every.view(np.uint32)))
    expected = np.where(every == 0x80, 0, every)

    assert np.array_equal(expected, np.asarray(found).view(np.uint8))


def shape(heads: tuple[int, int, int], page_size: int, kv: str, tokens: int = 512) -> Shape:
    """A shape with 64 sequences of 8,192 positions."""
    q_heads, kv_heads, head_dim = heads
    return Shape(
        tokens=tokens,
        seqs=64,
        q_heads=-(-q_heads // 8) * 8,
        kv_heads=kv_heads,
        group=q_heads // kv_heads,
        head_dim=head_dim,
        page_size=page_size,
        pages=1024,
        pages_per_seq=8192 // page_size,
        q_dtype=jnp.dtype(jnp.bfloat16),
        kv_dtype=jnp.dtype(kv),
        scale=1.0,
        v_scale=1.0,
        soft_cap=None,
        window=None,
        vmem=0,
        cores=1,
        blocks=UNPLANNED,
        byte_products=True,
        negative_zeros=True,
    )


HEADS: Final = (
    *((32, 8, 128), (64, 8, 128), (16, 8, 128), (16, 8, 256), (32, 8, 64), (8, 1, 128)),
    *(
        (32, 32, 128),
        (4, 1, 128),
        (8, 1, 256),
        (28, 4, 128),
        (12, 2, 128),
        (40, 8, 128),
        (9, 3, 64),
    ),
    (71, 1, 64),
)


SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOO_LARGE: Final = {
    *(((32, 32, 128), "float32", size) for size in SIZES),
    ((16, 8, 256), "float32", 256),
}
"""The cases that do not fit in the 16 MiB of a v4."""


@pytest.mark.parametrize("chip", deep_after(1, CHIPS.values()), ids=CHIPS)
@pytest.mark.parametrize("heads", deep_after(3, [(one,) for one in HEADS]), ids=str)
def test_planned_blocks_fit_and_go_together(heads: tuple[int, int, int], chip: Any) -> None:
    """Planned blocks are consistent and fit, for every page size and dtype on every chip."""
    kinds = ("bfloat16", "float8_e4m3fn", "float32"), (1, 65, 512)
    for page_size, kv, tokens in product(SIZES, *kinds):
        asked = evolve(shape(heads, page_size, kv, tokens), byte_products=chip.byte_products)
        if chip.name == "v4" and (heads, kv, page_size) in TOO_LARGE:
            with pytest.raises(InvalidInput, match="bytes for the smallest blocks"):
                plan(asked, chip)
            continue
        planned = evolve(asked, blocks=plan(asked, chip))
        check(planned, chip)
        assert need(planned) <= chip.limit


@pytest.mark.parametrize(
    ("heads", "page_size", "kv"),
    [
        ((32, 32, 128), 256, "bfloat16"),
        ((16, 16, 128), 256, "float32"),
        ((16, 8, 256), 128, "float32"),
    ],
)
def test_each_remedy_for_too_little_memory_is_one(
    heads: tuple[int, int, int], page_size: int, kv: str
) -> None:
    """Fewer bits, fewer KV heads on a device or smaller pages fit where the first ones do not."""
    chip = CHIPS["v4"]
    before = (32, 32, 128) if heads[2] == 128 else heads
    with pytest.raises(InvalidInput, match="smaller pages, fewer KV heads on a device, or a pool"):
        plan(evolve(shape(before, 256, "float32"), byte_products=False), chip)

    asked = evolve(shape(heads, page_size, kv), byte_products=False)
    assert need(evolve(asked, blocks=plan(asked, chip))) <= chip.limit


@pytest.mark.parametrize("kv", deep_after(1, ["float32", "bfloat16"]))
def test_a_pool_in_float16_is_made_in_another_format(
    kv: str, interpreted: pltpu.InterpretParams
) -> None:
    """The remedy for K and V in float16: a cast. In float32 no bit is lost."""
    case = Case(kv="float16", q="float16", lens=LENS)
    q, kv_pages, *rest = case.arrays()
    own: Any = {"interpret": interpreted, "page_size": case.page_size, "scale": 0.09}
    with pytest.raises(InvalidInput, match="Make the pool in bfloat16 or float32"):
        ragged_paged_attention(q, rows.of(kv_pages), *rest, **own)
    pool = rows.of(kv_pages.astype(kv))

    out = ragged_paged_attention(q, pool, *rest, **own)

    assert q.dtype == out.dtype
    right = reference(q, kv_pages if kv == "float32" else pool, *rest, page_size=16, scale=0.09)
    assert np.abs(np.asarray(out - right)).max() < (2e-2 if kv == "bfloat16" else 2e-3)


@pytest.mark.parametrize(
    ("blocks", "what"),
    [
        (evolve(SMALL, kv_pages=12), "kv_pages"),
        (evolve(SMALL, decode_cells=256), "decode_cells"),
        (evolve(SMALL, prefill_cells=64), "prefill_cells"),
        (evolve(SMALL, decode_steps=6), "decode_steps"),
        (evolve(SMALL, q_rows=8), "q_rows"),
        (evolve(SMALL, kv_pages=1 << 12), "blocks"),
    ],
)
def test_blocks_that_cannot_be_are_refused(blocks: Blocks, what: str) -> None:
    """Invalid blocks are refused by name; if they are too large, with their need and what fits."""
    arrays = as_rows(Case().arrays())

    with pytest.raises(InvalidInput) as caught:
        ragged_paged_attention(*arrays, page_size=16, blocks=blocks, chip="v5p")
    assert what == caught.value.name
    if what == "blocks":
        assert "bytes" in str(caught.value)
        assert "Blocks(kv_pages=" in str(caught.value)


@pytest.mark.parametrize(
    ("case", "options", "what"),
    [
        (Case(q="float8_e5m2"), {}, "q"),
        (Case(kv="float16"), {}, "kv_pages"),
        (Case(page_size=6), {}, "page_size"),
        (Case(kv_heads=1, page_size=1), {}, "page_size"),
        (Case(q_heads=9, kv_heads=3, page_size=8, kv="int8"), {}, "page_size"),
        (Case(), {"sinks": jnp.zeros(4)}, "sinks"),
        (Case(), {"sinks": jnp.zeros(8, jnp.bfloat16)}, "sinks"),
        (Case(), {"page_size": 0}, "page_size"),
        (Case(), {"page_size": 3}, "page_size"),
        (Case(), {"page_size": None}, "kv_pages"),
        (Case(), {"chip": "v3"}, "chip"),
        (Case(), {"chip": None}, "chip"),
        (Case(), {"sliding_window": 0}, "sliding_window"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    case: Case, options: dict[str, Any], what: str
) -> None:
    """An unsupported case is refused by name before compilation, and never runs otherwise."""
    own: Any = {"chip": "v5e", "page_size": case.page_size} | options
    with pytest.raises(InvalidInput) as caught:
        ragged_paged_attention(*as_rows(case.arrays()), **own)
    assert what == caught.value.name


def test_a_pool_that_a_call_would_copy_is_refused() -> None:
    """The kernel takes no other shape of the pool, and no rows of another width."""
    q, kv_pages, *others = Case().arrays()
    pools = (
        kv_pages,
        rows.of(kv_pages[..., :64]),
        jnp.pad(rows.of(kv_pages), [(0, 0)] * 2 + [(0, 1)]),
    )
    for pool in pools:
        with pytest.raises(InvalidInput, match=r"impl\.cache\.rows makes such a pool") as caught:
            ragged_paged_attention(q, pool, *others, page_size=16, chip="v5e")
        assert caught.value.name == "kv_pages"


RUNS: Final = [
    (2, 6, "bfloat16", 2),
    (1, 1, "bfloat16", 2),
    (1, 2, "int8", 2),
    (1, 1, "float8_e4m3fn", 4),
    (2, 1, "int8", 2),
    (3, 1, "bfloat16", 8),
    (3, 16, "int8", 2),
    (1, 3, "float32", 8),
]


@pytest.mark.parametrize(("heads", "page_size", "kv", "run"), deep_after(1, RUNS))
def test_a_run_of_pages_that_cannot_be_copied_can_be(
    heads: int, page_size: int, kv: str, run: int, interpreted: pltpu.InterpretParams
) -> None:
    """The remedy: aligned runs, each named as one page. It gives the answer of the small pages."""
    case = Case(q_heads=heads, kv_heads=heads, page_size=run * page_size, kv=kv, lens=LENS)
    q, kv_pages, lens, table, *rest = case.arrays()
    pages = kv_pages.shape[0]
    small = kv_pages.reshape(pages * run, page_size, *kv_pages.shape[2:])
    ids = (table[:, :, None] * run + jnp.arange(run)).reshape(len(LENS), -1)
    own: Any = {"interpret": interpreted, "scale": 0.002 if kv == "int8" else 0.09}
    pool = rows.of(small)
    with pytest.raises(InvalidInput, match="page_size") as caught:
        ragged_paged_attention(q, pool, lens, ids, *rest, page_size=page_size, **own)
    assert f"runs of {run}, and name a run as one page: page_size={run * page_size}" in (
        caught.value.remedy
    )

    merged = pool.reshape(pages, run * pool.shape[1], pool.shape[2])
    named = ids[:, ::run] // run
    out = ragged_paged_attention(q, merged, lens, named, *rest, page_size=run * page_size, **own)

    arrays = (np.asarray(q, "f8"), np.asarray(small.astype("float32"), "f8"), lens, ids, *rest)
    asked: Any = {"scale": own["scale"]}
    right = oracle.ragged_paged_attention(*arrays, **asked)
    bound = oracle.error_bound(*arrays, **asked, result="bfloat16", weights="bfloat16")
    assert (np.abs(np.asarray(out, "f8") - right)[: rest[0][-1]] <= bound[: rest[0][-1]]).all()


@pytest.mark.parametrize("heads", [(1, 64), (2, 128), (3, 64), (8, 128), (10, 80)])
def test_a_page_is_refused_exactly_if_it_cannot_be_copied(heads: tuple[int, int]) -> None:
    """In tiles, in words that divide one, or as parts that fill tiles; else a run is named."""
    kinds = (("bfloat16", 8, 2), ("int8", 32, 4), ("float32", 8, 1))
    for page_size, (kv, tile, word) in product(range(1, 40), kinds):
        many, width = heads
        pool = shaped((9, page_size * many, rows.lanes(width)), kv)
        q, table = shaped((4, many, width), "bfloat16"), shaped((2, 3), "int32")
        part = max(size for size in (1, 2, 4, 8, 16, 32) if page_size % size == 0)
        count = part * many
        whole = count % tile == 0
        words = part == page_size and tile % count == 0 and count % word == 0
        if whole or words:
            found = shape_of(q, pool, table, page_size=page_size, chip="v5e")
            assert (part, 9 * page_size // part) == (found.page_size, found.pages)
            assert 3 * page_size // part == found.pages_per_seq
            continue
        with pytest.raises(InvalidInput, match="aligned runs of"):
            shape_of(q, pool, table, page_size=page_size, chip="v5e")


@pytest.mark.parametrize("past", [1, 40])
def test_rows_past_the_end_of_q_are_left_out(past: int, interpreted: pltpu.InterpretParams) -> None:
    """With queries that do not exist, in its last sequence, a batch reads and writes q alone."""
    case = Case(kv="float32", q="float32", lens=((1, 20), (5, 50)))
    q, kv_pages, lens, table, starts, count = case.arrays()
    q = q[: starts[-1]]

    def attend(bounds: Any) -> Any:
        return ragged_paged_attention(
            *(q, rows.of(kv_pages), lens, table, bounds, count),
            page_size=case.page_size,
            blocks=SMALL,
            interpret=interpreted,
        )

    found = attend(starts.at[-1].add(past))
    assert found.shape == q.shape
    assert np.array_equal(found[:1], attend(starts)[:1])
