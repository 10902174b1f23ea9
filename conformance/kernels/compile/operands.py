"""The integers that the kernels of a call receive: lengths, page ids, what else steers their loops.

A traced program is evaluated as far as those operands of its kernels need it, and not further: of
the pool and of queries there are the shapes alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np
from attrs import Factory, define, frozen
from jax.extend import core

CALLS: Final = frozenset({"jit", "pjit"})
"""Equations that call a program. Others that have one are evaluated as a whole."""


@frozen
class Kernel:
    """One kernel of a program. name: its own. operands: by number, the integers alone."""

    name: str
    operands: Mapping[int, np.ndarray[Any, Any]]


class Unknown(Exception):
    """A value of which there is the shape alone."""


def of_kernels(program: Any, given: Sequence[Any]) -> Iterator[Kernel]:
    """The kernels of a traced program with these arguments, in its order.

    given: an array for each argument, or None if there is the shape alone. Kernels inside of loops
    and branches are not found.
    """
    jaxpr, constants = program.jaxpr, program.consts
    values = _Values()
    values.known.update(zip(jaxpr.constvars, constants, strict=True))
    values.known.update((v, g) for v, g in zip(jaxpr.invars, given, strict=True) if g is not None)
    values.enter(jaxpr)
    for kernel in values.kernels:
        yield Kernel(str(kernel.params["name"]), dict(values.integers(kernel)))


@define
class _Values:
    """The values of variables, evaluated where they are asked for.

    made: the equation that gives each. same: the variable of a calling program that it stands for.
    """

    known: dict[Any, Any] = Factory(dict)
    made: dict[Any, Any] = Factory(dict)
    same: dict[Any, Any] = Factory(dict)
    kernels: list[Any] = Factory(list)

    def enter(self, jaxpr: Any) -> None:
        """Note the equations of a program, and of those that it calls."""
        for equation in jaxpr.eqns:
            if equation.primitive.name == "pallas_call":
                self.kernels.append(equation)
                continue
            inner = _called(equation)
            if inner is None:
                self.made.update((out, equation) for out in equation.outvars)
                continue
            inside, constants = inner
            self.known.update(zip(inside.constvars, constants, strict=True))
            self.same.update(zip(inside.invars, equation.invars, strict=True))
            self.same.update(zip(equation.outvars, inside.outvars, strict=True))
            self.enter(inside)

    def integers(self, kernel: Any) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """The operands of a kernel that are integers and known."""
        for number, variable in enumerate(kernel.invars):
            if np.issubdtype(variable.aval.dtype, np.integer):
                try:
                    yield number, np.asarray(self.value(variable))
                except Unknown:
                    continue

    def value(self, variable: Any) -> Any:
        """The value of a variable. Raises Unknown."""
        if isinstance(variable, core.Literal):
            return variable.val
        if variable in self.known:
            return self.known[variable]
        if variable in self.same:
            found = self.value(self.same[variable])
        elif variable in self.made:
            self._evaluate(self.made[variable])
            found = self.known[variable]
        else:
            raise Unknown(str(variable))
        self.known[variable] = found
        return found

    def _evaluate(self, equation: Any) -> None:
        values = [self.value(one) for one in equation.invars]
        parameters = equation.primitive.get_bind_params(equation.params)
        found = equation.primitive.bind(*values, **parameters)
        several = found if equation.primitive.multiple_results else [found]
        self.known.update(zip(equation.outvars, several, strict=True))


def _called(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    """The program that an equation calls once, and its constants; None if it calls none.

    Its variables are new ones: a program may be called more than once.
    """
    if equation.primitive.name not in CALLS:
        return None
    closed = equation.params["jaxpr"]
    fresh = jax.make_jaxpr(core.jaxpr_as_fun(closed))(*(one.aval for one in closed.jaxpr.invars))
    return fresh.jaxpr, fresh.consts
