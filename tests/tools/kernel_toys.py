"""Toy kernels for the tests of the kernel bench: right and wrong ones."""

import os
import signal
import threading
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance.numerics import oracle
from impl.attention import reference, tpu
from impl.cache import rows

CALLS: list[None] = []


def right(*arrays: Any, scale: float = 1.0, sliding_window: int | None = None) -> Any:
    """The oracle itself, in float32."""
    known: Any = [np.asarray(array, np.float64) for array in arrays[:2]]
    known += [np.asarray(array) for array in arrays[2:]]
    out = oracle.ragged_paged_attention(*known, scale=scale, sliding_window=sliding_window)
    return out.astype(np.float32)


def stale(*arrays: Any, keys: Any, values: Any, scale: float = 1.0) -> tuple[Any, Any]:
    """A kernel that ignores the new cells, and returns the pool as it was given."""
    del keys, values
    return right(*arrays, scale=scale), arrays[1]


def window_too_long(*arrays: Any, scale: float = 1.0, sliding_window: int | None = None) -> Any:
    """A kernel with a window that is one position too long."""
    wider = None if sliding_window is None else sliding_window + 1
    return right(*arrays, scale=scale, sliding_window=wider)


def coarse_sums(*arrays: Any, scale: float = 1.0) -> Any:
    """A right kernel, except that its sums are kept in float16 between steps of 64 cells."""
    q, pool, lens, table, starts, _ = (np.asarray(array) for array in arrays)
    out = np.zeros_like(q)
    for row in range(int(starts[1])):  # the rows of the first sequence; its heads share one KV head
        places = np.arange(lens[0] - starts[1] + row + 1)
        keys, values = np.moveaxis(
            pool[table[0, places // pool.shape[1]], places % pool.shape[1]], 1, 0
        )
        scores = scale * q[row] @ keys.T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        total, mean = np.zeros((len(q[row]), 1), np.float16), np.zeros(q[row].shape, np.float16)
        for step in range(0, len(places), 64):
            some = weights[:, step : step + 64]
            total = (total + some.sum(axis=1, keepdims=True)).astype(np.float16)
            mean = (mean + some @ values[step : step + 64]).astype(np.float16)
        out[row] = mean.astype(np.float32) / total
    return out


def without_maximum(*arrays: Any, scale: float = 1.0) -> Any:
    """A right kernel, except that `exp` takes whole scores, and overflows for those above 88."""
    q, pool = (np.asarray(array, np.float32) for array in arrays[:2])
    lens, table, starts, count = (np.asarray(array) for array in arrays[2:])
    out, group = np.zeros_like(q), 2 * q.shape[1] // pool.shape[2]
    for seq in range(int(count[0])):
        for token in range(starts[seq], starts[seq + 1]):
            places = np.arange(lens[seq] - starts[seq + 1] + token + 1)
            cells = pool[table[seq, places // pool.shape[1]], places % pool.shape[1]]
            for head in range(q.shape[1]):
                keys, values = cells[:, 2 * (head // group)], cells[:, 2 * (head // group) + 1]
                weights = np.exp(scale * keys @ q[token, head])
                out[token, head] = weights @ values / weights.sum()
    return out


def deaf(*arrays: Any, scale: float = 1.0) -> Any:
    """A right kernel that hangs at the third call."""
    CALLS.append(None)
    while len(CALLS) == 3:
        time.sleep(1)
    return right(*arrays, scale=scale)


def mortal(*arrays: Any, scale: float = 1.0) -> Any:
    """A right kernel that ends the process at the third call."""
    CALLS.append(None)
    if len(CALLS) == 3:
        os._exit(7)
    return right(*arrays, scale=scale)


def choosy(*_arrays: Any, **_options: Any) -> Any:
    """A kernel that refuses every batch."""
    raise NotImplementedError("no such head_dim")


def never(*_arrays: Any, **_options: Any) -> Any:
    """A kernel that never returns."""
    while True:
        time.sleep(1)


def killed(*_arrays: Any, **_options: Any) -> Any:
    """A kernel whose process is killed, as by a system that runs out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def short(*_arrays: Any, **_options: Any) -> Any:
    """A kernel whose answer has another shape."""
    return np.zeros(3)


def haunted(*arrays: Any, scale: float = 1.0) -> Any:
    """A right kernel that leaves a thread running."""
    if not CALLS:
        CALLS.append(None)
        threading.Thread(target=never).start()
    return right(*arrays, scale=scale)


def masks_scores(*arrays: Any, scale: float = 1.0, sliding_window: int | None = None) -> Any:
    """A right kernel, except for NaN where a cell within the length has a NaN, seen or not."""
    pool, lens, table, starts, count = (np.asarray(array) for array in arrays[1:])
    out = right(*arrays, scale=scale, sliding_window=sliding_window)
    for row in range(int(count[0])):
        first, last, length = starts[row], starts[row + 1], lens[row]
        cells = [
            pool[table[row, at // pool.shape[1]], at % pool.shape[1]]
            for at in range(length - (last - first) + 1)
        ]
        if last > first and np.isnan(np.asarray(cells, np.float32)).any():
            out[first:last] = np.nan
    return out


def both_write(*arrays: Any, scale: float = 1.0) -> Any:
    """A right kernel, beside which two cores write to the same place."""

    def body(out: Any, held: Any, semaphore: Any) -> None:
        held[...] = jnp.full(held.shape, pl.program_id(0), held.dtype)
        copy: Any = pltpu.make_async_copy(held, out, semaphore)
        copy.start()
        copy.wait()

    kind: Any = jax.typeof(jnp.zeros((8, 128), jnp.float32))
    written: Any = pl.pallas_call(
        body,
        grid=(2,),
        out_shape=kind,
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
        scratch_shapes=[pltpu.VMEM(kind.shape, kind.dtype), pltpu.SemaphoreType.DMA],
        compiler_params=pltpu.CompilerParams(dimension_semantics=(pltpu.PARALLEL,)),
    )()
    out = reference.ragged_paged_attention(*arrays, scale=scale)
    return out + (0 * written[0, 0]).astype(out.dtype)


@partial(jax.jit, static_argnames="scale")
def promises_more(*arrays: Any, scale: float = 1.0) -> Any:
    """A right kernel with a promise that it keeps, and one that it breaks, in a jitted function."""

    def body(out: Any) -> None:
        kept, broken = pl.multiple_of(8 * pl.program_id(0), 8), pl.program_id(0) + 12
        out[...] = jnp.full(out.shape, kept + pl.multiple_of(broken, (4, 8)), out.dtype)

    kind: Any = jax.typeof(jnp.zeros((8, 128), jnp.float32))
    written: Any = pl.pallas_call(body, grid=(2,), out_shape=kind)()
    out = reference.ragged_paged_attention(*arrays, scale=scale)
    return out + (0 * written[0, 0]).astype(out.dtype)


def wrong_later(*arrays: Any, scale: float = 1.0) -> Any:
    """A Pallas kernel that is wrong from its fourth call on."""
    out = both_write(*arrays, scale=scale)
    CALLS.append(None)
    return 2 * out if len(CALLS) > 3 else out


def reads_outside(*arrays: Any, scale: float = 1.0) -> Any:
    """A kernel that copies the page after the last one."""
    q, pool = arrays[0], arrays[1]

    def body(source: Any, out: Any, held: Any, semaphore: Any) -> None:
        copy: Any = pltpu.make_async_copy(
            source.at[pl.ds(pl.program_id(0) + pool.shape[0], 1)], held.at[pl.ds(0, 1)], semaphore
        )
        copy.start()
        copy.wait()
        out[...] = jnp.full(out.shape, scale * held[0, 0, 0, 0], out.dtype)

    return pl.pallas_call(
        body,
        grid=(1,),
        out_shape=jax.typeof(q),
        in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
        scratch_shapes=[pltpu.VMEM((1, *pool.shape[1:]), pool.dtype), pltpu.SemaphoreType.DMA],
    )(pool)


def copies_the_pool(q: Any, kv_pages: Any, *others: Any, chip: str, page_size: int) -> Any:
    """Our kernel with the other shape of the pool, brought into its own at every call."""
    return tpu.ragged_paged_attention(q, rows.of(kv_pages), *others, chip=chip, page_size=page_size)
