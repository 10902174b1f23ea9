"""The error bound beside a second reading of docs/attention.md, symbol by symbol, in plain Python.

The reading takes one query and one head at a time and one number at a time. Only in float16 do all
terms matter: its smallest normal number is near its unit roundoff, so underflow shows in the bound.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from attrs import asdict, evolve, frozen

from conformance.numerics import oracle, probabilistic_bound
from conformance.numerics.oracle import Drift, Head

Numbers = list[float]
PAGE_SIZE, PAGES, WIDTH, Q_HEADS, KV_HEADS = 2, 9, 3, 4, 2
LENGTHS, QUERIES = (7, 2, 0, 5), (3, 4, 1, 1)
"""The second sequence has more queries than cells, the third has no cell."""
UNUSED = 2
"""Rows of q after those of the last sequence."""


def close(seen: Any) -> Any:
    """What equals these numbers to a relative 1e-9."""
    return pytest.approx(seen.ravel().tolist(), rel=1e-9, abs=0.0)


@frozen(kw_only=True)
class Options:
    """The options of `error_bound`."""

    scale: float
    soft_cap: float | None
    sliding_window: int | None
    block_cells: int
    accumulator: str
    weights: str | None
    result: str | None
    sinks: tuple[float, ...] | None = None
    scales: Any = None

    @property
    def r(self) -> int:
        """Roundings more of a score, and of a weight before its product with V."""
        return int(self.scales is not None)


def drawn(seed: int) -> tuple[Any, Options]:
    """The arrays of a random batch, and random options."""
    rng = np.random.default_rng(seed)

    def one(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    accumulator = one("float16", "float16", "bfloat16", "float32", "float64")
    narrow = {"float16": ("float16", "bfloat16"), "float64": ("float64",)}
    options = Options(
        scale=one(0.3, -1.5, 1.0, 2.0**-4),
        soft_cap=one(None, 0.5, 4.0, 30.0),
        sliding_window=one(None, None, 1, 2, 3, 50),
        block_cells=one(1, 2, 3, 50),
        accumulator=accumulator,
        weights=one(None, *narrow.get(accumulator, ("bfloat16", "float32"))),
        result=one(None, "float16", "bfloat16", "float32", "float64"),
    )
    table = np.full((len(LENGTHS), 4), -1)
    free = list(rng.permutation(PAGES))
    for sequence, length in enumerate(LENGTHS):
        for entry in range(math.ceil(length / PAGE_SIZE)):
            table[sequence, entry] = free.pop()
    starts = np.cumsum([0, *QUERIES])
    dtype = jnp.dtype(one("float16", "bfloat16", "float32"))
    q = one(0.01, 0.3, 1.0, 8.0, 100.0) * rng.normal(size=(starts[-1] + UNUSED, Q_HEADS, WIDTH))
    pool = rng.normal(size=(PAGES, PAGE_SIZE, 2 * KV_HEADS, WIDTH))
    pool[:, :, 1::2] *= one(0.01, 1.0, 8.0)
    if one("none", "some") == "some":
        drawn = [float(one(-math.inf, -20.0, 0.0, 1.5, 20.0)) for _ in range(Q_HEADS)]
        options = evolve(options, sinks=tuple(drawn))
    if one("none", "some") == "some":
        factors = rng.choice([-2.0, -0.5, 0.0, 0.01, 1.5], pool.shape[:3])
        factors[..., 1::2] += factors[..., 1::2] == 0  # or an answer is 0 where cells are seen
        options = evolve(options, scales=factors)
    return (
        (
            q.astype(dtype),
            pool.astype(dtype),
            np.asarray(LENGTHS),
            table,
            starts,
            len(LENGTHS),
        ),
        options,
    )


@frozen
class Case:
    """One query and one head: its place in the output, its numbers, and its sequence's length.

    keys and values are scaled; values also has zeros for the sink, if there is one. by: the scales
    of K. stored: the largest magnitude of each number of V before it is scaled.
    """

    row: int
    head: int
    q: Numbers
    keys: list[Numbers]
    values: list[Numbers]
    kv_len: int
    sink: float
    by: Numbers
    stored: Numbers

    def blocks(self, options: Options) -> int:
        """The number of steps, that of the sink included."""
        return math.ceil(self.kv_len / options.block_cells) + (self.sink > -math.inf)


def cases(arrays: Any, options: Options) -> Iterator[Case]:
    """Every query that sees a cell, with every head."""
    q, pool, lengths, table, starts, _ = arrays
    for sequence, length in enumerate(LENGTHS):
        for number in range(QUERIES[sequence]):
            own = int(lengths[sequence]) - QUERIES[sequence] + number
            window = own + 1 if options.sliding_window is None else options.sliding_window
            seen = [p for p in range(length) if own - window < p <= own]
            for head in range(Q_HEADS if seen else 0):
                places = [(table[sequence, p // PAGE_SIZE], p % PAGE_SIZE) for p in seen]
                cells = [pool[place] for place in places]
                pair = 2 * (head // (Q_HEADS // KV_HEADS))
                row = int(starts[sequence]) + number
                sink = -math.inf if options.sinks is None else options.sinks[head]
                by = [
                    (1.0, 1.0)
                    if options.scales is None
                    else tuple(map(float, options.scales[place][pair : pair + 2]))
                    for place in places
                ]
                yield Case(
                    row=row,
                    head=head,
                    q=[float(x) for x in q[row, head]],
                    keys=[
                        [float(x) * k for x in cell[pair]]
                        for cell, (k, _) in zip(cells, by, strict=True)
                    ],
                    values=[
                        [float(x) * v for x in cell[pair + 1]]
                        for cell, (_, v) in zip(cells, by, strict=True)
                    ]
                    + [[0.0] * WIDTH] * (sink > -math.inf),
                    kv_len=length,
                    sink=sink,
                    by=[k for k, _ in by],
                    stored=[
                        max(abs(float(cell[pair + 1][i])) for cell in cells) for i in range(WIDTH)
                    ],
                )


def rounding(dtype: Any) -> tuple[float, float, float]:
    """The unit roundoff u, the smallest normal number t, and kappa."""
    told: Any = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
    u = float(told.eps) / 2
    return u, float(told.smallest_normal), u / (1 - u)


def error_of_scores(case: Case, options: Options) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Steps 1 and 2: scores s, magnitudes |scale| |q|.|k|, delta before the cap and after it."""
    scale, cap, d = options.scale, options.soft_cap, len(case.q)
    u, t, kappa = rounding(options.accumulator)
    epsilon = 8 * u / (1 - 8 * u)
    scores, magnitudes, before, after = list[float](), list[float](), list[float](), list[float]()
    for key, by in zip(case.keys, case.by, strict=True):
        score = scale * math.fsum(a * b for a, b in zip(case.q, key, strict=True))
        size = math.fsum(abs(a) * abs(b) for a, b in zip(case.q, key, strict=True))
        delta = math.expm1((d + 2 + options.r) * kappa) * abs(scale) * size
        delta += 2 * (d + 1) * (1 + abs(scale)) * (1 + options.r * abs(by)) * t
        magnitudes.append(abs(scale) * size)
        before.append(delta)
        if cap is not None:
            score = cap * math.tanh(score / cap)
            delta += math.expm1(5 * kappa + epsilon) * (abs(score) + delta) + (1 + cap) * t
        scores.append(score)
        after.append(delta)
    if case.sink > -math.inf:
        sizes = abs(case.sink) + abs(max(scores)) + max(after)
        scores.append(case.sink)
        magnitudes.append(0.0)
        before.append(0.0)
        after.append(math.expm1(3 * kappa) * sizes + 4 * t)
    return scores, magnitudes, before, after


