"""Invalid arguments: every method of Engine and Host refuses them by name in every state.

The methods and their arguments are taken from the classes, and the invalid values from the type of
an argument, so that a new method without a check fails here.
"""

import inspect
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve
from engine_tools import KEPT, assert_identical, params, request, run

from impl.engine import Engine
from impl.host import Host, HostState
from impl.models.integer import IntegerModel
from impl.models.llama import Llama, LlamaWeights
from impl.setup import Setup
from impl.state import State
from spec.machines.actions import Prefill, Reserve
from spec.vocabulary import (
    CleanupMode,
    InvalidInput,
    Params,
    Reason,
    Refused,
    Request,
    ResetMode,
    Tokens,
)

REQUEST = request(7, (1,), 2)
Batch = Sequence[tuple[int, int] | None]
Chunks = Sequence[tuple[int, int]]
GOOD: dict[Any, Any] = {
    int: 1,
    int | None: None,
    Tokens: (1,),
    Params: params(1),
    Batch: [(0, 0)],
    Request: REQUEST,
    Chunks: [(0, 1)],
    Sequence[Request]: [REQUEST],
    ResetMode: ResetMode.PHYSICAL,
    State: None,
    str: "deliver",
    jax.Array: jnp.zeros((3,), jnp.int32),
}
NO_INTEGER: tuple[Any, ...] = (
    *(True, False, 1.0, 1.7, float("nan"), "1", b"1", [], (), (1,), {}, 1j, object()),
    *(np.int32(1), np.int64(1), np.bool_(1), np.float32(1), np.ones(1, np.int32)),
)
HOSTILE: dict[Any, tuple[Any, ...]] = {
    int: (None, *NO_INTEGER),
    int | None: NO_INTEGER,
    Tokens: (
        *(None, 1, (), "1", [1], (-1,), (True,), (1.0,), (2**31,), (2**40,), (10**30,)),
        *((None,), ("1",), (np.int32(1),), np.ones(1, np.int32)),
    ),
    Params: (None, 1, {}, Params, REQUEST),
    Batch: (
        *(None, 1, 1.5, "ab", b"ab", {}, {(0, 0)}, (entry for entry in [(0, 0)]), object()),
        *([(0,)], [(0, 0, 0)], [[0, 0]], ["00"], [0], [(True, 0)], [(0, 1.5)], [(None, 0)]),
        *([(0, np.int32(0))], np.zeros((1, 2), np.int32), [(0, 0), None, 7]),
    ),
    Chunks: (
        *(None, 1, 1.5, "ab", b"ab", {}, {(0, 1)}, (entry for entry in [(0, 1)]), object()),
        *([None], [(0,)], [(0, 1, 1)], [[0, 1]], ["01"], [0], [(True, 1)], [(0, 1.5)]),
        *([(None, 1)], [(0, np.int32(1))], np.zeros((1, 2), np.int32), [(0, 1), 7]),
    ),
    Request: (None, 1, {}, Request, [REQUEST], (REQUEST,), "request"),
    Sequence[Request]: (
        *(None, 1, "requests", {}, {REQUEST}, REQUEST, (one for one in [REQUEST])),
        *([None], [REQUEST, None], [[REQUEST]], [1], ["request"]),
    ),
    ResetMode: (None, "logical", "LOGICAL", 1, True, ResetMode, CleanupMode.NONE),
    State: (None, 1, (), {}, State, "state"),
    str: (None, 1, b"deliver", "", "deliver ", "stats", ["deliver"]),
    jax.Array: (None, 1, (), "report", np.zeros(3, np.int32), jnp.zeros(3), jnp.zeros((1, 3), int)),
}
"""Invalid values for each type of argument, beside a scalar of jax, which no argument takes."""
BEYOND: dict[str, tuple[Any, ...]] = dict.fromkeys(
    ("request", "choice", "token"), (-1, 2**31, 2**40, 10**30)
)
"""Integers out of range for each argument that is no slot."""
HUGE = (-1, -(2**31), -(10**30), 4, 2**31 - 1, 2**31, 2**32, 2**40, 2**63, 10**30)
"""Integers out of range for a slot, which the device refuses."""
SLOTS = {"slot", "parent", "child"}


def listed() -> Iterator[tuple[type, str, str]]:
    """Every named argument of every public method of Engine and Host, and of their constructors."""
    for cls in (Engine, Host):
        for method, function in inspect.getmembers(cls, inspect.isfunction):
            if not method.startswith("_"):
                found = [*inspect.signature(function).parameters.values()][1:]
                named = (one.name for one in found if one.kind is not one.VAR_POSITIONAL)
                yield from ((cls, method, name) for name in named)


ARGUMENTS = tuple(listed())


def types_of(cls: type, method: str) -> dict[str, Any]:
    """The types of a method's arguments, by name."""
    found = typing.get_type_hints(getattr(cls, method))
    return {name: kind for name, kind in found.items() if name != "return"}


