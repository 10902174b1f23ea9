"""A traced function: the integers that are computed around its kernels, and the kernels' flow."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from attrs import define, field, frozen

from conformance.kernels.coverage.control_flow import CALLS, Kernel, kernel, programs
from conformance.kernels.coverage.memory import Numbers
from conformance.kernels.coverage.scalars import is_integer
from conformance.kernels.coverage.sites import Outcome, Site, Watch


SMALL: Final = 8


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
        self._kernels: dict[int, Kernel] = {}
        self._find(traced.jaxpr)

    @property
    def sites(self) -> tuple[Site, ...]:
        """Those of every kernel."""
        return tuple(site for one in self._kernels.values() for site in one.sites)

    @property
    def units(self) -> frozenset[int]:
        """The integers beside which the kernels compute, but for masks: sizes of their work.

        Any draw meets those below SMALL.
        """
        every = frozenset().union(*(one.literals for one in self._kernels.values()))
        return frozenset(one for one in every if one >= SMALL and one & (one + 1))

    def follow(self, arrays: Sequence[Numbers | None]) -> Followed:
        """What happens with these arguments, None for those without integers. Raises Unknown."""
        call = _Call(self._kernels)
        call.run(self._traced.jaxpr, self._traced.consts, arrays)
        return Followed(frozenset(call.watch.seen), call.work)

    def _find(self, jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "pallas_call":
                name = f"{len(self._kernels)} {equation.params.get('name') or 'kernel'}"
                self._kernels[id(equation)] = kernel(equation.params, name=name)
            else:
                for inner in programs(equation):
                    self._find(inner)


@define(eq=False)
class _Call:
    kernels: dict[int, Kernel]
    watch: Watch = field(factory=Watch)
    work: int = 0

    def run(self, jaxpr: Any, consts: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """The results of a program, None for those that are not known."""
        held = dict(zip(jaxpr.constvars, consts, strict=True))
        held |= dict(zip(jaxpr.invars, given, strict=True))

        def of(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else held[atom]

        for equation in jaxpr.eqns:
            found = self._results(equation, [of(one) for one in equation.invars])
            held |= dict(zip(equation.outvars, found, strict=True))
        return [of(one) for one in jaxpr.outvars]

    def _results(self, equation: Any, values: list[Any]) -> Sequence[Any]:
        name, primitive = equation.primitive.name, equation.primitive
        nothing: list[None] = [None] * len(equation.outvars)
        if name == "pallas_call":
            operands = [None if one is None else np.asarray(one) for one in values]
            self.watch.last.clear()
            self.work += self.kernels[id(equation)].follow(operands, self.watch)
            return nothing
        if name in CALLS:
            (inner,) = programs(equation)
            return self.run(inner, getattr(equation.params["jaxpr"], "consts", ()), values)
        every = (variable.aval for variable in equation.outvars)
        if any(one is None for one in values) or not all(map(is_integer, every)):
            return nothing
        found = primitive.bind(*values, **primitive.get_bind_params(equation.params))
        return found if primitive.multiple_results else [found]