def moved(case: Case, options: Options, *, rescalings: int) -> dict[str, Any]:
    """Steps 3 and 4 for a number of rescalings, of which the document assumes N - 1."""
    scores, _, _, deltas = error_of_scores(case, options)
    u, t, kappa = rounding(options.accumulator)
    epsilon = 8 * u / (1 - 8 * u)
    n, blocks = len(scores), case.blocks(options)
    weights = [math.exp(score - max(scores)) for score in scores]
    shares = [weight / math.fsum(weights) for weight in weights]
    columns = list(zip(*case.values, strict=True))
    mean = [math.fsum(p * v for p, v in zip(shares, c, strict=True)) for c in columns]
    highest = max(score + delta for score, delta in zip(scores, deltas, strict=True))
    gaps = [highest - score + delta for score, delta in zip(scores, deltas, strict=True)]
    common = [
        delta + math.expm1(3 * kappa) * gap + (rescalings + 1) * epsilon
        for delta, gap in zip(deltas, gaps, strict=True)
    ]
    longest = min(options.block_cells, len(case.keys))
    in_sum = (longest - 1 + blocks + rescalings) * kappa
    narrowed = 0.0 if options.weights is None else rounding(options.weights)[2]
    lost = 4 * (n + blocks) * t
    grown = math.fsum(p * math.expm1(x + in_sum) for p, x in zip(shares, common, strict=True))
    return {
        "shares": shares,
        "mean": mean,
        "gaps": gaps,
        "common": common,
        "in_mean": in_sum + (1 + options.r) * kappa + narrowed,
        "in_sum": in_sum,
        "flushed": [
            lost * (1 + max(abs(v) for v in column) + options.r * stored + abs(o))
            for column, stored, o in zip(columns, case.stored, mean, strict=True)
        ],
        "remaining": 1 - grown - lost,
    }


