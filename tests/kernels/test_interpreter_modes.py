"""The modes of the interpreter: late copies, and immediate ones with races, in one program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance.kernels import interpret
from conformance.kernels.interpret import RACE, Mode

GIVEN = jnp.ones((16, 128), jnp.float32)


def reads_too_early(source: Any, out: Any, held: Any, semaphore: Any) -> None:
    """Copy, and read before the end of the copy."""
    copy: Any = pltpu.make_async_copy(source, held, semaphore)
    copy.start()
    out[...] = held[...]
    copy.wait()


@pytest.mark.parametrize(
    "modes", [(Mode.WAIT, Mode.EAGER, Mode.WAIT), (Mode.EAGER, Mode.WAIT, Mode.EAGER)]
)
def test_one_program_serves_for_each_mode(
    modes: tuple[Mode, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Traced once, it reads nothing with late copies, and has a race with immediate ones."""
    traced = []

    @jax.jit
    def call(given: jax.Array) -> Any:
        traced.append(given)
        return pl.pallas_call(
            reads_too_early,
            out_shape=jax.typeof(given),
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
            scratch_shapes=[pltpu.VMEM(given.shape, given.dtype), pltpu.SemaphoreType.DMA],
        )(given)

    for mode in modes:
        with interpret._interpreted(mode):
            found = np.asarray(call(GIVEN))
        pltpu.reset_tpu_interpret_mode_state()  # type: ignore[no-untyped-call]
        assert (mode is Mode.EAGER) == (RACE in capsys.readouterr().out)
        assert (mode is Mode.WAIT) == bool(np.isnan(found).all())
        assert (mode is Mode.EAGER) == bool((found == 1.0).all())

    assert 1 == len(traced)
