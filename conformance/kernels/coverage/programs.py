"""A traced function: the integers that are computed around its kernels, and the kernels' flow."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import numpy as np
from attrs import frozen

from conformance.kernels.coverage.control_flow import CALLS, kernel, programs
from conformance.kernels.coverage.memory import Numbers
from conformance.kernels.coverage.scalars import Unknown, is_integer
from conformance.kernels.coverage.sites import Outcome, Site, Watch

SMALL: Final = 8
"""Numbers below it are met by any draw."""
KERNEL: Final = "pallas_call"


@frozen
class Followed:
    """What one call does: the outcomes, and the number of scalar equations."""

    seen: frozenset[Outcome]
    work: int


class Program:
    """A traced function whose control flow can be followed."""

    def __init__(self, traced: Any) -> None:
        """traced: of `jax.make_jaxpr`. Raises Unknown if a kernel is not modelled."""
        self._traced = traced
        self._kernels = [
            kernel(equation.params, name=f"{number} {equation.params.get('name') or 'kernel'}")
            for number, equation in enumerate(_kernels(traced.jaxpr))
        ]
        self._operands = jax.jit(self._steered)

    @property
    def sites(self) -> tuple[Site, ...]:
        """Those of every kernel."""
        return tuple(site for one in self._kernels for site in one.sites)

    @property
    def units(self) -> frozenset[int]:
        """The integers beside which the kernels compute, but for masks: sizes of their work."""
        every: frozenset[int] = frozenset().union(*(one.literals for one in self._kernels))
        return frozenset(one for one in every if one >= SMALL and one & (one + 1))

    def follow(self, arrays: Sequence[Numbers | None]) -> Followed:
        """What happens with these arguments, None for those without integers. Raises Unknown."""
        watch, work = Watch(), 0
        for one, operands in zip(self._kernels, self._operands(list(arrays)), strict=True):
            watch.last.clear()
            held = [None if value is None else np.asarray(value) for value in operands]
            work += one.follow(held, watch)
        return Followed(frozenset(watch.seen), work)

    def _steered(self, arrays: list[Any]) -> list[list[Any]]:
        """The integers among the operands of each kernel, None for others."""
        found: list[list[Any]] = []
        _evaluate(self._traced.jaxpr, self._traced.consts, arrays, found)
        return found


def _kernels(jaxpr: Any) -> Iterator[Any]:
    """The equations that call a kernel, in the order of the program."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == KERNEL:
            yield equation
            continue
        inside = [one for inner in programs(equation) for one in _kernels(inner)]
        if inside and equation.primitive.name not in CALLS:
            raise Unknown(f"a kernel inside {equation.primitive.name}")
        yield from inside


def _evaluate(
    jaxpr: Any, consts: Sequence[Any], given: Sequence[Any], found: list[list[Any]]
) -> list[Any]:
    """The integers among the results of a program, None for others. found: operands of kernels."""
    held = dict(zip(jaxpr.constvars, consts, strict=True))
    held |= dict(zip(jaxpr.invars, given, strict=True))

    def of(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else held[atom]

    for equation in jaxpr.eqns:
        results = _results(equation, [of(one) for one in equation.invars], found)
        held |= dict(zip(equation.outvars, results, strict=True))
    return [of(one) for one in jaxpr.outvars]


def _results(equation: Any, values: list[Any], found: list[list[Any]]) -> Sequence[Any]:
    name, primitive = equation.primitive.name, equation.primitive
    nothing: list[None] = [None] * len(equation.outvars)
    if name == KERNEL:
        kinds = (one.aval for one in equation.invars)
        found.append(
            [value if is_integer(kind) else None for value, kind in zip(values, kinds, strict=True)]
        )
        return nothing
    if name in CALLS:
        (inner,) = programs(equation)
        return _evaluate(inner, getattr(equation.params["jaxpr"], "consts", ()), values, found)
    every = (variable.aval for variable in equation.outvars)
    if any(one is None for one in values) or not all(map(is_integer, every)):
        return nothing
    results = primitive.bind(*values, **primitive.get_bind_params(equation.params))
    return results if primitive.multiple_results else [results]
