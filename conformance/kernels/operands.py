"""The integers that the kernels of a traced program receive: lengths, page ids, and the like.

They steer a kernel. The program is evaluated as far as those operands need it, and not further: of
the pool and of queries there are the shapes alone.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import numpy as np

CALLS: Final = frozenset({"jit", "pjit", "closed_call", "core_call", "custom_jvp_call"})
"""Equations that call one program as it is."""
KERNEL: Final = "pallas_call"
Operands = list[np.ndarray[Any, np.dtype[Any]] | None]


class Nested(Exception):
    """A kernel that is run in a loop or a branch of the program: its calls are not known."""


def programs(equation: Any) -> list[Any]:
    """The programs among the parameters of an equation."""
    found = []
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(part, "jaxpr", part)
            if hasattr(inner, "eqns"):
                found.append(inner)
    return found


class Kernels:
    """The kernels of a traced program. each: the parameters of every call, in their order."""

    def __init__(self, traced: Any) -> None:
        """traced: of `jax.make_jaxpr`. Raises Nested."""

        def steered(arrays: list[Any]) -> list[list[Any]]:
            found: list[list[Any]] = []
            _evaluated(traced.jaxpr, traced.consts, arrays, found)
            return found

        self.each = tuple(equation.params for equation in _calls(traced.jaxpr))
        self._evaluate = jax.jit(steered)

    def operands(self, arrays: Sequence[Any]) -> list[Operands]:
        """The integers among the operands of each kernel; None for others, and for unknown ones.

        arrays: the arguments of the program, or None where there is the shape alone.
        """
        return [
            [None if one is None else np.asarray(one) for one in operands]
            for operands in self._evaluate(list(arrays))
        ]


def _calls(jaxpr: Any) -> Iterator[Any]:
    """The equations that call a kernel."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == KERNEL:
            yield equation
            continue
        inside = [one for inner in programs(equation) for one in _calls(inner)]
        if inside and equation.primitive.name not in CALLS:
            raise Nested(f"a kernel inside {equation.primitive.name}")
        yield from inside


def _evaluated(
    jaxpr: Any, consts: Sequence[Any], given: Sequence[Any], found: list[list[Any]]
) -> list[Any]:
    """The results of a program that are known, None for others. found: operands of kernels."""
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
        pairs = zip(values, equation.invars, strict=True)
        found.append([value if _is_of_integers(one.aval) else None for value, one in pairs])
        return nothing
    if name in CALLS:
        (inner,) = programs(equation)
        return _evaluated(inner, _consts(equation), values, found)
    if any(one is None for one in values):
        return nothing
    results = primitive.bind(*values, **primitive.get_bind_params(equation.params))
    return results if primitive.multiple_results else [results]


def _consts(equation: Any) -> Sequence[Any]:
    """The constants of the program that an equation calls."""
    found = (getattr(one, "consts", None) for one in equation.params.values())
    return next((one for one in found if one is not None), ())


def _is_of_integers(kind: Any) -> bool:
    return getattr(getattr(kind, "dtype", None), "kind", "") in "iub"
