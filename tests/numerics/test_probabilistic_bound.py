"""The probabilistic bound beside arithmetic that rounds, tosses coins, or is too coarse."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve, field, frozen
from numpy.typing import NDArray
from test_oracle import batch

from conformance.kernels import trials
from conformance.kernels.batches import SIZES, Batch
from conformance.kernels.kernel_under_test import find
from conformance.kernels.processes import Tried
from conformance.kernels.trials import Job
from conformance.numerics import oracle, probabilistic_bound
from spec.vocabulary.errors import InvalidInput

Floats = NDArray[np.float64]
Rounding = Callable[[Floats], Floats]
PAGE_SIZE, SCALE = 64, 0.3


def nearest(dtype: Any) -> Rounding:
    """Rounding to the nearest number of a format."""
    return lambda exact: exact.astype(dtype).astype(np.float64)


def coins(unit: float, seed: int = 0) -> Rounding:
    """Rounding by exactly one unit roundoff, up or down: the worst case of the model."""
    rng = np.random.default_rng(seed)
    return lambda exact: exact * (1 + unit * np.sign(rng.random(exact.shape) - 0.5))


@frozen(kw_only=True)
class Kernel:
    """Blocked online softmax over `step` cells at a time, with sums in order of the cells.

    rounding: of each operation. sums: of the running sums between steps. weights: of the weights
    before they are multiplied by V. A multiplication by 1 or 0 is exact and is not rounded. sink:
    of every head, taken at the end.
    """

    step: int
    rounding: Rounding
    sink: float | None = None
    sums: Rounding = field()
    weights: Rounding = field(default=lambda exact: exact)

    @sums.default
    def _same(self) -> Rounding:
        return self.rounding

    def attend(self, q: Floats, keys: Floats, values: Floats) -> Floats:
        """The answer [heads, head_dim] for q [heads, head_dim] and K and V [n, head_dim]."""
        to = self.rounding
        dots = to(q[:, :1] * keys[:, 0])
        for one in range(1, q.shape[1]):
            dots = to(dots + to(q[:, one : one + 1] * keys[:, one]))
        scores, largest = to(SCALE * dots), np.full((len(q), 1), -np.inf)
        held: list[Floats] = []
        for start in range(0, len(keys), self.step):
            some = scores[:, start : start + self.step]
            new = np.maximum(largest, some.max(axis=1, keepdims=True))
            weights = np.where(some == new, 1.0, to(np.exp(to(some - new))))
            parts = self._parts(weights, values[start : start + self.step])
            if held:
                factor = np.where(new == largest, 1.0, to(np.exp(to(largest - new))))
                kept = [np.where(factor == 1, one, self.sums(one * factor)) for one in held]
                parts = [self.sums(one + more) for one, more in zip(kept, parts, strict=True)]
            held, largest = parts, new
        if self.sink is not None:
            new = np.maximum(largest, self.sink)
            kept = [to(one * to(np.exp(to(largest - new)))) for one in held]
            held = [to(kept[0] + to(np.exp(to(self.sink - new)))), kept[1]]
        return to(held[1] / held[0])

    def _parts(self, weights: Floats, values: Floats) -> list[Floats]:
        """The sum of the weights, and of the weighted V, over one step."""
        to, total = self.rounding, weights[:, :1]
        narrow = np.where(weights == 1, 1.0, self.weights(weights))
        mean = to(narrow[:, :1] * values[0])
        for cell in range(1, len(values)):
            total = to(total + weights[:, cell : cell + 1])
            mean = to(mean + to(narrow[:, cell : cell + 1] * values[cell]))
        return [total, mean]


def cells(n: int, *, mean: float = 0.0, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Random q [4, 8], K and V [n, 8], rounded to 16 bits. mean: the mean of V."""
    rng = np.random.default_rng(seed)
    q, keys, values = (rng.normal(size=(rows, 8)) for rows in (4, n, n))
    return tuple(nearest(np.float16)(x) for x in (q, keys, values + mean))  # type: ignore[return-value]