def bound(case: Case, options: Options, result: Any) -> Numbers:
    """Steps 5 and 6: the bound of each element of one query and one head."""
    blocks = case.blocks(options)
    parts = moved(case, options, rescalings=blocks - 1)
    u, t, kappa = rounding(options.accumulator)
    u_out, t_out, kappa_out = rounding(result)
    found = []
    for element, o in enumerate(parts["mean"]):
        numerator = parts["flushed"][element]
        for p, x, value in zip(parts["shares"], parts["common"], case.values, strict=True):
            v = value[element]
            numerator += p * math.expm1(x) * abs(v - o)
            numerator += p * math.exp(x) * math.expm1(parts["in_mean"]) * abs(v)
            numerator += p * math.exp(x) * math.expm1(parts["in_sum"]) * abs(o)
        error = numerator / parts["remaining"] if parts["remaining"] > 0 else math.inf
        narrowed = kappa_out if u_out > u else 0.0
        rounded = math.expm1(3 * kappa + narrowed + math.expm1(narrowed) ** 2)
        found.append(error + (error + abs(o)) * rounded + t + t_out)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_the_bound_is_that_of_its_document(seed: int) -> None:
    """The bound of every element equals the second reading, and is 0 where nothing is seen."""
    arrays, options = drawn(seed)
    result = arrays[0].dtype if options.result is None else options.result
    expected = np.zeros(arrays[0].shape)
    for case in cases(arrays, options):
        expected[case.row, case.head] = bound(case, options, result)

    seen = oracle.error_bound(*arrays, **asdict(options))

    assert expected.ravel().tolist() == close(seen)


def test_the_batches_have_bounds_of_every_kind() -> None:
    """The random batches have bounds that are 0, finite and infinite in float16."""
    found = set()
    for seed in range(60):
        arrays, options = drawn(seed)
        for each in oracle.error_bound(*arrays, **asdict(options)).ravel():
            found.add((options.accumulator, 0 if each == 0 else 1 if each < math.inf else 2))

    assert {("float16", 0), ("float16", 1), ("float16", 2), ("float32", 1)} <= found


