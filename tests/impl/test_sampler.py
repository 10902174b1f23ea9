"""Draws: they depend on seed, choice, position and logits, and not on the batch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from impl.models import sampler
from spec.vocabulary.errors import InvalidInput

ROWS, VOCABULARY = 8, 11
draw = jax.jit(sampler.draw)
numbers = st.integers(0, 2**31 - 1)


def batch(seed: int) -> tuple[NDArray[Any], ...]:
    """Logits, seeds, choices, positions and temperatures of ROWS rows, one of them greedy."""
    rng = np.random.default_rng(seed)
    whole = [rng.integers(0, 2**31 - 1, ROWS).astype(np.int32) for _ in range(3)]
    temperatures = rng.uniform(0.2, 2.0, ROWS).astype(np.float32)
    temperatures[0] = 0
    return (rng.normal(size=(ROWS, VOCABULARY)).astype(np.float32), *whole, temperatures)


def test_temperature_zero_takes_the_largest_logit() -> None:
    """Greedy draws take the first maximum whatever the seed."""
    logits, *whole, temperatures = batch(0)
    logits[3, [4, 7]] = 9.0

    chosen, _ = draw(logits, *whole, np.zeros_like(temperatures))

    np.testing.assert_array_equal(logits.argmax(axis=1), np.asarray(chosen))
    assert int(chosen[3]) == 4


@pytest.mark.parametrize("exponent", range(-126, -20, 15))
@pytest.mark.parametrize("shift", [-50.0, 0.0, 50.0])
def test_a_tiny_temperature_takes_the_largest_logit(exponent: int, shift: float) -> None:
    """Temperatures down to the smallest that an engine takes keep the order of the logits."""
    logits, *whole, temperatures = batch(0)
    logits = 10 * logits + np.float32(shift)

    chosen, _ = draw(logits, *whole, np.full_like(temperatures, 2.0**exponent))

    np.testing.assert_array_equal(logits.argmax(axis=1), np.asarray(chosen))


def test_log_probability_is_taken_before_temperature() -> None:
    """The log-probability is the drawn token's under the raw logits."""
    logits, *rest = batch(1)
    wide = logits.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))

    chosen, log_probabilities = draw(logits, *rest)

    assert chosen.dtype == jnp.int32
    np.testing.assert_allclose(
        expected[np.arange(ROWS), np.asarray(chosen)], np.asarray(log_probabilities), atol=1e-5
    )


def test_the_key_is_seed_then_choice_then_position() -> None:
    """A draw is the categorical draw of fold_in(fold_in(key(seed), choice), position)."""
    logits = jnp.linspace(0.0, 1.0, VOCABULARY)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(5), 2), 40)

    chosen, _ = draw(
        logits[None], *(jnp.asarray([n], jnp.int32) for n in (5, 2, 40)), jnp.asarray([0.5])
    )

    assert int(jax.random.categorical(key, logits / 0.5)) == int(chosen[0])


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), order=st.permutations(range(ROWS)))
def test_draws_do_not_depend_on_the_batch(seed: int, order: list[int]) -> None:
    """A row draws the same bits in any order and beside any other rows."""
    parts = batch(seed)
    chosen, logs = (np.asarray(part) for part in draw(*parts))
    others = batch(seed + 1)
    mixed = [
        np.concatenate([a[: ROWS // 2], b[ROWS // 2 :]]) for a, b in zip(parts, others, strict=True)
    ]

    shuffled = draw(*(part[np.asarray(order)] for part in parts))
    beside = draw(*mixed)

    np.testing.assert_array_equal(chosen[np.asarray(order)], np.asarray(shuffled[0]))
    np.testing.assert_array_equal(logs[np.asarray(order)], np.asarray(shuffled[1]))
    np.testing.assert_array_equal(chosen[: ROWS // 2], np.asarray(beside[0])[: ROWS // 2])


@settings(deadline=None, max_examples=30)
@given(seed=numbers, choice=numbers, position=numbers)
def test_seed_choice_and_position_each_change_the_key(
    seed: int, choice: int, position: int
) -> None:
    """Keys that differ in seed, choice or position are different."""
    names = [(seed, choice, position)]
    names += [
        (seed ^ 1, choice, position),
        (seed, choice ^ 1, position),
        (seed, choice, position ^ 1),
    ]

    keys = jax.vmap(sampler.key)(*(jnp.asarray(n, jnp.int32) for n in zip(*names, strict=True)))

    data = np.asarray(jax.random.key_data(keys))
    assert len({tuple(row) for row in data}) == len(names)


def test_draws_follow_the_softened_distribution() -> None:
    """Frequencies over many positions are those of softmax(logits / temperature)."""
    count, temperature = 4096, 0.7
    logits = np.linspace(-1, 1, VOCABULARY, dtype=np.float32)
    weights = np.exp(logits.astype(np.float64) / temperature)
    expected = weights / weights.sum()
    same = np.zeros(count, np.int32)

    chosen, _ = draw(
        np.tile(logits, (count, 1)),
        same,
        same,
        np.arange(count, dtype=np.int32),
        np.full(count, temperature, np.float32),
    )

    frequencies = np.bincount(np.asarray(chosen), minlength=VOCABULARY) / count
    # Five standard deviations; the seed is fixed, so this either holds always or never.
    assert (np.abs(frequencies - expected) < 5 * np.sqrt(expected / count)).all()


def test_numbers_must_be_given_per_row() -> None:
    """A scalar temperature is invalid input that shows the shapes."""
    logits, seeds, choices, positions, _ = (jnp.asarray(part) for part in batch(0))

    with pytest.raises(InvalidInput, match=r"\(8, 11\)"):
        sampler.draw(logits, seeds, choices, positions, jnp.float32(0.0))
