"""What a kernel promises of a number is checked, which an interpreter ignores by itself."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from deep import deep_after
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance.kernels import promises
from conformance.kernels.interpret import Mode, parameters


@pytest.mark.parametrize(
    ("number", "values", "kept"),
    [
        (24, 8, True),
        (24, 16, False),
        (24, (4, 6), True),
        (24, (8, 9), False),
        (6, (4, 6), False),
        (-8, 8, True),
        (8, 2**31, False),
        (0, (2**16, 2**16 + 1), True),
    ],
)
@pytest.mark.parametrize("fixed", deep_after(1, [False, True]))
def test_a_broken_promise_is_printed(
    *,
    number: int,
    values: int | Sequence[int],
    kept: bool,
    fixed: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of each divisor, in a function that was traced before too, of a number or an argument."""

    def body(given: Any, out: Any) -> None:
        promised: Any = number if fixed else given[0, 0]
        out[...] = jnp.full(out.shape, pl.multiple_of(promised, values), out.dtype)

    kind: Any = jax.typeof(jnp.zeros((8, 128), jnp.int32))

    @jax.jit
    def call(given: Any) -> Any:
        return pl.pallas_call(body, out_shape=kind)(given)

    given, right = jnp.full(kind.shape, number, kind.dtype), pl.multiple_of
    jax.make_jaxpr(call)(given)
    with promises.checked(), pltpu.force_tpu_interpret_mode(parameters(Mode.WAIT)):
        assert number == call(given)[0, 0]
        jax.effects_barrier()  # type: ignore[no-untyped-call]

    assert kept == (f"{number} {promises.BROKEN}" not in capsys.readouterr().out)
    assert right is pl.multiple_of


def test_a_promise_of_an_array_is_one_of_each_number(capsys: pytest.CaptureFixture[str]) -> None:
    """One row that is no multiple breaks it."""

    def body(given: Any, out: Any) -> None:
        out[...] = pl.multiple_of(given[...], 8)

    given = jnp.full((8, 128), 16, jnp.int32)
    for broken in (False, True):
        rows = given.at[3].set(17) if broken else given
        with promises.checked(), pltpu.force_tpu_interpret_mode(parameters(Mode.WAIT)):
            pl.pallas_call(body, out_shape=jax.typeof(given))(rows)
            jax.effects_barrier()  # type: ignore[no-untyped-call]
        assert broken == (promises.BROKEN in capsys.readouterr().out)


def test_a_kernel_that_raises_leaves_the_function_as_it_was() -> None:
    """What is traced later is not checked."""
    right = pl.multiple_of
    with pytest.raises(ZeroDivisionError), promises.checked():
        raise ZeroDivisionError

    assert right is pl.multiple_of
