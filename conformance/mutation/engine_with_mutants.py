"""Our engine with mutants: its compiled functions take the number of one as an argument.

All mutants of a list of modules are in the same executables, so that these are compiled once. A
mutant that cannot be selected so is compiled by itself.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import jax
import numpy as np
from attrs import define, field, frozen

import impl.engine
from conformance.mutation import schemata
from conformance.mutation.planting import planted
from conformance.mutation.rewriting import Rewritten
from conformance.mutation.targets import JITTED
from conformance.runtime.unoptimised import compiler_options
from conformance.seeded_bugs import forget_compiled

AT_IMPORT: Final = {
    name: (getattr(impl.engine, name).__wrapped__, static)
    for name, static in {
        "_compiled_initial": (0,),
        "_packed_copy": (),
        "_compiled_unpack": (0,),
    }.items()
}
"""What the engine compiles when it is imported: each function, and its static arguments."""


class Compile(Protocol):
    """From a function to a compiled one. static, donated: the numbers of arguments."""

    def __call__(
        self, run: Callable[..., Any], *, static: Sequence[int] = (), donated: Sequence[int] = ()
    ) -> Callable[..., Any]:
        """Compile the function."""
        ...


@define
class Selection:
    """The mutant of the next call of a compiled function."""

    number: int = field(default=schemata.NONE)


SELECTION: Final = Selection()
"""The selection of this process."""


@frozen(eq=False)
class ByArgument:
    """A compiled function with mutants, of which each call takes the selected one."""

    compiled: Any

    def __call__(self, *given: Any) -> Any:
        """Call it with the selected mutant."""
        return self.compiled(np.int32(SELECTION.number), *given)

    def _cache_size(self) -> int:
        """As that of a function of `jax.jit`: how often it was compiled."""
        return int(self.compiled._cache_size())  # noqa: SLF001 - there is no public count


def by_argument(
    run: Callable[..., Any], *, static: Sequence[int] = (), donated: Sequence[int] = ()
) -> ByArgument:
    """Compile a function with the mutants that it meets."""

    def numbered(number: Any, *given: Any) -> Any:
        with schemata.choosing(number):
            return run(*given)

    return ByArgument(
        jax.jit(
            numbered,
            static_argnums=[at + 1 for at in static],
            donate_argnums=[at + 1 for at in donated],
            compiler_options=compiler_options(),
        )
    )


def alone(
    run: Callable[..., Any], *, static: Sequence[int] = (), donated: Sequence[int] = ()
) -> Callable[..., Any]:
    """Compile a function with the mutant that is chosen now."""
    return jax.jit(
        run, static_argnums=static, donate_argnums=donated, compiler_options=compiler_options()
    )


@contextmanager
def mutated(modules: Sequence[Rewritten]) -> Iterator[None]:
    """Put the mutants into our engine while the block runs; no call takes one unless selected."""
    for one in modules:
        if one.module.startswith(JITTED):
            schemata.CHOICE.static.update(mutant.number for mutant in one.mutants)
    with planted(modules), _compiling(by_argument):
        yield


@contextmanager
def selected(number: int) -> Iterator[None]:
    """Run a mutant while the block runs, in an engine that is `mutated`.

    One that only Python code meets needs no compilation either. One that a traced number cannot
    select is compiled by itself, and so is all that is compiled in the block.
    """
    choice = schemata.CHOICE
    if number in choice.static or number in choice.traced & choice.called:
        with schemata.choosing(number), _compiling(alone):
            yield
    elif number in choice.traced:
        SELECTION.number = number
        try:
            yield
        finally:
            SELECTION.number = schemata.NONE
    else:
        with schemata.choosing(number):
            yield


@contextmanager
def _compiling(how: Compile) -> Iterator[None]:
    """Compile whatever the engine compiles in this way while the block runs."""

    def jitted(run: Callable[..., Any], *, donate: bool = True, **_: object) -> Any:
        return how(run, donated=(1,) if donate else ())

    changes = {
        "jitted": jitted,
        **{name: how(run, static=static) for name, (run, static) in AT_IMPORT.items()},
    }
    before = {name: getattr(impl.engine, name) for name in changes}
    forget_compiled()
    try:
        for name, made in changes.items():
            setattr(impl.engine, name, made)
        yield
    finally:
        for name, was in before.items():
            setattr(impl.engine, name, was)
        forget_compiled()
