"""Checks of traced signatures, installed by the import hook of `conftest`."""

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
from beartype import BeartypeConf, FrozenDict, beartype
from jax import Array
from jaxtyping import AbstractArray

_check = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Array: Array | np.ndarray})))
"""A hint of `Array` without axes accepts numpy arrays too, as jit does."""


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its signature checked, if the signature names axes.

    A function that names no axes is public, and checks its arguments itself.
    """
    named = any(_names_axes(hint) for hint in function.__annotations__.values())
    return _check(function) if named else function


def _names_axes(hint: object) -> bool:
    own = isinstance(hint, type) and issubclass(hint, AbstractArray)
    return own or any(_names_axes(part) for part in get_args(hint))