def calls(cls: type, method: str, name: str, served: "Served") -> Callable[[object], object]:
    """A function of one argument of the method, with valid values for all others."""
    target = served.engine if cls is Engine else served.host
    given = {other: GOOD[kind] for other, kind in types_of(cls, method).items() if kind in GOOD}
    return lambda value: getattr(target, method)(**{**given, name: value})


class Served:
    """An engine and its host with work in progress, and a copy of their states."""

    def __init__(self) -> None:
        self.engine = run(Engine(KEPT), Reserve(2), Prefill((request(1, (1, 2, 3), 3),)))
        self.host = Host(self.engine)
        self.host.submit(request(5, (1,), 1))
        self._before, self._state = self.engine.extract(), self.host.state

    def assert_unchanged(self) -> None:
        """Assert that neither state has changed."""
        assert_identical(self._before, self.engine.extract())
        assert self._state == self.host.state


@pytest.fixture(scope="module")
def served() -> Served:
    """One engine and host for all cases, since no case changes them."""
    return Served()


@pytest.mark.parametrize(("cls", "method", "name"), ARGUMENTS)
def test_an_argument_refuses_what_it_cannot_be(
    cls: type, method: str, name: str, served: Served
) -> None:
    """Every invalid value is InvalidInput with the argument's name, and changes no state."""
    kind = types_of(cls, method)[name]
    call = calls(cls, method, name, served)
    values: tuple[Any, ...] = (*HOSTILE[kind], *BEYOND.get(name, ()), jnp.int32(1))
    for wrong in values:
        with pytest.raises(InvalidInput) as caught:
            call(wrong)
        assert name == caught.value.name, wrong
        assert all((caught.value.allowed, caught.value.remedy))
    served.assert_unchanged()


@pytest.mark.parametrize(("cls", "method", "name"), ARGUMENTS)
def test_an_integer_that_is_no_slot_is_refused(
    cls: type, method: str, name: str, served: Served
) -> None:
    """An integer out of range for a slot, however large, is refused as SLOT_RANGE."""
    kind = types_of(cls, method)[name]
    call = calls(cls, method, name, served)
    batches = kind in {Batch, Chunks}

    for number in HUGE if name in SLOTS or batches else ():
        with pytest.raises(Refused) as caught:
            call([(number, 0)] if batches else number)
        assert frozenset({Reason.SLOT_RANGE}) == caught.value.reasons, number
    positions: tuple[int, ...] = (-1, 2**31, 10**30) if kind == Batch else ()
    for number in positions:
        with pytest.raises(Refused, match="BATCH_POSITIONS"):
            call([(0, number)])
    served.assert_unchanged()


def test_every_method_is_looked_at() -> None:
    """The list of arguments contains the expected methods and slots."""
    found = {(cls.__name__, method) for cls, method, _ in ARGUMENTS}

    assert {("Engine", "clone"), ("Engine", "inject"), ("Host", "generate")} <= found
    assert SLOTS | {"batch"} <= {name for _, _, name in ARGUMENTS}


NO_FIELD: dict[str, tuple[Any, ...]] = {
    "geometry": (None, (8, 2, 4, 4), KEPT.limits),
    "limits": (None, {}, KEPT.geometry),
    "model": (None, "llama", IntegerModel, object(), 1),
    "cleanup": (None, "end", ResetMode.LOGICAL, 1),
    "logprobs": (None, 0, "yes"),
}
"""Invalid values for each field of a setup."""


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name, values in NO_FIELD.items() for wrong in values]
)
def test_a_setup_refuses_what_it_cannot_be(name: str, wrong: Any) -> None:
    """An invalid field of a setup is refused by name, before any compilation."""
    with pytest.raises(InvalidInput, match=rf"^Setup\.{name}: saw"):
        evolve(KEPT, **{name: wrong})


class Unhashable(IntegerModel):
    """A model that cannot be a static argument of jit."""

    __hash__ = None  # type: ignore[assignment]


def test_a_model_that_cannot_be_hashed_is_none() -> None:
    """A model that cannot be hashed is refused, since a setup is a key of compiled code."""
    with pytest.raises(InvalidInput, match=r"^Setup\.model: saw"):
        evolve(KEPT, model=Unhashable())


@pytest.mark.parametrize("wrong", [None, 1, Setup, KEPT.geometry])
def test_engine_and_host_are_made_of_what_they_need(wrong: Any) -> None:
    """An engine needs a setup, and a host needs an engine."""
    with pytest.raises(InvalidInput, match=r"^setup: saw"):
        Engine(wrong)
    with pytest.raises(InvalidInput, match=r"^engine: saw"):
        Host(wrong)


