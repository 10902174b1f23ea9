"""The check of `pl.multiple_of`: a compiler believes this promise, and the interpreter ignores it.

On a TPU a kernel that breaks it reads or writes elsewhere, or anything else may happen. It is
broken even where nothing uses the number. A kernel that imported the function by its own name
before is not checked.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import lcm
from typing import Final

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

BROKEN: Final = "is no multiple of"
"""What is printed of a promise that is not kept, after the number and before the divisor."""
Promise = Callable[[Array, int | Sequence[int]], Array]
"""As `pl.multiple_of`."""


@contextmanager
def checked() -> Iterator[None]:
    """A kernel that is traced inside this block prints each promise that it does not keep."""
    right = pl.multiple_of
    setattr(pl, "multiple_of", _checked(right))  # noqa: B010 - mypy takes it for a constant
    try:
        yield
    finally:
        setattr(pl, "multiple_of", right)  # noqa: B010 - as above


def _checked(right: Promise) -> Promise:
    def multiple_of(x: Array, values: int | Sequence[int]) -> Array:
        promised = right(x, values)
        divisor = values if isinstance(values, int) else lcm(*values)
        rest = promised  # 0 is the only multiple of more than it can hold
        if divisor < 2**31:
            rest = lax.rem(promised, lax.full_like(promised, divisor))
        broken = lax.ne(rest, lax.full_like(rest, 0))

        @pl.when(jnp.any(broken) if broken.ndim else broken)
        def _() -> None:
            jax.debug.print(f"{{}} {BROKEN} {divisor}", promised)

        return promised

    return multiple_of
