"""The run of a kernel in the interpreter of the TPU, with the interpreter's findings.

Copies happen when they are waited for, or at once; unwritten memory is NaN; a read outside of a
buffer is an error. Races, unbalanced semaphores and broken promises are printed on the standard
output of the process, so a process that runs this module cannot use that output for anything else.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from attrs import evolve, frozen
from jax._src import dispatch
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance.kernels import callbacks, promises
from conformance.kernels.batches import Arrays, Numbers, Sizes
from conformance.kernels.block_sizes import Own
from conformance.kernels.compile import traced
from conformance.kernels.kernel_under_test import Subject
from conformance.kernels.pallas import Copy, Ref
from conformance.numerics.oracle import Floats
from conformance.runtime.unoptimised import compiler_options
from impl.cache import rows, scales

CHIP: Final = "v5e"
"""The chip for a kernel that takes one; the interpreter models none in particular."""
CORES: Final = 2
"""The largest number of cores of a device."""
RACE: Final = "RACE DETECTED"
LEFT_OVER: Final = "non-zero count"
OUTSIDE: Final = ("out-of-bounds", "out of bounds")
CHECKED: Final[Mapping[str, Any]] = MappingProxyType(
    {"uninitialized_memory": "nan", "out_of_bounds_reads": "raise"}
)
NOTHING: Final[Mapping[str, Numbers]] = MappingProxyType({})


class Mode(Enum):
    """When a copy happens. EAGER also detects races, which takes longer."""

    WAIT = "on_wait"
    EAGER = "eager"


@frozen(eq=False)
class Answer:
    """out: [T, q_heads, head_dim], None if the kernel did not finish. said: other findings.

    pool: returned beside it, if new cells were given.
    """

    out: Floats | None
    said: tuple[str, ...]
    pool: Numbers | None = None


@dataclass(frozen=True, eq=False)
class _OfAnyMode(pltpu.InterpretParams):
    """Parameters of the interpreter with the mode of the moment.

    It is read when a kernel runs, and not when it is compiled, so one program serves for each.
    """

    def __getattribute__(self, name: str) -> Any:
        match name:
            case "dma_execution_mode":
                return _now[0].value
            case "detect_races":
                return _now[0] is Mode.EAGER
        return super().__getattribute__(name)

    def __eq__(self, other: object) -> bool:
        mine = self.num_cores_or_threads
        return isinstance(other, _OfAnyMode) and mine == other.num_cores_or_threads

    def __hash__(self) -> int:
        return hash(self.num_cores_or_threads)


_now: Final = [Mode.WAIT]


@contextmanager
def _interpreted(mode: Mode, *, cores: int = 1) -> Iterator[None]:
    """TPU kernels in this block are interpreted in this mode."""
    before, _now[0] = _now[0], mode
    try:
        with pltpu.force_tpu_interpret_mode(_OfAnyMode(**CHECKED, num_cores_or_threads=cores)):
            yield
    finally:
        _now[0] = before


def parameters(mode: Mode, *, cores: int = 1) -> pltpu.InterpretParams:
    """Parameters of the interpreter. With one core, parallel parts run one after another."""
    return pltpu.InterpretParams(
        **CHECKED,
        dma_execution_mode=mode.value,
        detect_races=mode is Mode.EAGER,
        num_cores_or_threads=cores,
    )


def unoptimised(subject: Subject) -> Subject:
    """The same kernel, compiled without optimisation: what is compiled here is its interpretation.

    It is traced once for each shape, so this is not for a function whose Python may do something
    else at a later call or with concrete values.
    """
    own = partial(subject.function)  # for one function jax keeps what it has compiled for good
    jitted = jax.jit(own, static_argnames=subject.settings, compiler_options=compiler_options())
    return evolve(subject, function=jitted, uncompiled=subject.function)


def attend(
    subject: Subject,
    sizes: Sizes,
    arrays: Arrays,
    *,
    mode: Mode,
    own: Own,
    new: Mapping[str, Numbers] = NOTHING,
    cores: int = 1,
) -> Answer:
    """Call the kernel once. Passes its exceptions on, except for a read outside of a buffer.

    new: K and V of new cells by name, if the kernel writes them. cores: that work in parallel.
    """
    given = _given(subject, sizes, arrays)
    operands = {name: jnp.asarray(cells) for name, cells in new.items()}
    optional = _optional(subject, arrays)
    out, pool, outside = None, None, []
    with printed() as lines, callbacks.direct():
        try:
            with promises.checked(), _interpreted(mode, cores=cores):
                more = {**told(sizes, own), **operands}
                found = subject.call(*given, options=sizes.options, optional=optional, **more)
                if operands:
                    found, pool = _pair(subject, sizes, found, given[1])
                out = np.asarray(found).astype(np.float64)
                if out.shape != arrays.q.shape:
                    raise ValueError(f"the answer has the shape {out.shape}, not {arrays.q.shape}")
            jax.effects_barrier()  # type: ignore[no-untyped-call]
        except jax.errors.JaxRuntimeError as error:
            text = str(error).lower()
            if not any(words in text for words in OUTSIDE):
                raise
            outside = ["out_of_bounds"]
        finally:
            if out is None:
                _forget()
    said = {"race": RACE, "semaphore": LEFT_OVER, "misaligned": promises.BROKEN}
    heard = [name for name, words in said.items() if any(words in line for line in lines)]
    return Answer(out, tuple(outside + heard), pool)


def _forget() -> None:
    """Reset the interpreter after an error, and the order of effects, which would repeat it."""
    pltpu.reset_tpu_interpret_mode_state()  # type: ignore[no-untyped-call]
    dispatch.runtime_tokens.clear()  # type: ignore[no-untyped-call]


def _pair(
    subject: Subject, sizes: Sizes, found: object, given: jax.Array
) -> tuple[object, Numbers]:
    """An answer, and the pool of the bench. Raises ValueError for a pool unlike the given one."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise ValueError("given new cells, it does not return its answer and the pool")
    answer, pool = found[0], np.asarray(found[1])
    if (pool.shape, pool.dtype) != (given.shape, given.dtype):
        raise ValueError(f"the pool comes back as {pool.dtype}{list(pool.shape)}")
    if not subject.of_rows:
        return answer, pool
    _, heads, width = sizes.heads
    return answer, np.asarray(rows.interleaved(jnp.asarray(pool), kv_heads=heads, head_dim=width))


