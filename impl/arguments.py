"""Conversion of a caller's arguments to the static shapes of the entry points.

Arguments that are too many or too long for those shapes are refused. A value that is not an id, a
token or a list raises InvalidInput, by the rules of the vocabulary; so does a numpy integer, which
int() converts. A slot id out of range becomes -1, which the device refuses: INVALID means "any" or
"padding" there, and a caller must not pass it by accident.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from impl import entries
from impl.models.protocol import Weights
from impl.setup import Setup
from impl.state import NO_TOKEN, State
from impl.state import Params as DeviceParams
from impl.state.packing import shapes
from impl.steps.prefill import PrefillWork
from spec.vocabulary import (
    INVALID,
    InvalidInput,
    Params,
    Reason,
    Refusal,
    Request,
    Tokens,
    refused,
)
from spec.vocabulary.rules import BATCH, CHUNKS, INT32, PROMPT, SLOT, SLOT_OR_ANY, Rule, a

Ints = np.ndarray[Any, np.dtype[np.int32]]
_SMALLEST: Final = float(np.finfo(np.float32).tiny)
_LARGEST: Final = float(np.finfo(np.float32).max)


LISTED: Final = Rule(
    lambda value: isinstance(value, Sequence) and not isinstance(value, str | bytes),
    "a list or a tuple",
    "Pass a list, even for one: [it].",
)


ENTRY: Final = Rule(
    lambda value: isinstance(value, str) and value in entries.ALL,
    "the name of an entry point",
    "See impl.entries.ALL.",
)
REPORT: Final = Rule(
    lambda value: isinstance(value, Array) and value.ndim == 1 and value.dtype == jnp.int32,
    "a report, an array i32[N]",
    "Pass what Engine.start has returned.",
)


def slot(given: int, *, name: str = "slot") -> np.int32:
    """A slot id, or -1 for one out of range that no int32 holds, or that means any slot."""
    SLOT.require(name, given)
    return np.int32(given if -INVALID <= given < INVALID else -1)


def slot_or_any(given: int | None, *, name: str = "slot") -> np.int32:
    """INVALID for None, which means the lowest free slot; any other id as `slot` gives it."""
    SLOT_OR_ANY.require(name, given)
    return np.int32(INVALID) if given is None else slot(given, name=name)


def number(name: str, given: int) -> np.int32:
    """A request id, a choice or a length."""
    INT32.require(name, given)
    return np.int32(given)


def token(setup: Setup, given: int) -> np.int32:
    """A token id of the model's vocabulary."""
    INT32.require("token", given)
    _check_vocabulary(setup, "token", (given,))
    return np.int32(given)


def batch(setup: Setup, given: Sequence[tuple[int, int] | None]) -> tuple[Ints, Ints]:
    """Slots and positions i32[prefill_tokens], padded; raises Refused if there are too many."""
    LISTED.require("batch", given)
    BATCH.require("batch", tuple(given))
    width = setup.limits.prefill_tokens
    if len(given) > width:
        raise refused([Refusal(Reason.BATCH_WIDTH, len(given), f"at most {width} entries")])
    slots = np.full((width,), INVALID, np.int32)
    positions = np.zeros((width,), np.int32)
    for index, entry in enumerate(given):
        if entry is not None:
            slots[index] = slot(entry[0])
            positions[index] = entry[1] if 0 <= entry[1] < INVALID else -1
    return slots, positions


def chunks(setup: Setup, given: Sequence[tuple[int, int]]) -> Ints:
    """How many tokens each slot reads, i32[S].

    Raises Refused for a slot out of range, two chunks of a slot, and a chunk without a token.
    """
    LISTED.require("chunks", given)
    CHUNKS.require("chunks", tuple(given))
    counts = np.zeros((setup.geometry.slots,), np.int32)
    for slot_id, _ in given:
        if not 0 <= slot_id < setup.geometry.slots:
            allowed = f"0 to {setup.geometry.slots - 1}"
            raise refused([Refusal(Reason.SLOT_RANGE, slot_id, allowed)])
    for chunk in given:
        if counts[chunk[0]] or chunk[1] < 1:
            allowed = "one chunk of a slot, of 1 token or more"
            raise refused([Refusal(Reason.BATCH_POSITIONS, chunk, allowed)])
        counts[chunk[0]] = min(chunk[1], INVALID)
    return counts