def bounds(q: Floats, keys: Floats, values: Floats, **known: Any) -> tuple[Floats, Floats, Floats]:
    """The exact answer, the certain bound and the probabilistic one, each [heads, head_dim]."""
    pages = -(-len(keys) // PAGE_SIZE)
    pool = np.zeros((pages * PAGE_SIZE, 2, q.shape[1]))
    pool[: len(keys)] = np.stack([keys, values], axis=1)
    paged = pool.reshape(pages, PAGE_SIZE, *pool.shape[1:])
    arrays: Any = (q[None], paged, [len(keys)], np.arange(pages)[None], [0, 1], 1)
    options: Any = {"scale": SCALE, "result": np.float32, **known}
    return (
        oracle.ragged_paged_attention(*arrays, scale=SCALE, sinks=options.get("sinks"))[0],
        oracle.error_bound(*arrays, **options)[0],
        probabilistic_bound.probable_bound(*arrays, **options)[0],
    )


def shares(kernel: Kernel, given: tuple[Floats, Floats, Floats], **known: Any) -> Any:
    """The largest error of a kernel over the certain bound and over the probabilistic one."""
    right, certain, likely = bounds(*given, **known)
    error = np.abs(kernel.attend(*given) - right)
    return (error / certain).max(), (error / likely).max()


def worst(rounding: Callable[[int], Rounding], unit: Any, *, step: int, n: int) -> float:
    """The largest share of the probabilistic bound, over seeds and over V of mean 0 and 3."""
    found = [
        shares(
            Kernel(step=step, rounding=rounding(seed)),
            cells(n, mean=mean, seed=seed),
            block_cells=step,
            accumulator=unit,
            result=unit,
        )
        for seed in range(2)
        for mean in (0.0, 3.0)
    ]
    return float(max(likely for _, likely in found))


@pytest.mark.parametrize(
    ("unit", "rounding", "n", "reached"),
    [
        ("float32", lambda _: nearest(np.float32), 400, 0.02),
        ("float16", lambda _: nearest(np.float16), 20, 0.01),
        ("float32", lambda seed: coins(2.0**-24, seed), 400, 0.05),
        ("float16", lambda seed: coins(2.0**-11, seed), 20, 0.05),
    ],
    ids=["float32", "float16", "coins", "coarse coins"],
)
@pytest.mark.parametrize("step", [1, 3, 128, 400])
def test_rounding_stays_within_the_probable_bound(
    unit: str, rounding: Callable[[int], Rounding], n: int, reached: float, step: int
) -> None:
    """Rounding to nearest, and the worst case of the model, come near the bound and stay within."""
    assert reached < worst(rounding, unit, step=step, n=n) <= 1


@pytest.mark.parametrize("sink", [-2.0, 0.5, 4.0])
@pytest.mark.parametrize("step", [1, 128])
def test_rounding_stays_within_the_probable_bound_with_a_sink(sink: float, step: int) -> None:
    """A sink far below the scores, among them or above: near the bound, and within it."""
    for rounding, reached in ((nearest(np.float32), 0.01), (coins(2.0**-24), 0.03)):
        kernel = Kernel(step=step, rounding=rounding, sink=sink)
        given = cells(400, mean=3.0)
        _, likely = shares(kernel, given, block_cells=step, sinks=[sink] * 4)
        assert reached < likely <= 1
        assert shares(kernel, given, block_cells=step)[0] > 1


def test_the_check_fails_with_too_small_a_lambda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst case leaves a bound of one deviation, and rounding to nearest one of a quarter."""
    for few, rounding in (
        (1.0, lambda seed: coins(2.0**-24, seed)),
        (0.25, lambda _: nearest(np.float32)),
    ):
        monkeypatch.setattr(probabilistic_bound, "deviations", lambda *_, few=few: few)
        assert worst(rounding, "float32", step=1, n=400) > 1


def test_lambda_follows_from_the_probability() -> None:
    """By hand: 1e-9 over 500 elements, two sides each, is exp(-lambda^2 / 2) = 1e-12."""
    assert probabilistic_bound.deviations(500, 1e-9) == pytest.approx(math.sqrt(2 * math.log(1e12)))
    assert probabilistic_bound.deviations(1, 2 * math.exp(-2)) == pytest.approx(2.0)


@pytest.mark.parametrize(("n", "gain"), [(1024, 40), (4096, 80), (16384, 160)])
def test_the_gain_grows_like_the_root_of_the_context(n: int, gain: float) -> None:
    """With unknown blocking, the certain bound exceeds the probabilistic one by this factor."""
    _, certain, likely = bounds(*cells(n))

    assert gain < np.median(certain / likely) < 1.5 * gain


SIXTEEN = {"weights": jnp.bfloat16, "result": jnp.bfloat16}


@pytest.mark.parametrize(
    ("sums", "n", "known"),
    [
        (np.float16, 4096, {}),
        (jnp.bfloat16, 8192, {}),
        (jnp.bfloat16, 16384, SIXTEEN),
    ],
    ids=["float16", "bfloat16", "bfloat16, as weights and result are"],
)
def test_sums_that_are_kept_too_coarsely_are_noticed(
    sums: Any, n: int, known: dict[str, Any]
) -> None:
    """Coarse sums over long contexts stay within the certain bound and leave the other one."""
    right = Kernel(
        step=128,
        rounding=nearest(np.float32),
        weights=nearest(known.get("weights", np.float64)),
    )
    coarse, given = evolve(right, sums=nearest(sums)), cells(n)

    assert max(shares(right, given, **known)) < 0.5
    certain, likely = shares(coarse, given, **known)
    assert certain < 0.5
    assert likely > 2


def alike(n: int, *, kinds: int) -> tuple[Floats, Floats, Floats]:
    """Cells of only `kinds` different kinds, after one with a greater weight."""
    q, keys, values = cells(n)
    q[:], kind = q[0], 1 + np.arange(n - 1) % kinds
    keys[1:], values[1:] = keys[kind], values[kind]
    keys[0] = nearest(np.float16)(keys[1] + 3 * q[0] / (q[0] @ q[0]))
    return q, keys, values


@pytest.mark.parametrize("kinds", [1, 8])
def test_equal_cells_round_alike_and_leave_the_probable_bound(kinds: int) -> None:
    """A right kernel may leave the probabilistic bound on equal cells, so that is no failure."""
    kernel = Kernel(step=128, rounding=nearest(np.float32), weights=nearest(jnp.bfloat16))

    certain, likely = shares(kernel, alike(4096, kinds=kinds), weights=jnp.bfloat16)

    assert certain < 0.5
    assert likely > 1


@pytest.mark.parametrize("same", ["scores", "values"])
def test_equal_scores_alone_or_equal_values_alone_do_no_harm(same: str) -> None:
    """Cells of equal scores or of equal values alone stay within the probabilistic bound."""
    kernel = Kernel(step=128, rounding=nearest(np.float32), weights=nearest(jnp.bfloat16))
    (q, keys, values), (_, plain, others) = alike(4096, kinds=1), cells(4096)
    given = (q, keys, others) if same == "scores" else (q, plain, values)

    assert max(shares(kernel, given, weights=jnp.bfloat16)) < 0.5


@pytest.mark.parametrize("soft_cap", [None, 0.5])
@pytest.mark.parametrize("window", [None, 3])
def test_it_is_never_above_the_certain_bound(soft_cap: float | None, window: int | None) -> None:
    """The bound is at most the certain one, 0 without cells, and infinite if the certain one is."""
    options: Any = {"scale": 0.3, "soft_cap": soft_cap, "sliding_window": window}
    arrays: Any = batch(1)
    certain = oracle.error_bound(*arrays, **options)
    likely = probabilistic_bound.probable_bound(*arrays, **options)
    nothing = probabilistic_bound.probable_bound(*batch(2, size=100.0), accumulator=np.float16)

    assert (likely <= certain).all()
    assert (likely[:9] > 0).all()
    np.testing.assert_array_equal(0, likely[9:])
    assert np.isinf(nothing[:9]).any()
    assert not np.isnan(nothing).any()


def test_the_rows_of_some_tokens_are_those_of_all() -> None:
    """Asked for a few, the bound of these is what it is beside the others, which are 0."""
    arrays: Any = batch(1)
    every = probabilistic_bound.probable_bound(*arrays, scale=0.3)
    some = probabilistic_bound.probable_bound(*arrays, scale=0.3, tokens={1, 4})

    rows = np.isin(np.arange(len(every)), [1, 4])
    np.testing.assert_array_equal(every[rows], some[rows])
    np.testing.assert_array_equal(0, some[~rows])


def test_a_smaller_probability_is_a_wider_bound() -> None:
    """A smaller probability and an unknown blocking widen the bound; invalid ones are refused."""
    arrays: Any = batch(1)
    often, seldom, blocked = (
        probabilistic_bound.probable_bound(*arrays, failure=0.1),
        probabilistic_bound.probable_bound(*arrays),
        probabilistic_bound.probable_bound(*arrays, block_cells=20),
    )

    assert (often <= seldom).all()
    assert (often < seldom).any()
    assert (blocked <= seldom).all()
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(InvalidInput, match="failure: saw"):
            probabilistic_bound.probable_bound(*arrays, failure=wrong)
    with pytest.raises(InvalidInput, match="block_cells: saw 0"):
        probabilistic_bound.probable_bound(*arrays, block_cells=0)


def test_exp_is_no_more_biased_here_than_assumed() -> None:
    """In each binade of arguments, the mean relative error of exp is below unit roundoff / 20."""
    unit, draws = 2.0**-24, np.random.default_rng(0)
    for high in (0.0, -1.0, -2.0, -4.0, -8.0, -16.0):
        x = draws.uniform(min(2 * high, -1.0), high, 2**17).astype(np.float32)
        exact = np.exp(x.astype(np.float64))
        error = (np.asarray(jnp.exp(x), np.float64) - exact) / exact
        assert abs(error.mean()) < unit / 20


def test_sums_that_are_too_coarse_are_loose_and_not_wrong(tmp_path: Path) -> None:
    """Float16 sums over a thousand cells are within the bound and beyond the probabilistic one."""
    long = next(sizes for sizes in SIZES if sizes.name == "float32, a long context")
    batch, found = Batch(lens=((3, long.capacity),)), {}
    for name in ("right", "coarse_sums"):
        job = Job(kernel=f"kernel_toys:{name}", sizes=long.name, results=str(tmp_path / name))
        trials.Trial(job, find(job.kernel), {}).check(batch)
        found[name] = Tried(job)
        for line in Path(job.results).read_text(encoding="utf-8").splitlines():
            found[name].take(json.loads(line))

    right, coarse = found.values()
    assert (1, json.loads(json.dumps(batch.to_json()))) == (coarse.loose, coarse.loosest)
    assert (0, None) == (right.loose, right.loosest)
    assert coarse.ratio < 1
    assert coarse.looseness > 3