def cores(
    subject: Subject,
    sizes: Sizes,
    arrays: Arrays,
    *,
    own: Own,
    new: Mapping[str, Numbers] = NOTHING,
) -> int:
    """The number of cores of its Pallas kernel; 0 if there is none, or it cannot be traced."""
    try:
        found = program(subject, sizes, arrays, own=own, new=new, interpreted=True)
        return traced.cores(found, most=CORES)
    except Exception:  # a function of arrays that are not jax's, or one that refuses them
        return 0


def program(
    subject: Subject,
    sizes: Sizes,
    arrays: Arrays,
    *,
    own: Own,
    new: Mapping[str, Numbers] = NOTHING,
    interpreted: bool = False,
) -> object:
    """The traced program of the kernel at these shapes. Passes its exceptions on.

    Its arguments are the arrays, and then the new cells and those that are optional, in the order
    of their names. interpreted: of a kernel from `unoptimised` it is what is interpreted, with the
    checks of promises, and is traced once for both.
    """
    given, more = _given(subject, sizes, arrays), told(sizes, own)
    named = {name: jnp.asarray(cells) for name, cells in new.items()} | _optional(subject, arrays)

    def call(asked: Subject, given: list[jax.Array], named: Mapping[str, jax.Array]) -> object:
        operands = {name: held for name, held in named.items() if name in new}
        optional = {name: held for name, held in named.items() if name not in new}
        return asked.call(*given, options=sizes.options, optional=optional, **more, **operands)

    if interpreted and subject.uncompiled is not None:
        traces = evolve(subject, function=getattr(subject.function, "trace"))  # noqa: B009 - of jit
        with promises.checked(), _interpreted(Mode.WAIT):
            found: Any = call(traces, given, named)
        return found.jaxpr
    plain = evolve(subject, function=subject.uncompiled or subject.function)
    return jax.make_jaxpr(partial(call, plain))(given, named)


