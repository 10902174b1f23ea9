"""Draws from logits: greedy or by temperature, the same whatever else is in the batch."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float32, Int32, Key

from spec.vocabulary.errors import InvalidInput


def key(seed: ArrayLike, choice: ArrayLike, position: ArrayLike) -> Key[Array, ""]:
    """The random key of one draw: of a request's seed, a choice, and the drawn token's position.

    i32[] each. Round, slot and batch are left out, so that rescheduling and recomputation cannot
    change a draw.
    """
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), choice), position)


def draw(
    logits: Array, seeds: Array, choices: Array, positions: Array, temperatures: Array
) -> tuple[Array, Array]:
    """Draw one token per row: (tokens i32[N], log-probabilities f32[N]).

    logits [N, vocabulary]; seeds, choices and positions i32[N]; temperatures f32[N]. Temperature
    0 takes the first of the largest logits. The log-probability is that of the drawn token under
    the logits as given, before temperature. Raises InvalidInput if the shapes do not fit.
    """
    numbers = (seeds, choices, positions, temperatures)
    if logits.ndim != 2 or any(part.shape != logits.shape[:1] for part in numbers):
        raise InvalidInput(
            "draw",
            seen=(logits.shape, *(part.shape for part in numbers)),
            allowed="[N, vocabulary] and four times [N]",
            remedy="Give each row its own seed, choice, position and temperature.",
        )
    return jax.vmap(_draw_one)(logits.astype(jnp.float32), *numbers)


def _draw_one(
    logits: Float32[Array, " vocabulary"],
    seed: Int32[Array, ""],
    choice: Int32[Array, ""],
    position: Int32[Array, ""],
    temperature: Float32[Array, ""],
) -> tuple[Int32[Array, ""], Float32[Array, ""]]:
    greedy = temperature <= 0
    # The largest becomes 0, so that no temperature, however small, makes two of them infinite.
    softened = (logits - logits.max()) / jnp.where(greedy, 1.0, temperature)
    random = jax.random.categorical(key(seed, choice, position), softened)
    token = jnp.where(greedy, jnp.argmax(logits), random).astype(jnp.int32)
    return token, jax.nn.log_softmax(logits)[token]
