"""The pool-copy check: no compiled entry point copies the pool, as its optimised HLO shows.

An entry point takes the state, donated, and returns it. It passes if the bytes of the pool are
aliased from input to output, if temporary memory stays well below them, and if every instruction of
the optimised HLO that makes a value as large as one layer's pool updates a pool in place. A select
between the old and the new pool reports full aliasing and still copies it, so none of the three
conditions is enough by itself. Source: docs/sources.md, "Plan, then commit".
"""

import re
from collections.abc import Collection, Iterator
from math import prod
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from attrs import frozen

from impl import arguments, entries
from impl.engine import compiled
from impl.models.protocol import Weights
from impl.setup import Setup
from impl.state import initial
from impl.state.packing import Packed, pack
from spec.vocabulary import Params, Request

IN_PLACE: Final = frozenset(
    {
        "parameter",
        "get-tuple-element",
        "bitcast",
        "fusion",  # the instructions that it consists of are listed, and judged, themselves
        "call",
        "scatter",
        "dynamic-update-slice",
    }
)
"""Opcodes whose result may be as large as a pool: a pool, or one with some cells replaced."""

ZEROING: Final = frozenset({"broadcast", "copy"})
"""Further opcodes of a physical reset, which writes every byte of the pool."""

COPYING: Final = frozenset({"copy", "select"})
"""Opcodes that copy a whole pool at any sizes."""

TEMPORARY_SHARE: Final = 4
"""Temporary memory must stay below the pool's bytes divided by this."""

_INSTRUCTION: Final = re.compile(
    r"^\s*(?:ROOT )?%?\S+ = (?P<type>\w+)\[(?P<shape>[\d,]*)\]\S* (?P<opcode>[\w-]+)\("
)
_HLO_TYPES: Final = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "uint32": "u32",
    "int32": "s32",
}


@frozen
class PoolUse:
    """The use of the pools by one compiled entry point; sizes in bytes.

    pool: all layers together. aliased: returned in the input's buffers. temporary: allocated
    meanwhile. opcodes: of the instructions that make a value as large as a pool.
    """

    pool: int
    aliased: int
    temporary: int
    opcodes: frozenset[str]


def inspect(program: jax.stages.Compiled, state: Packed) -> PoolUse:
    """The use of the pools by a compiled (weights, state, *rest) to (state, report).

    Nothing is run, so the state may be abstract; it must be donated.
    """
    memory, text = program.memory_analysis(), program.as_text()
    assert memory is not None  # XLA has both on every backend
    assert text is not None
    return PoolUse(
        pool=pool_bytes(state),
        aliased=memory.alias_size_in_bytes,
        temporary=memory.temp_size_in_bytes,
        opcodes=frozenset(_pool_sized(text, state)),
    )


def pool_bytes(state: Packed) -> int:
    """The bytes of all layers' pools."""
    return sum(prod(pool.shape) * pool.dtype.itemsize for pool in state.cache)


def problems(use: PoolUse, *, allowed: frozenset[str] = IN_PLACE) -> tuple[str, ...]:
    """The reasons why an entry point does not pass; empty if it does."""
    found = [*_unaliased(use)]
    if use.temporary >= use.pool // TEMPORARY_SHARE:
        most = use.pool // TEMPORARY_SHARE
        found.append(f"temporary memory of {use.temporary} bytes, should be below {most}")
    return (*found, *_unwanted(use.opcodes - allowed))


def _unaliased(use: PoolUse) -> Iterator[str]:
    if use.aliased < use.pool:
        yield f"aliased {use.aliased} bytes, should be at least the pool's {use.pool}"


def _unwanted(opcodes: Collection[str]) -> Iterator[str]:
    for opcode in sorted(opcodes):
        yield f"{opcode} of a whole pool, should update it in place"


def check_entry(setup: Setup, name: str, weights: Weights = ()) -> tuple[str, ...]:
    """The problems of the entry point with this name, as shipped; empty if it passes."""
    return entry_problems(name, _program(setup, name, weights), abstract_state(setup))


def copies(setup: Setup, name: str, weights: Weights = ()) -> tuple[str, ...]:
    """What the entry point with this name does to copy a pool; empty if nothing.

    Unlike `check_entry` it also judges sizes at which attention reads as much as a pool holds:
    there temporary memory, and other opcodes, tell nothing. In a pool of one page no opcode does:
    whoever copies or writes a page there has a whole pool in hand.
    """
    use = inspect(_program(setup, name, weights), abstract_state(setup))
    if setup.geometry.pages == 1:
        return tuple(_unaliased(use))
    copying = COPYING - ZEROING if name == "reset_physical" else COPYING
    return (*_unaliased(use), *_unwanted(use.opcodes & copying))


def _program(setup: Setup, name: str, weights: Weights) -> jax.stages.Compiled:
    entry, state = compiled(setup, name), abstract_state(setup)
    program: jax.stages.Compiled = entry.lower(
        weights, state, *example_arguments(setup)[name]
    ).compile()
    return program


def entry_problems(name: str, program: jax.stages.Compiled, state: Packed) -> tuple[str, ...]:
    """The problems of a program that was compiled from the entry point with this name."""
    allowed = IN_PLACE | ZEROING if name == "reset_physical" else IN_PLACE
    return problems(inspect(program, state), allowed=allowed)


def abstract_state(setup: Setup) -> Packed:
    """Shapes and dtypes of a packed state, without its arrays."""
    shapes: Packed = jax.eval_shape(lambda: pack(initial(setup)))
    return shapes


def example_arguments(setup: Setup) -> dict[str, tuple[object, ...]]:
    """For each entry point, arguments after (weights, state), legal in shape and dtype.

    On a new state with slot 0 reserved and prefilled most of them are refused: they serve
    compilation.
    """
    one = np.int32(0)
    params = Params(max_new=1)
    batch = arguments.batch(setup, [(0, 0)])
    chunks = arguments.chunks(setup, [(0, 1)])
    before = np.zeros((3 + setup.geometry.slots,), np.int32)
    given = {
        "reserve": (one, one),
        "assign": (
            one,
            one,
            *arguments.prompt(setup, (1,)),
            arguments.params(setup, [params], [1]),
        ),
        "allocate": batch,
        "write": batch,
        "clone": (one, one, one),
        "free": (one,),
        "enqueue": (one, one),
        "purge": (one,),
        "propose": (one, *arguments.prompt(setup, (1,))),
        "commit": (one, one),
        "truncate": (one, one),
        "release": (one, one),
        "hit": (one, one),
        "share": (one, one, one),
        "publish": (one, one),
        "merge": (one, one),
        "evict": (*arguments.prompt(setup, (1,)), one),
        "begin": (
            before,
            one,
            *arguments.prompt(setup, (1,)),
            arguments.params(setup, [params], [1]),
        ),
        "mixed_round": (chunks,),
        "dispatch": (chunks,),
        "launch": (before, chunks),
        "preempt": (one,),
        "replay": (one, *arguments.prompt(setup, (1,))),
        "prefill_requests": (
            arguments.prefill_work(setup, [Request(id=1, prompt=(1,), params=params)]),
        ),
    }
    return {name: given.get(name, ()) for name in entries.ALL}


def _pool_sized(text: str, state: Packed) -> Iterator[str]:
    """The opcodes of the instructions in an HLO text whose result has a pool's type and size."""
    pools = {(_HLO_TYPES[jnp.dtype(pool.dtype).name], prod(pool.shape)) for pool in state.cache}
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match and match["shape"]:
            size = prod(int(length) for length in match["shape"].split(","))
            if (match["type"], size) in pools:
                yield match["opcode"]