def told(sizes: Sizes, own: Own) -> Own:
    """Add the page size, and the default chip unless one is given, to a kernel's own arguments."""
    return {"chip": CHIP, "page_size": sizes.page_size, **own}


def _optional(subject: Subject, arrays: Arrays) -> dict[str, jax.Array]:
    """Sinks and scales, if there are any, as the kernel takes them."""
    found = {name: jnp.asarray(held) for name, held in arrays.optional.items()}
    if subject.of_rows and "scales" in found:
        found["scales"] = scales.of(found["scales"])
    return found


def _given(subject: Subject, sizes: Sizes, arrays: Arrays) -> list[jax.Array]:
    """The arrays in the dtypes of the batch, the pool in the shape that the kernel takes."""
    q, pool = _as_given(arrays.q, arrays.kv_pages, kinds=sizes.kinds, of_rows=subject.of_rows)
    return [q, pool, *map(jnp.asarray, list(arrays)[2:])]


@partial(jax.jit, static_argnames=("kinds", "of_rows"))
def _as_given(
    q: jax.Array, pool: jax.Array, *, kinds: tuple[str, str], of_rows: bool
) -> tuple[jax.Array, jax.Array]:
    """Both in these dtypes; one program, since each operation would be compiled alone."""
    pool = pool.astype(kinds[1])
    return q.astype(kinds[0]), rows.of(pool) if of_rows else pool


@contextmanager
def printed() -> Iterator[list[str]]:
    """The lines that this process prints inside the block, available at its end."""
    lines: list[str] = []
    sys.stdout.flush()
    before = os.dup(1)
    with tempfile.TemporaryFile("w+b") as held:
        os.dup2(held.fileno(), 1)
        try:
            yield lines
        finally:
            sys.stdout.flush()
            os.dup2(before, 1)
            os.close(before)
            held.seek(0)
            lines += held.read().decode("utf-8", "replace").splitlines()


def sees_races() -> bool:
    """The control: whether this jax detects races, with its own copy and between cores."""

    def reads_too_early(source: Ref, out: Ref, held: Ref, semaphore: Ref) -> None:
        copy: Copy = pltpu.make_async_copy(source, held, semaphore)
        copy.start()
        out[...] = held[...]
        copy.wait()

    def writes_the_same(_source: Ref, out: Ref, held: Ref, semaphore: Ref) -> None:
        held[...] = jnp.full(held.shape, pl.program_id(0), held.dtype)
        copy: Copy = pltpu.make_async_copy(held, out, semaphore)
        copy.start()
        copy.wait()

    return _races(reads_too_early, 1, pltpu.VMEM) and _races(writes_the_same, CORES, pltpu.HBM)


def _races(kernel: Callable[..., None], cores: int, space: pltpu.MemorySpace) -> bool:
    """Whether a race is detected in this kernel, with its result in that memory."""
    kind = jax.typeof(jnp.zeros((16, 128), jnp.float32))
    with printed() as lines, _interpreted(Mode.EAGER, cores=cores):
        found = pl.pallas_call(
            kernel,
            out_shape=kind,
            grid=(cores,),
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
            out_specs=pl.BlockSpec(memory_space=space),
            scratch_shapes=[pltpu.VMEM(kind.shape, kind.dtype), pltpu.SemaphoreType.DMA],
            compiler_params=pltpu.CompilerParams(dimension_semantics=(pltpu.PARALLEL,)),
        )(jnp.zeros(kind.shape, kind.dtype))
        found.block_until_ready()
    pltpu.reset_tpu_interpret_mode_state()  # type: ignore[no-untyped-call]
    return any(RACE in line for line in lines)


if __name__ == "__main__":
    sys.exit(0 if sees_races() else 1)
