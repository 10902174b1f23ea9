"""The float64 oracle of Llama: it agrees with the served model, and sees each part of it."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve

from conformance.numerics import llama as oracle
from impl.models.llama import LayerWeights, Llama, LlamaWeights


@pytest.fixture(scope="module")
def weights() -> LlamaWeights:
    """Random weights, norms included."""
    return oracle.drawn_weights(3)


def test_served_requests_are_those_of_the_oracle(weights: LlamaWeights) -> None:
    """Every token and log-probability of five requests served together is that of the oracle."""
    assert [] == list(oracle.differences(weights))


def test_the_dense_model_is_the_oracle(weights: LlamaWeights) -> None:
    """The logits of a whole prefix are those of the oracle within the tolerance."""
    tokens = [at * 7 % oracle.MODEL.vocabulary for at in range(12)]
    dense = oracle.MODEL.dense_logits(weights, jnp.asarray(tokens, jnp.int32))
    right = oracle.logits(oracle.MODEL, weights, tokens)

    np.testing.assert_allclose(dense, right, atol=oracle.TOLERANCE)


CHANGES: dict[str, Callable[[Llama], Llama]] = {
    "rope": lambda model: evolve(model, rope_theta=9_000.0),
    "norm": lambda model: evolve(model, norm_eps=2e-2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_slightly_different_model_is_seen(weights: LlamaWeights, name: str) -> None:
    """An oracle with another base of rotation or another epsilon disagrees with what is served."""
    assert [] != list(oracle.differences(weights, CHANGES[name](oracle.MODEL)))


@pytest.mark.parametrize("part", LayerWeights._fields)
def test_each_weight_matters(weights: LlamaWeights, part: str) -> None:
    """One changed weight of the first layer changes the logits by more than the tolerance."""
    first = weights.layers[0]
    changed: Any = np.array(getattr(first, part))
    changed.ravel()[0] += 0.1
    other = weights._replace(layers=(first._replace(**{part: changed}), *weights.layers[1:]))
    tokens = list(range(8))
    right = oracle.logits(oracle.MODEL, weights, tokens)

    assert oracle.TOLERANCE < np.abs(right - oracle.logits(oracle.MODEL, other, tokens)).max()
