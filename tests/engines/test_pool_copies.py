"""Copies of the pool: no entry point makes one, and planted ones are found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from attrs import evolve
from deep import deep_after
from jax import Array

from conformance.benchmarks import run as bench
from conformance.engines import pool_copies
from impl import entries
from impl.models.integer import IntegerModel
from impl.models.llama import Llama
from impl.setup import Setup
from impl.state import State, initial
from impl.state.packing import Packed, pack, unpack
from impl.steps import prefill, writing
from spec.vocabulary import CleanupMode, Geometry, Limits, default_limits

GEOMETRY = Geometry(pages=4096, page_size=16, slots=4, pages_per_seq=4)
LIMITS = Limits(
    queue=8,
    prefill_tokens=64,
    prefill_seqs=4,
    round_tokens=4,
    rounds=8,
    stops=2,
    stop_len=4,
    outputs=8,
)
LLAMA = Llama(
    vocabulary=64,
    layers=1,
    embed=16,
    q_heads=2,
    kv_heads=2,
    head_dim=32,
    mlp=16,
    q_block=4,
    kv_block_pages=2,
)
EXACT = Setup(
    geometry=GEOMETRY, limits=LIMITS, model=IntegerModel(), cleanup=CleanupMode.END, logprobs=True
)
REAL = Setup(geometry=GEOMETRY, limits=LIMITS, model=LLAMA)
Entry = Callable[..., tuple[State, Array, Array]]


@pytest.mark.parametrize("name", entries.ALL)
def test_no_entry_point_copies_the_pool(name: str) -> None:
    """The pool is aliased, temporary memory is small, and every change is in place."""
    assert () == pool_copies.check_entry(EXACT, name)


@pytest.mark.deep
@pytest.mark.parametrize("name", ["prefill_requests", "generate"])
def test_a_real_model_does_not_copy_the_pool_either(name: str) -> None:
    """With float attention and a real model the pool is not copied either."""
    weights = jax.eval_shape(LLAMA.init, jax.random.key(0))

    assert () == pool_copies.check_entry(REAL, name, weights)


ONE_AT_A_TIME = evolve(LIMITS, prefill_tokens=1, prefill_seqs=1, round_tokens=1)


@pytest.mark.parametrize(
    "name",
    deep_after(2, ["write", "prefill_requests", "run_round", "generate", "launch", "retire"]),
)
def test_no_entry_point_copies_the_pool_for_one_token(name: str) -> None:
    """XLA copied it before it wrote a batch of one: fuzzing found that with one slot."""
    assert () == pool_copies.check_entry(evolve(EXACT, limits=ONE_AT_A_TIME), name)


@pytest.mark.deep
@pytest.mark.parametrize("name", ["prefill_requests", "generate"])
def test_a_real_model_does_not_copy_the_pool_for_one_token(name: str) -> None:
    """As for the exact model."""
    weights = jax.eval_shape(LLAMA.init, jax.random.key(0))

    assert () == pool_copies.check_entry(evolve(REAL, limits=ONE_AT_A_TIME), name, weights)


def problems_of(entry: Entry, name: str) -> tuple[str, ...]:
    """The problems that the gate reports for an entry point in place of the one with this name."""

    def run(weights: Any, packed: Packed, *rest: Any) -> tuple[Packed, Array]:
        state, status, result = entry(EXACT, weights, unpack(EXACT, packed), *rest)
        return pack(state), jnp.concatenate([status, result])

    state, given = pool_copies.abstract_state(EXACT), pool_copies.example_arguments(EXACT)[name]
    program = jax.jit(run, donate_argnums=1).lower((), state, *given).compile()
    return pool_copies.problems(pool_copies.inspect(program, state))


def written(state: State, cells: Array) -> tuple[Array, ...]:
    """The pools with some pages overwritten."""
    return tuple(pool.at[cells].set(jnp.uint32(1)) for pool in state.pages.cache)


def with_pools(state: State, pools: tuple[Array, ...]) -> State:
    """The state with other pools."""
    return state._replace(pages=state.pages._replace(cache=pools))


def selecting(setup: Setup, weights: Any, state: State, *rest: Any) -> tuple[State, Array, Array]:
    """Write some cells, and select between the old and the new pool by the status."""
    after, status, result = entries.enqueue(setup, weights, state, *rest)
    pairs = zip(written(state, status), state.pages.cache, strict=True)
    pools = tuple(jnp.where(status[0] == 0, new, old) for new, old in pairs)
    return with_pools(after, pools), status, result


def rereading(setup: Setup, weights: Any, state: State, *rest: Any) -> tuple[State, Array, Array]:
    """Write some cells, and return what others held before, which keeps the old pool alive."""
    after, status, _ = entries.enqueue(setup, weights, state, *rest)
    before = jnp.cumsum(state.pages.cache[0][::64, 0, 0, 0], dtype=jnp.uint32)
    return with_pools(after, written(state, status)), status, before.astype(jnp.int32)


def rewriting(setup: Setup, weights: Any, state: State, *rest: Any) -> tuple[State, Array, Array]:
    """Compute every cell anew in the same buffer."""
    after, status, result = entries.enqueue(setup, weights, state, *rest)
    pools = tuple(pool + status[0].astype(jnp.uint32) for pool in after.pages.cache)
    return with_pools(after, pools), status, result


def replacing(setup: Setup, weights: Any, state: State, *rest: Any) -> tuple[State, Array, Array]:
    """Return new pools in place of the given ones."""
    after, status, result = entries.enqueue(setup, weights, state, *rest)
    return with_pools(after, initial(setup).pages.cache), status, result


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (selecting, {"temporary", "copy", "select"}),
        (rereading, {"temporary", "copy"}),
        (rewriting, {"add"}),
        (replacing, {"aliased", "broadcast"}),
    ],
)
def test_a_planted_copy_is_found(entry: Entry, told: set[str]) -> None:
    """Each way to touch the whole pool is reported, and named by its first word."""
    assert told <= {problem.split()[0] for problem in problems_of(entry, "enqueue")}


@pytest.mark.parametrize("aliased", [0, 399, 400, 401])
@pytest.mark.parametrize("temporary", [0, 99, 100, 101])
@pytest.mark.parametrize("opcodes", [(), ("fusion",), ("add",), ("select", "copy", "call")])
def test_each_condition_is_judged_alone_and_at_its_limit(
    aliased: int, temporary: int, opcodes: tuple[str, ...]
) -> None:
    """Less than the pool aliased, a quarter of it allocated, and other opcodes are each told."""
    use = pool_copies.PoolUse(400, aliased, temporary, frozenset(opcodes))

    found = [problem.split()[0] for problem in pool_copies.problems(use)]

    told = ["aliased"] * (aliased < 400) + ["temporary"] * (temporary >= 100)
    assert told + sorted({"add", "copy", "select"} & set(opcodes)) == found


SMALL = evolve(EXACT, geometry=Geometry(pages=16, page_size=4, slots=4, pages_per_seq=4))
"""Sizes at which attention reads as many cells as the pool has."""


@pytest.mark.parametrize("name", ["generate", "clone", "reset_physical"])
def test_no_copy_is_told_where_attention_reads_as_much_as_a_pool(name: str) -> None:
    """Gathered cells, and the zeroing of a physical reset, are no copies of a pool."""
    assert () == pool_copies.copies(SMALL, name)


ONE_PAGE = Geometry(pages=1, page_size=4, slots=2, pages_per_seq=2)


@pytest.mark.parametrize(
    "name",
    [
        "write",
        *(pytest.param(one, marks=pytest.mark.deep) for one in ("generate", "prefill_requests")),
    ],
)
def test_no_copy_is_told_of_a_pool_of_one_page(name: str) -> None:
    """To write a cell there is to select between two pools."""
    setup = evolve(EXACT, geometry=ONE_PAGE, limits=default_limits(ONE_PAGE))

    assert () == pool_copies.copies(setup, name)


@pytest.mark.parametrize(
    ("entry", "told"), [(selecting, {"copy", "select"}), (replacing, {"copy"})]
)
def test_a_planted_copy_is_told_there_too(
    entry: Entry, told: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A selection between two pools, and a pool that takes the place of the given one."""

    def run(weights: Any, packed: Packed, *rest: Any) -> tuple[Packed, Array]:
        state, status, result = entry(SMALL, weights, unpack(SMALL, packed), *rest)
        return pack(state), jnp.concatenate([status, result])

    monkeypatch.setattr(pool_copies, "compiled", lambda *_: jax.jit(run, donate_argnums=1))
    assert told <= {wrong.split()[0] for wrong in pool_copies.copies(SMALL, "enqueue")}