def heads(arrays: Any, options: Options) -> list[Head]:
    """What `bounded` gives to an estimate of step 5, in order of queries and heads."""
    told = list[Head]()

    def estimate(head: Head) -> Any:
        told.append(head)
        return np.zeros(WIDTH)

    oracle.bounded(estimate, *arrays, **asdict(options))
    return told


@pytest.mark.parametrize("seed", range(100, 120))
def test_the_symbols_of_a_head_are_those_of_the_document(seed: int) -> None:
    """Every estimate of step 5 is given the scores, values, errors and steps of each head."""
    arrays, options = drawn(seed)
    _, t, _ = rounding(options.accumulator)

    told = heads(arrays, options)

    for case, head in zip(cases(arrays, options), told, strict=True):
        scores, magnitudes, before, after = error_of_scores(case, options)
        assert case.values == head.values.tolist()
        assert [options.r * one for one in case.stored] == np.broadcast_to(
            head.stored, WIDTH
        ).tolist()
        assert options.soft_cap == head.soft_cap
        assert scores == pytest.approx(head.scores.tolist(), rel=1e-9, abs=1e-12)
        assert magnitudes == close(head.magnitudes)
        assert before == close(head.raw)
        assert after == close(head.delta)
        assert t == head.steps.precision.tiny


