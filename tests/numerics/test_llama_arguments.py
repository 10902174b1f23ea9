"""The harness of what an engine with weights takes: ours is right, and wrong ones are seen."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from deep import deep_after
from jax import Array

from conformance.numerics import llama, llama_arguments
from impl import arguments
from impl.models.llama import Llama
from impl.setup import Setup
from spec.vocabulary import InvalidInput, Request


@pytest.mark.deep
def test_our_engine_takes_and_refuses_what_it_should() -> None:
    """Every token of the vocabulary and every finite number is taken, and nothing else."""
    assert [] == list(llama_arguments.differences(llama.MODEL))


def wrong_from(vocabulary: int) -> object:
    """A check that takes tokens below another number than that of the model."""

    def check(_setup: object, name: str, tokens: tuple[int, ...]) -> None:
        if max(tokens) >= vocabulary:
            raise InvalidInput(name, seen=tokens, allowed="", remedy="")

    return check


def checks_the_first_alone(setup: Setup, requests: Sequence[Request]) -> None:
    """Check as many requests as a prefill takes, and no more."""
    CHECK(setup, requests[: setup.limits.prefill_seqs])


def checks_the_ends(setup: Setup, name: str, tokens: tuple[int, ...]) -> None:
    """Check the first token and the last one."""
    VOCABULARY(setup, name, (tokens[0], tokens[-1]))


CHECK, VOCABULARY = arguments.check_requests, arguments._check_vocabulary
PLANTED: dict[str, list[object]] = {
    "check_requests": [checks_the_first_alone],
    "_check_vocabulary": [
        wrong_from(llama.MODEL.vocabulary + 1),
        wrong_from(36),
        checks_the_ends,
    ],
    "_all_finite": [
        lambda leaf: jnp.isfinite(leaf.sum()),
        lambda leaf: ~jnp.isnan(leaf).any(),
        lambda leaf: jnp.isfinite(leaf.ravel()[:-1]).all(),
        lambda leaf: not isinstance(leaf, Array) or jnp.isfinite(leaf).all(),
    ],
    "_check_arrays": [lambda *_: {}],
}
"""Checks that let something pass, or refuse too much."""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name, several in PLANTED.items() for wrong in several]
)
def test_a_check_that_is_wrong_is_seen(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: object
) -> None:
    """The vocabulary off by one, finite numbers refused, and arrays that nobody looks at."""
    monkeypatch.setattr(arguments, name, wrong)

    assert next(llama_arguments.differences(llama.MODEL))


@pytest.mark.parametrize("part", deep_after(3, range(9)))
@pytest.mark.parametrize("how", ["larger", "shifted"])
def test_random_weights_of_another_variance_or_mean_are_seen(
    monkeypatch: pytest.MonkeyPatch, part: int, how: str
) -> None:
    """In each array: twice the variance, or a quarter of a standard deviation more."""
    right = Llama._normal

    def other(model: Llama, key: Array, parts: list[Any]) -> list[Array]:
        drawn = right(model, key, parts)
        changed = drawn[part] * 2**0.5 if how == "larger" else drawn[part] + drawn[part].std() / 4
        return [*drawn[:part], changed, *drawn[part + 1 :]]

    wide = llama_arguments._wide(llama.MODEL)
    assert [] == [*llama_arguments._of_random_weights(wide)]
    monkeypatch.setattr(Llama, "_normal", other)

    assert 1 == len([*llama_arguments._of_random_weights(wide)])


def test_norms_of_random_weights_that_are_not_one_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the three kinds."""
    right = Llama.init
    monkeypatch.setattr(
        Llama,
        "init",
        lambda model, key: jax.tree.map(
            lambda leaf: leaf + (leaf.ndim == 1) * 0.01, right(model, key)
        ),
    )

    told = [*llama_arguments._of_random_weights(llama.MODEL)]

    assert {"attention_norm", "mlp_norm", "norm"} <= {text.partition(" ")[0] for text in told}
