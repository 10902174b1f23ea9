"""The float64 oracle of Llama: it agrees with the served model, and sees each part of it."""

from collections.abc import Callable
from typing import Any

import jax
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


def test_a_wrong_dense_model_is_seen(
    weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dense model that is off by more than the tolerance is a difference, also at one logit."""
    right = Llama.dense_logits

    def wrong(model: Llama, *rest: Any) -> jax.Array:
        return right(model, *rest).at[3, 5].add(3 * oracle.TOLERANCE)

    monkeypatch.setattr(Llama, "dense_logits", wrong)

    (told,) = oracle.differences(weights)

    assert told.startswith("the logits of the dense model")


def test_near_ties_are_told(weights: LlamaWeights) -> None:
    """Two tokens with one head have equal logits, so that a draw between them is not certain."""
    head = np.array(weights.head)
    head[:, 1::2] = head[:, :-1:2]

    told = list(oracle.differences(weights._replace(head=jnp.asarray(head))))

    assert any("nearly tie" in one for one in told)


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
