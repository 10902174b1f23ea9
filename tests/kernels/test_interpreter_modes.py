"""The interpreter: late copies and immediate ones in one program, and the end of an error."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance.kernels import interpret
from conformance.kernels.batches import SIZES, Batch, build
from conformance.kernels.interpret import RACE, Mode
from conformance.kernels.kernel_under_test import Subject

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


def copies_a_page(q: Any, pool: Any, kv_lens: Any, *_: Any, scale: float = 1.0) -> Any:
    """A kernel that copies the page whose number is the first length, and promises something."""

    def body(at: Any, source: Any, out: Any, held: Any, semaphore: Any) -> None:
        page = pl.multiple_of(at[0], 1)
        copy: Any = pltpu.make_async_copy(source.at[pl.ds(page, 1)], held, semaphore)
        copy.start()
        copy.wait()
        out[...] = jnp.full(out.shape, scale, out.dtype)

    return pl.pallas_call(
        body,
        out_shape=jax.typeof(q),
        in_specs=[pl.BlockSpec(memory_space=one) for one in (pltpu.SMEM, pltpu.HBM)],
        scratch_shapes=[pltpu.VMEM((1, *pool.shape[1:]), pool.dtype), pltpu.SemaphoreType.DMA],
    )(kv_lens, pool)


def test_an_error_is_that_of_its_own_batch() -> None:
    """After a read outside of the pool the next batch is judged as if there had been none."""
    sizes = SIZES[0]
    subject = interpret.unoptimised(Subject("a toy", copies_a_page, {"scale": "scale"}))
    said = []
    for cells in (3, sizes.pages, 3):
        arrays = build(sizes, Batch(lens=((1, 3),)))
        lens = np.full_like(arrays.kv_lens, cells)
        found = interpret.attend(
            subject, sizes, evolve(arrays, kv_lens=lens), mode=Mode.WAIT, own={}
        )
        said.append(found.said)

    assert [(), ("out_of_bounds",), ()] == said