LLAMA = Llama(
    vocabulary=11,
    layers=2,
    embed=8,
    q_heads=2,
    kv_heads=1,
    head_dim=4,
    mlp=8,
    attention="reference",
)
SMALL = evolve(KEPT, model=LLAMA, logprobs=False)


@pytest.fixture(scope="module")
def weights() -> LlamaWeights:
    """Random weights, the same for every test."""
    drawn: LlamaWeights = jax.jit(LLAMA.init)(jax.random.key(1))
    return drawn


def replaced(weights: LlamaWeights, **changed: Any) -> LlamaWeights:
    """The weights with some arrays of the second layer replaced."""
    first, second = weights.layers
    return weights._replace(layers=(first, second._replace(**changed)))


@pytest.mark.parametrize("number", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("name", ["query", "down", "mlp_norm"])
def test_weights_that_are_not_finite_are_named(
    weights: LlamaWeights, name: str, number: float
) -> None:
    """A single number that is not finite is found when the engine is made."""
    array = getattr(weights.layers[1], name)
    wrong = array.ravel().at[-1].set(number).reshape(array.shape)

    with pytest.raises(InvalidInput, match=rf"^weights\.layers\[1\]\.{name}: saw 'NaN or an inf"):
        Engine(SMALL, replaced(weights, **{name: wrong}))


def test_weights_of_another_shape_dtype_or_tree_are_named(weights: LlamaWeights) -> None:
    """The error names the array, with its own shape and dtype and the expected ones."""
    query = weights.layers[1].query
    for wrong, seen in (
        (query[:, :1], r"'float32\[8, 1, 4\]'"),
        (query.astype(jnp.bfloat16), r"'bfloat16\[8, 2, 4\]'"),
        (np.asarray(query, np.float64), r"'float64\[8, 2, 4\]'"),
        (query.tolist(), "'.* arrays"),
        ("query", "'query'"),
        (None, "'.* arrays; the first difference: .*query"),
    ):
        with pytest.raises(InvalidInput, match=rf"^weights.*: saw {seen}") as caught:
            Engine(SMALL, replaced(weights, query=wrong))
        assert "float32[8, 2, 4]" in caught.value.allowed or "array" in caught.value.allowed
    others = ((), None, weights._asdict(), weights._replace(layers=weights.layers[:1]))
    for tree in (*others, weights._replace(layers=[*weights.layers])):  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"^weights: saw .* arrays"):
            Engine(SMALL, tree)
    with pytest.raises(InvalidInput, match=r"^weights: saw .1 arrays"):
        Engine(KEPT, {"norm": jnp.ones(2)})
    gone = jnp.ones_like(query)
    gone.delete()
    with pytest.raises(InvalidInput, match=r"query: saw 'a deleted array'"):
        Engine(SMALL, replaced(weights, query=gone))
    Engine(SMALL, jax.tree.map(np.asarray, weights))


def test_a_token_past_the_vocabulary_is_refused(weights: LlamaWeights) -> None:
    """A token past the vocabulary is refused by every method, also in a stop sequence."""
    engine = Engine(SMALL, weights)
    host, slot = Host(engine), engine.reserve()
    before = engine.extract()
    wrong = request(1, (1, 11), 1)
    stops = request(1, (1,), 1, stops=((10, 11),))
    for call in (
        lambda: engine.assign(slot, (11,), params(1), request=1),
        lambda: engine.assign(slot, (1,), stops.params, request=1),
        lambda: engine.enqueue(slot, 11),
        lambda: engine.prefill([wrong]),
        lambda: engine.prefill([stops]),
        lambda: host.submit(wrong),
        lambda: host.generate([request(2, (1,), 1), wrong]),
    ):
        with pytest.raises(InvalidInput, match="saw 11, allowed: token ids below 11, the model"):
            call()

    assert_identical(before, engine.extract())
    assert HostState() == host.state
    engine.assign(slot, (10,), params(3, (10,)), request=1)


def test_the_exact_model_takes_any_token() -> None:
    """The exact model accepts any token, as the specification does."""
    engine = Engine(KEPT)
    engine.assign(engine.reserve(), (2**31 - 1,), params(1), request=1)


def test_a_state_of_other_sizes_is_not_injected() -> None:
    """The error names the array, with its own shape and the expected one."""
    engine = Engine(KEPT)
    held = engine.extract()
    changes: dict[str, Any] = {
        "pages.rows": held.pages.rows[:1],
        "slots.known": np.asarray(held.slots.known, np.int64),
        "slots.used": None,
        "pages.counts": [1, 2],
        "pages.cache": held.pages.cache[:1],
        "queue": held.outputs,
    }
    for path, wrong in changes.items():
        component, _, name = path.partition(".")
        part = getattr(held, component)._replace(**{name: wrong}) if name else wrong
        with pytest.raises(InvalidInput, match=rf"^state(\.{path})?: saw"):
            engine.inject(held._replace(**{component: part}))
    assert_identical(held, engine.extract())
