"""What an engine with a vocabulary and weights takes, what it refuses by name, and random weights.

The exact model has no weights and takes every token, so that fuzzing shows none of this.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from attrs import evolve
from jax import Array

from conformance.numerics.llama import SETUP, drawn_weights
from impl.engine import Engine
from impl.host import Host
from impl.models.llama import DTYPES, Llama
from impl.setup import Setup
from spec.vocabulary import InvalidInput, Params, Refused, Request, Tokens

WRONG: Final[dict[str, Callable[[Array], Array]]] = {
    "with NaN": lambda leaf: leaf.at[(-1,) * leaf.ndim].set(jnp.nan),
    "with an infinity": lambda leaf: leaf.at[(0,) * leaf.ndim].set(-jnp.inf),
    "of integers": lambda leaf: leaf.astype(jnp.int32),
    "with a row more": lambda leaf: jnp.concatenate([leaf, leaf[:1]]),
    "with one more axis": lambda leaf: leaf[None],
    "that was deleted": lambda leaf: _deleted(leaf + 0),
}
"""Arrays that are none of a model's weights; each is given as one of numpy, too, if it is there."""
CALLS: Final[dict[str, Callable[[Engine, int], object]]] = {
    "Request.prompt": lambda engine, token: _submitted(engine, (0, token)),
    "Params.stops": lambda engine, token: _submitted(engine, (0,), ((token,),)),
    "prompt": lambda engine, token: _assigned(engine, (0, token)),
    "token": lambda engine, token: _assigned(engine, (0,)).enqueue(0, token),
    "tokens": lambda engine, token: _assigned(engine, (0,)).propose(0, (token,)),
}
"""Calls that give an engine a token, each with the name of the argument."""
SUMMED: Final = {"embedding": 0, "output": 2}
"""The axes of an array over which a product with it sums, where it is not the first alone."""
DEVIATIONS: Final = 8
"""The most standard deviations by which the variance of random weights may be off."""


def differences(model: Llama) -> Iterator[str]:
    """What is wrong with the tokens and weights that an engine with this model takes, in words."""
    for dtype in DTYPES:
        setup = evolve(SETUP, model=evolve(model, dtype=dtype))
        weights = jax.tree.map(lambda leaf, kind=dtype: leaf.astype(kind), drawn_weights(0, model))
        yield from _of_weights(setup, weights)
    weights = drawn_weights(0, model)
    made = partial(Engine, evolve(SETUP, model=model), weights)
    yield from _of_tokens(made, model)
    yield from _of_lists(made(), model)
    yield from _of_random_weights(_wide(model))


def _of_weights(setup: Setup, weights: Any) -> Iterator[str]:
    """The largest numbers are finite; each wrong array is refused by its own name."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(weights)
    largest = [jnp.full_like(leaf, _largest(leaf.dtype)) for _, leaf in leaves]
    told = _named(partial(Engine, setup, jax.tree.unflatten(tree, largest)))
    if told is not None:
        yield f"the largest numbers of {setup.model} are refused: {told}"
    for at, (path, leaf) in enumerate(leaves):
        for how, wrong in _wrong(leaf):
            other = [wrong if at == index else one for index, (_, one) in enumerate(leaves)]
            wanted = "weights" + jax.tree_util.keystr(path)
            told = _named(partial(Engine, setup, jax.tree.unflatten(tree, other)))
            if told != wanted:
                yield f"{wanted} {how}: refused is {told}"


def _wrong(leaf: Array) -> Iterator[tuple[str, object]]:
    for how, change in WRONG.items():
        changed = change(leaf)
        yield how, changed
        if not changed.is_deleted():
            yield f"{how}, of numpy", np.asarray(changed)


def _largest(dtype: Any) -> float:
    """The largest finite number, whose bits are those of infinity less one."""
    bits = np.array(np.inf, dtype).view(np.uint32 if dtype == np.float32 else np.uint16)
    return float((bits - 1).view(dtype))


def _deleted(leaf: Array) -> Array:
    leaf.delete()
    return leaf


def _wide(model: Llama) -> Llama:
    """A model whose arrays have so many weights that their variance is known to some percent."""
    return evolve(model, vocabulary=300, embed=64, q_heads=8, kv_heads=4, head_dim=16, mlp=96)


def _of_random_weights(model: Llama) -> Iterator[str]:
    """Norms are 1, and other weights have mean 0 and variance 1 / fan-in."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.init(jax.random.key(0))):
        name, numbers = path[-1].name, np.asarray(leaf, np.float64)
        if numbers.ndim == 1:
            if (numbers != 1).any():
                yield f"{name} of random weights is not 1"
            continue
        fan_in = math.prod(numbers.shape[: SUMMED.get(name, 1)])
        mean, variance = fan_in**0.5 * numbers.mean(), fan_in * (numbers**2).mean()
        off = max(abs(mean), abs(variance - 1) / 2**0.5) * numbers.size**0.5
        if off > DEVIATIONS:
            yield f"{name} of random weights: mean {mean} and variance {variance}, scaled by fan-in"


def _of_tokens(made: Callable[[], Engine], model: Llama) -> Iterator[str]:
    """The last token is taken wherever one is given, and the one after it is refused."""
    for name, call in CALLS.items():
        for token, wanted in ((model.vocabulary - 1, None), (model.vocabulary, name)):
            told = _named(partial(call, made(), token))
            if told != wanted:
                yield f"token {token} of {model.vocabulary} as {name}: refused is {told}"


def _of_lists(engine: Engine, model: Llama) -> Iterator[str]:
    """A token that is none is refused in each place of each request, however many there are."""
    most = engine.setup.limits.prefill_seqs
    for call, count in ((engine.prefill, most), (Host(engine).generate, 2 * most)):
        for at, place in product(range(count), range(3)):
            prompts = [[0, 0, 0] for _ in range(count)]
            prompts[at][place] = model.vocabulary
            told = _named(partial(call, [_request(one, tuple(p)) for one, p in enumerate(prompts)]))
            if told != "Request.prompt":
                yield f"token {model.vocabulary} in request {at} of {count}: refused is {told}"


def _request(number: int, prompt: Tokens) -> Request:
    return Request(id=number, prompt=prompt, params=Params(max_new=1))


def _submitted(engine: Engine, prompt: Tokens, stops: tuple[Tokens, ...] = ()) -> None:
    params = Params(max_new=1, stops=stops)
    Host(engine).submit(Request(id=1, prompt=prompt, params=params))


def _assigned(engine: Engine, prompt: Tokens) -> Engine:
    """The engine, with this prompt written in slot 0."""
    engine.reserve(0)
    engine.assign(0, prompt, Params(max_new=4), request=1)
    batch = [(0, position) for position in range(len(prompt))]
    engine.allocate(batch)
    engine.write(batch)
    return engine


def _named(call: Callable[[], object]) -> str | None:
    """The name of the argument that is refused, or why the call is; None: nothing is."""
    try:
        call()
    except InvalidInput as error:
        return error.name
    except Refused as refused:
        return str(refused)
    return None
