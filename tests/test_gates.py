"""No entry point copies the pool, and a copy that is planted does not pass."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array

from conformance import gate
from impl import decode, entries, prefill
from impl.models.integer import IntegerModel
from impl.models.llama import Llama
from impl.setup import Setup
from impl.state import State, initial
from spec.vocabulary import CleanupMode, Geometry, Limits

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
    layers=2,
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


@pytest.mark.parametrize("name", entries.NAMES)
def test_no_entry_point_copies_the_pool(name: str) -> None:
    """Its bytes are aliased, temporary memory is small, and every change of it is in place."""
    assert () == gate.check_entry(EXACT, name)


@pytest.mark.parametrize("name", ["prefill_requests", "generate"])
def test_a_real_model_does_not_copy_the_pool_either(name: str) -> None:
    """Nor with float attention, in the loop over layers, sequences, blocks and rounds."""
    weights = jax.eval_shape(LLAMA.init, jax.random.key(0))

    assert () == gate.check_entry(REAL, name, weights)


def problems_of(entry: Entry, name: str) -> tuple[str, ...]:
    """What the gate says of an entry point in place of the one with this name."""

    def run(weights: Any, state: State, *rest: Any) -> tuple[State, Array]:
        state, status, result = entry(EXACT, weights, state, *rest)
        return state, jnp.concatenate([status, result])

    jitted = jax.jit(run, donate_argnums=1)
    given = gate.example_arguments(EXACT)[name]
    return gate.problems(gate.inspect(jitted, (), gate.abstract_state(EXACT), *given))


def selecting(setup: Setup, weights: Any, state: State, *rest: Any) -> tuple[State, Array, Array]:
    """Write, and select between the old and the new pool by the status."""
    after, status, result = entries.write(setup, weights, state, *rest)
    pairs = zip(after.cache, state.cache, strict=True)
    pools = tuple(jnp.where(status[0] == 0, new, old) for new, old in pairs)
    return after._replace(cache=pools), status, result


def rereading(setup: Setup, weights: Any, state: State, *rest: Any) -> tuple[State, Array, Array]:
    """Write, and report what cells held before: the old pool must be kept for that."""
    after, status, _ = entries.write(setup, weights, state, *rest)
    before = jnp.cumsum(state.cache[0][::64, 0, 0, 0], dtype=jnp.uint32)
    return after, status, before.astype(jnp.int32)


def rewriting(setup: Setup, weights: Any, state: State, *rest: Any) -> tuple[State, Array, Array]:
    """Write, and compute every cell anew in the buffer it came in."""
    after, status, result = entries.write(setup, weights, state, *rest)
    pools = tuple(pool + status[0].astype(jnp.uint32) for pool in after.cache)
    return after._replace(cache=pools), status, result


def replacing(setup: Setup, weights: Any, state: State, *rest: Any) -> tuple[State, Array, Array]:
    """Return new pools."""
    after, status, result = entries.write(setup, weights, state, *rest)
    return after._replace(cache=initial(setup).cache), status, result


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
    """Each way to go over the whole pool is reported by the first word of what is wrong with it."""
    assert told <= {problem.split()[0] for problem in problems_of(entry, "write")}


def test_forks_that_do_not_wait_for_the_model_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying a partial page while attention may still read the pool copies all of it."""
    monkeypatch.setattr(prefill, "_read_prompts", decode.forward)

    found = problems_of(entries.prefill_requests, "prefill_requests")

    assert {"temporary", "copy"} <= {problem.split()[0] for problem in found}