def prompt(setup: Setup, tokens: Tokens, *, name: str = "prompt") -> tuple[Ints, np.int32]:
    """Tokens i32[L], padded, and their number; the device refuses a number above L."""
    PROMPT.require(name, tokens)
    _check_vocabulary(setup, name, tokens)
    length = setup.geometry.max_len
    padded = np.zeros((length,), np.int32)
    kept = tokens[:length]
    padded[: len(kept)] = kept
    return padded, np.int32(min(len(tokens), length + 1))


def check_params(setup: Setup, given: Params) -> None:
    """Raise InvalidInput unless these are Params with stop tokens of the model's vocabulary."""
    a(Params).require("params", given)
    for stop in given.stops:
        _check_vocabulary(setup, "Params.stops", stop)


def check_requests(setup: Setup, requests: Sequence[Request]) -> None:
    """Raise InvalidInput unless these are requests with tokens of the model's vocabulary."""
    LISTED.require("requests", requests)
    for one in requests:
        a(Request).require("requests", one)
        _check_vocabulary(setup, "Request.prompt", one.prompt)
        check_params(setup, one.params)


def check_weights(setup: Setup, weights: Weights) -> None:
    """Raise InvalidInput unless the weights are the model's, and finite.

    Each array is reduced to one boolean on its device; all booleans are then read at once.
    """
    leaves = _check_arrays("weights", weights, setup.model.weight_shapes())
    floats = {
        name: leaf for name, leaf in leaves.items() if jnp.issubdtype(leaf.dtype, jnp.inexact)
    }
    finite = jax.device_get({name: _all_finite(leaf) for name, leaf in floats.items()})
    for name in floats:
        if not finite[name]:
            raise InvalidInput(
                name,
                seen="NaN or an infinity",
                allowed="finite numbers",
                remedy="Check the source of the weights: every token would be wrong.",
            )


def check_state(setup: Setup, state: State) -> None:
    """Raise InvalidInput unless the arrays have the shapes and dtypes of this setup."""
    a(State).require("state", state)
    _check_arrays("state", state, shapes(setup))


def params(setup: Setup, given: Sequence[Params], requests: Sequence[int]) -> DeviceParams:
    """Params and request ids as arrays, one row each."""
    return _params(setup, given, requests, width=len(given))


def prefill_work(setup: Setup, requests: Sequence[Request]) -> PrefillWork:
    """Prompts, concatenated and padded to the limits; call `check_prefill` first."""
    width = setup.limits.prefill_seqs
    tokens = np.zeros((setup.limits.prefill_tokens,), np.int32)
    lens, generations = np.zeros((width,), np.int32), np.zeros((width,), np.int32)
    end = 0
    for index, request in enumerate(requests):
        tokens[end : end + len(request.prompt)] = request.prompt
        end += len(request.prompt)
        lens[index] = len(request.prompt)
        generations[index] = request.n_generations
    rows = _params(
        setup,
        [request.params for request in requests],
        [request.id for request in requests],
        width=width,
    )
    packed = _for_jit(tokens, lens, generations)
    return PrefillWork(packed[0], packed[1], packed[2], rows)


def check_prefill(setup: Setup, requests: Sequence[Request]) -> None:
    """Raise Refused unless the prompts fit one prefill; InvalidInput unless they are requests."""
    check_requests(setup, requests)
    limits = setup.limits
    tokens = sum(len(request.prompt) for request in requests)
    if not 0 < len(requests) <= limits.prefill_seqs or tokens > limits.prefill_tokens:
        allowed = f"1 to {limits.prefill_seqs} prompts, at most {limits.prefill_tokens} tokens"
        seen = f"{len(requests)} prompts, {tokens} tokens"
        raise refused([Refusal(Reason.PREFILL_WIDTH, seen, allowed)])