@pytest.mark.parametrize("seed", range(200, 220))
def test_the_drift_is_that_of_the_document(seed: int) -> None:
    """Each symbol of steps 3 and 4 equals the second reading, for any number of rescalings."""
    arrays, options = drawn(seed)

    told = heads(arrays, options)

    for case, head in zip(cases(arrays, options), told, strict=True):
        for rescalings in (0, 1, head.steps.blocks - 1):
            expected = moved(case, options, rescalings=rescalings)
            seen = oracle.drift(head, rescalings=rescalings)
            assert set(Drift._fields) == set(expected)
            for name, value in expected.items():
                listed = np.asarray(getattr(seen, name)).tolist()
                assert value == pytest.approx(listed, rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize("seed", range(300, 320))
def test_rows_that_see_nothing_are_exactly_0(seed: int) -> None:
    """The answer and its bound are 0 in exactly the rows that see no cell, or have no sequence."""
    arrays, options = drawn(seed)
    given = asdict(options)
    known = ("scale", "soft_cap", "sliding_window", "sinks", "scales")
    answered = {name: given[name] for name in known}
    seeing = {case.row for case in cases(arrays, options)}

    out = oracle.ragged_paged_attention(*arrays, **answered)
    limit = oracle.error_bound(*arrays, **given)

    assert seeing == set(np.flatnonzero(out.any(axis=(1, 2))).tolist())
    assert seeing == set(np.flatnonzero(limit.any(axis=(1, 2))).tolist())


def test_the_bound_is_infinite_where_it_overflows() -> None:
    """Values whose differences overflow have an infinite bound, also if their weight is 0."""
    largest = float(np.finfo(np.float64).max)
    pool = np.array([[[0.0], [largest]], [[-1000.0], [-largest]]]).reshape(1, 2, 2, 1)

    with np.errstate(over="ignore", invalid="ignore"):
        limit = oracle.error_bound(np.ones((1, 1, 1)), pool, [2], [[0]], [0, 1], 1)

    assert math.inf == limit.item()


def probable_error(case: Case, options: Options, deviations: float) -> Numbers:
    """Steps 2 to 7 of docs/probabilistic-bound.md, before the division and the cast."""
    s, m, raw, delta = error_of_scores(case, options)
    u, _, kappa = rounding(options.accumulator)
    epsilon, narrow = 8 * u / (1 - 8 * u), 0.0
    if options.weights is not None:
        narrow = rounding(options.weights)[2]
    n, d, r, steps = len(s), len(case.q), options.r, case.blocks(options) - 1

    def before(cell: int) -> float:
        return max(s[i] - delta[i] for i in range(cell))

    rises = [cell for cell in range(1, n) if s[cell] + delta[cell] > before(cell)]
    rescaled = rises[max(0, len(rises) - steps) :]
    parts = moved(case, options, rescalings=len(rescaled))
    p, g, x = parts["shares"], parts["gaps"], parts["common"]
    y, z, found = parts["in_mean"], parts["in_sum"], list[float]()

    def phi(far: float) -> float:
        return far**2 / 2 * math.exp(far)

    rest = []
    for j in range(n):
        underflow = raw[j] - math.expm1((d + 2 + r) * kappa) * m[j]
        bend = 0.0 if options.soft_cap is None else raw[j] ** 2 / (2 * options.soft_cap)
        rest.append(
            phi((d + 2 + r) * kappa) * m[j]
            + phi(3 * kappa) * g[j]
            + kappa * delta[j]
            + (len(rescaled) + 1) * epsilon**2
            + bend
            + underflow
        )
    for element, o in enumerate(parts["mean"]):
        v = [value[element] for value in case.values]
        size = math.fsum(p[j] * abs(v[j]) for j in range(n))
        prefixes = [math.fsum(p[j] * (v[j] - o) for j in range(end)) for end in range(1, n + 1)]
        reach = {cell: max(abs(one) for one in prefixes[:cell]) for cell in rises}
        squares = kappa * z * (size**2 + o**2)
        numerator = parts["flushed"][element] + phi(y) * size + phi(z) * abs(o)
        for j in range(n):
            random = ((d + 1 + r) * m[j] ** 2 + 2 * g[j] ** 2) * kappa**2 + epsilon**2
            products = ((1 + r) * kappa**2 + narrow**2) * v[j] ** 2
            squares += p[j] ** 2 * ((v[j] - o) ** 2 * random + products)
            shared = kappa * (2 * abs(s[j]) + delta[j]) + delta[j] - raw[j]
            numerator += p[j] * abs(v[j] - o) * (shared + phi(x[j]) + rest[j])
            grown = math.expm1(y) * abs(v[j]) + math.expm1(z) * abs(o)
            numerator += p[j] * math.expm1(x[j]) * grown
        numerator += deviations * math.sqrt(squares)
        numerator += epsilon * math.fsum(reach[cell] for cell in rescaled)
        numerator += (
            2
            * kappa
            * math.fsum(reach[cell] * (s[cell] + delta[cell] - before(cell)) for cell in rises)
        )
        found.append(numerator / parts["remaining"] if parts["remaining"] > 0 else math.inf)
    return found


@pytest.mark.parametrize("seed", range(400, 460))
def test_the_probable_bound_is_that_of_its_document(seed: int) -> None:
    """The probable bound of every element equals its second reading, or the certain bound."""
    arrays, options = drawn(seed)
    result = arrays[0].dtype if options.result is None else options.result
    failure = (1e-9, 0.01, 0.9)[seed % 3]
    deviations = math.sqrt(2 * math.log(2 * arrays[0].size / failure))
    u, t, kappa = rounding(options.accumulator)
    u_out, t_out, kappa_out = rounding(result)
    narrowed = kappa_out if u_out > u else 0.0
    relative = math.expm1(3 * kappa + narrowed + math.expm1(narrowed) ** 2)
    expected = np.zeros(arrays[0].shape)
    for case in cases(arrays, options):
        mean = moved(case, options, rescalings=0)["mean"]
        likely = probable_error(case, options, deviations)
        certain = bound(case, options, result)
        for at, (o, error) in enumerate(zip(mean, likely, strict=True)):
            ended = error + (error + abs(o)) * relative + t + t_out
            expected[case.row, case.head, at] = min(ended, certain[at])

    seen = probabilistic_bound.probable_bound(*arrays, **asdict(options), failure=failure)

    assert expected.ravel().tolist() == close(seen)
