"""The checker of signatures that the import hook of `conftest` puts on what is traced."""

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
from beartype import BeartypeConf, FrozenDict, beartype
from jax import Array
from jaxtyping import AbstractArray

_check = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Array: Array | np.ndarray})))
"""An array whose axes are not named may be numpy's: jit takes either."""


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its signature checked, if that names axes.

    One that names none is public, and judges itself what a caller gives it.
    """
    named = any(_names_axes(hint) for hint in function.__annotations__.values())
    return _check(function) if named else function


def _names_axes(hint: object) -> bool:
    own = isinstance(hint, type) and issubclass(hint, AbstractArray)
    return own or any(_names_axes(part) for part in get_args(hint))