def test_forks_that_do_not_wait_for_the_model_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a partial page while attention may still read the pool copies the whole pool."""
    monkeypatch.setattr(prefill, "_read_prompts", writing.forward)

    found = problems_of(entries.prefill_requests, "prefill_requests")

    assert {"temporary", "copy"} <= {problem.split()[0] for problem in found}


@pytest.mark.parametrize(
    ("copying", "status", "verdict"),
    [({}, 0, "holds"), ({"clone": ("copy of a whole pool",)}, 1, "fails")],
)
def test_the_benchmark_fails_for_a_copy_and_not_for_a_missed_target(
    copying: dict[str, tuple[str, ...]],
    status: int,
    verdict: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A copy fails the benchmark, and a missed target is only shown in the table."""
    figures = (bench.Figure("slow", 3.0, "x", 2.0), bench.Figure("told", 1.0, "ms"))
    monkeypatch.setattr(bench, "measure", lambda *_, **__: bench.Result(figures, copying))
    file = tmp_path / "bench.json"

    assert status == bench.main(["--json", str(file)])

    written_down = json.loads(file.read_text(encoding="utf-8"))
    assert verdict == written_down["verdict"]
    assert [False, None] == [one["met"] for one in written_down["figures"]]
    assert {name: [*found] for name, found in copying.items()} == written_down["copying"]
    table = capsys.readouterr().out
    assert "NOT met" in table
    assert all(f"FAILS: {name}: copy" in table for name in copying)