def check_stops(setup: Setup, given: Iterable[Params]) -> None:
    """Raise Refused unless every stop sequence fits the static table."""
    limits = setup.limits
    for one in given:
        longest = max((len(stop) for stop in one.stops), default=0)
        if len(one.stops) > limits.stops or longest > limits.stop_len:
            seen = f"{len(one.stops)}, the longest of {longest} tokens"
            allowed = f"at most {limits.stops} of {limits.stop_len} tokens"
            raise refused([Refusal(Reason.STOPS, seen, allowed)])


def named(pairs: Iterable[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """The (request, choice) pairs that have a request: -1 stands for none."""
    return frozenset(pair for pair in pairs if pair[0] >= 0)


_all_finite = jax.jit(lambda leaf: jnp.isfinite(leaf).all())


def _check_vocabulary(setup: Setup, name: str, tokens: Tokens) -> None:
    vocabulary = setup.model.vocabulary
    if max(tokens) >= vocabulary:
        raise InvalidInput(
            name,
            seen=max(tokens),
            allowed=f"token ids below {vocabulary}, the model's vocabulary",
            remedy="Use the tokenizer that the weights were trained with.",
        )


def _check_arrays(name: str, given: Any, expected: Any) -> dict[str, Array]:
    """The arrays of a pytree by path; raises InvalidInput where it is not as expected."""
    wanted, _ = jax.tree_util.tree_flatten_with_path(expected)
    try:
        found, _ = jax.tree_util.tree_flatten_with_path(given)
    except ValueError as error:  # keys that cannot be ordered
        raise InvalidInput(
            name, seen=str(error), allowed="a pytree of arrays", remedy="Make it for this setup."
        ) from None
    leaves = {name + jax.tree_util.keystr(path): leaf for path, leaf in found}
    needs = {name + jax.tree_util.keystr(path): leaf for path, leaf in wanted}
    remedy = "Make them for this setup."
    seen: Any = jax.tree.structure(given)
    if seen != jax.tree.structure(expected):
        differs = (path for path in (*leaves, *needs) if (path in leaves) != (path in needs))
        odd = next(differs, "a container")
        raise InvalidInput(
            name,
            seen=f"{len(leaves)} arrays; the first difference: {odd}",
            allowed=f"the {len(needs)} arrays of the model, in the same containers",
            remedy=remedy,
        )
    for path, leaf in leaves.items():
        if not isinstance(leaf, Array) and type(leaf) is not np.ndarray:
            raise InvalidInput(path, seen=leaf, allowed="an array", remedy=remedy)
        if isinstance(leaf, Array) and leaf.is_deleted():
            raise InvalidInput(path, seen="a deleted array", allowed="an array", remedy=remedy)
        if (leaf.shape, leaf.dtype) != (needs[path].shape, needs[path].dtype):
            raise InvalidInput(
                path, seen=_described(leaf), allowed=_described(needs[path]), remedy=remedy
            )
    return leaves


def _described(leaf: Any) -> str:
    order = "" if leaf.dtype.isnative else " in another byte order"
    return f"{leaf.dtype.name}{list(leaf.shape)}{order}"


def _temperature(given: float) -> float:
    """The nearest finite float32; a positive number does not become 0, which means greedy."""
    return min(max(given, _SMALLEST), _LARGEST) if given else 0.0


def _params(
    setup: Setup, given: Sequence[Params], requests: Sequence[int], *, width: int
) -> DeviceParams:
    limits = setup.limits
    stops = np.full((width, limits.stops, limits.stop_len), NO_TOKEN, np.int32)
    stop_lens = np.zeros((width, limits.stops), np.int32)
    numbers = np.zeros((3, width), np.int32)
    temperatures = np.zeros((width,), np.float32)
    for row, (one, request) in enumerate(zip(given, requests, strict=True)):
        most = setup.geometry.max_len + 1
        numbers[:, row] = request, min(one.max_new, most), one.seed
        temperatures[row] = _temperature(one.temperature)
        for index, stop in enumerate(one.stops):
            stops[row, index, limits.stop_len - len(stop) :] = stop
            stop_lens[row, index] = len(stop)
    return DeviceParams(*_for_jit(*numbers, temperatures, stops, stop_lens))


def _for_jit(*arrays: np.ndarray[Any, Any]) -> list[Array]:
    """The same arrays, typed as jax arrays: jit accepts numpy arrays in their place."""
    return cast(list[Array], list(arrays))
