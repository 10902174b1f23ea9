"""The slots: the tokens and lengths of each, and how its request samples and stops.

A new field is a line in `Slots` and one in `make`. It is then copied by a fork, cleared by a
release unless it is in KEPT, and packed by its rank (see `impl.state.packing`).
"""

from typing import Any, Final, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32

from impl.setup import Setup
from impl.status import target
from spec.vocabulary import INVALID, FinishReason

FINISH_CODES: Final = {FinishReason.LIMIT: 1, FinishReason.STOP: 2}
"""The codes in `Slots.finished` and `Outputs.reasons`; 0 is "not finished"."""

NO_TOKEN: Final = -1
"""Fills stop sequences that are shorter than the table; matches any token there."""

KEPT: Final = ("tokens", "max_new", "requests", "choices", "seeds", "temperatures", "logprobs")
"""Fields that a release does not clear: nothing reads them before `begin` or a fork."""

BLANK: Final = {"used": False, "stale": False, "stops": NO_TOKEN}
"""The values of fields in an unused slot, where they are not 0."""


class Params(NamedTuple):
    """N requests on the device: how to sample them and when to stop; fields as in Slots."""

    requests: Int32[Array, " N"]
    max_new: Int32[Array, " N"]
    seeds: Int32[Array, " N"]
    temperatures: Float32[Array, " N"]
    stops: Int32[Array, "N stops stop_len"]
    stop_lens: Int32[Array, "N stops"]


class Slots(NamedTuple):
    """known, allocated, written: the three lengths. prompt_lens: 0 while no prompt is assigned.

    committed: how many leading cells have final tokens. proposed: how many draft tokens are in
    `tokens` from `known` on. contexts: what the keys of its pages begin with. stale: whether it has
    cells from before the index was dropped. stops: right-aligned, NO_TOKEN before the first.
    finished: see FINISH_CODES. logprobs: K is L, or 0 where they are not kept.
    """

    used: Bool[Array, " S"]
    tokens: Int32[Array, "S L"]
    known: Int32[Array, " S"]
    allocated: Int32[Array, " S"]
    written: Int32[Array, " S"]
    committed: Int32[Array, " S"]
    proposed: Int32[Array, " S"]
    contexts: Int32[Array, " S"]
    stale: Bool[Array, " S"]
    prompt_lens: Int32[Array, " S"]
    max_new: Int32[Array, " S"]
    requests: Int32[Array, " S"]
    choices: Int32[Array, " S"]
    seeds: Int32[Array, " S"]
    temperatures: Float32[Array, " S"]
    stops: Int32[Array, "S stops stop_len"]
    stop_lens: Int32[Array, "S stops"]
    finished: Int32[Array, " S"]
    logprobs: Float32[Array, "S K"]


def make(setup: Setup) -> Slots:
    """Every slot unused."""
    limits, slots, length = setup.limits, setup.geometry.slots, setup.geometry.max_len
    number, per_slot = jnp.int32, (slots,)
    return Slots(
        used=jnp.zeros(per_slot, jnp.bool_),
        tokens=jnp.zeros((slots, length), number),
        known=jnp.zeros(per_slot, number),
        allocated=jnp.zeros(per_slot, number),
        written=jnp.zeros(per_slot, number),
        committed=jnp.zeros(per_slot, number),
        proposed=jnp.zeros(per_slot, number),
        contexts=jnp.zeros(per_slot, number),
        stale=jnp.zeros(per_slot, jnp.bool_),
        prompt_lens=jnp.zeros(per_slot, number),
        max_new=jnp.zeros(per_slot, number),
        requests=jnp.zeros(per_slot, number),
        choices=jnp.zeros(per_slot, number),
        seeds=jnp.zeros(per_slot, number),
        temperatures=jnp.zeros(per_slot, jnp.float32),
        stops=jnp.full((slots, limits.stops, limits.stop_len), BLANK["stops"], number),
        stop_lens=jnp.zeros((slots, limits.stops), number),
        finished=jnp.zeros(per_slot, number),
        logprobs=jnp.zeros((slots, length if setup.logprobs else 0), jnp.float32),
    )


def lowest_unused(slots: Slots, held: Int32[Array, " S"], size: int) -> Int32[Array, " {size}"]:
    """The `size` lowest slots that are unused, and that 0 steps in flight hold.

    Where there are fewer, INVALID fills the array.
    """
    assert 0 < size <= slots.used.shape[0], "the table has this many slots"
    (unused,) = jnp.nonzero(is_unused(slots, held), size=size, fill_value=INVALID)
    return unused.astype(jnp.int32)


def is_unused(slots: Slots, held: Int32[Array, " S"]) -> Bool[Array, " S"]:
    """Which slots a sequence may begin in. held: how many steps in flight hold each."""
    return ~slots.used & (held == 0)


def put(slots: Slots, at: Int32[Array, "*N"], **changed: Any) -> Slots:
    """Set the named fields of some slots, each to its values; a slot past the table is dropped."""
    held = slots._asdict()
    return slots._replace(
        **{name: held[name].at[at].set(value, mode="drop") for name, value in changed.items()}
    )


def begin(
    slots: Slots,
    at: Int32[Array, " N"],
    choices: Int32[Array, " N"],
    prompt_lens: Int32[Array, " N"],
    params: Params,
) -> Slots:
    """Set prompt lengths and params of N slots; a slot past the table is dropped."""
    lengths = {"known": prompt_lens, "prompt_lens": prompt_lens}
    return put(slots, at, used=True, choices=choices, **lengths, **params._asdict())


def fork(
    slots: Slots,
    parents: Int32[Array, " N"],
    children: Int32[Array, " N"],
    choices: Int32[Array, " N"],
) -> Slots:
    """Copy N parents to children of other choices; a child past the table is dropped."""
    copied = {name: field[parents] for name, field in slots._asdict().items()}
    return put(slots, children, **copied | {"choices": choices})


def release(slots: Slots, at: Int32[Array, " N"]) -> Slots:
    """Make N slots unused; INVALID, or a slot past the table, is dropped."""
    cleared = {name: BLANK.get(name, 0) for name in Slots._fields if name not in KEPT}
    return put(slots, target(at != INVALID, at, slots.used.shape[0]), **cleared)
