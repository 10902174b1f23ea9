"""Shapes and dtypes in signatures: in tests a wrong one is found while a step is traced."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args, get_type_hints

import jax
import jax.numpy as jnp
import pytest
from conftest import TRACED, UNTRACED
from engine_tools import KEPT
from jaxtyping import TypeCheckError

import impl
from impl.state import initial, queue
from impl.steps import queueing

ROOT = Path(__file__).resolve().parents[2]
HOST = {
    "impl.ahead",
    "impl.arguments",
    "impl.engine",
    "impl.entries",
    "impl.events",
    "impl.host",
    "impl.interrupts",
    "impl.setup",
    "impl.together",
}
"""The modules of the host, which are not traced."""
CHECK_NOTHING = """\
import sys
from impl.engine import Engine
from impl.state import queue
assert not hasattr(queue.push, "__wrapped__")
assert "beartype" not in sys.modules"""


def numbers(count: int, dtype: str = "int32") -> jax.Array:
    """An array of this many zeros."""
    return jnp.zeros((count,), dtype)


@pytest.mark.parametrize(
    ("slots", "tokens", "dtype"),
    [(2, 3, "int32"), (3, 2, "int32"), (2, 2, "float32"), (2, 2, "uint32")],
)
def test_a_wrong_shape_is_caught_while_tracing(slots: int, tokens: int, dtype: str) -> None:
    """Arrays of unequal lengths, or of a wrong dtype, are found while tracing."""

    def push() -> object:
        there = jnp.ones((2,), jnp.bool_)
        held = initial(KEPT).queue
        return queue.push(held, numbers(slots), numbers(tokens, dtype), numbers(2), there)

    with pytest.raises(TypeCheckError, match=r"impl\.state\.queue\.push"):
        jax.eval_shape(push)


def test_an_entry_point_is_checked_by_what_calls_it() -> None:
    """An array in place of a scalar slot is found before the step runs."""
    enqueue = partial(queueing.enqueue, KEPT, ())

    with pytest.raises(TypeCheckError, match=r"impl\.steps\.queueing\.enqueue"):
        jax.eval_shape(enqueue, initial(KEPT), numbers(2), jnp.int32(1))


def test_every_module_is_traced_and_checked_or_is_of_the_host() -> None:
    """Each module is traced and checked, or is on one of the lists of those that are not."""
    names = {found.name for found in pkgutil.walk_packages(impl.__path__, "impl.")}
    prefixes = tuple(f"{one}." for one in TRACED)
    traced = {name for name in names if f"{name}.".startswith(prefixes)} - UNTRACED

    assert names - traced == HOST | UNTRACED
    for module in (importlib.import_module(name) for name in traced):
        own = [one for _, one in inspect.getmembers(module, inspect.isfunction)]
        assert all(hasattr(one, "__wrapped__") for one in own if one.__module__ == module.__name__)


@pytest.mark.parametrize("name", sorted(UNTRACED))
def test_a_module_that_is_not_checked_names_no_array(name: str) -> None:
    """The signatures of an unchecked module name no array."""
    found = vars(importlib.import_module(name)).values()
    own = [one for one in found if inspect.isfunction(one) and one.__module__ == name]

    assert own
    assert not any(hasattr(one, "__wrapped__") for one in own)
    assert not any(jax.Array in (hint, *get_args(hint)) for one in own for hint in hints(one))


def hints(function: Callable[..., object]) -> list[object]:
    """The types in the signature of a function."""
    return list(get_type_hints(function).values())


def test_outside_the_tests_nothing_is_checked() -> None:
    """In a process without the tests, functions are unwrapped and the checker is not loaded."""
    subprocess.run([sys.executable, "-c", CHECK_NOTHING], cwd=ROOT, check=True)
