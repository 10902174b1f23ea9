"""Mutant schemata: one program that holds every mutant of a module, each chosen by its number.

A module is rewritten once. In the rewritten module each place that can be mutated asks `choose`,
which evaluates what stands there, and the mutants of the place, from the same operands. Where the
number is a Python int, the chosen mutant is taken. Where it is traced, the results are selected by
`where`, so that all mutants of a module share one executable and a batch of them is judged under
`vmap`. A mutant whose result is no array of the same shape cannot be selected so: it is `static`,
and is compiled by itself; so is one that raises.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from attrs import define, field

Spec = tuple[int, str, Any]
"""A mutant at a place: its number, its operator, and what the operator needs to know."""
Specs = tuple[Spec, ...]

OPERATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "**": operator.pow,
    "@": operator.matmul,
}
UNARY: Final[Mapping[str, Callable[[Any], Any]]] = {
    "-": operator.neg,
    "~": operator.invert,
    "not": operator.not_,
    "+": operator.pos,
}


@define
class Choice:
    """Which mutant runs. number: an int or a traced i32; None for no mutant.

    called: the mutants that Python code has met while no mutant was chosen. traced: those met with
    a traced number. static: those of them that such a number cannot select. raising: those that
    raised then, by the exception.
    """

    number: Any = None
    called: set[int] = field(factory=set)
    traced: set[int] = field(factory=set)
    static: set[int] = field(factory=set)
    raising: dict[int, str] = field(factory=dict)

    @property
    def is_traced(self) -> bool:
        """Whether the number is an argument of the program that is being traced."""
        return not (self.number is None or isinstance(self.number, int))


CHOICE: Final = Choice()
"""The choice of this process."""
NONE: Final = -1
"""The number of no mutant."""


@contextmanager
def choosing(number: Any) -> Iterator[None]:
    """Run a mutant while the block runs. number: an int, a traced i32, or None."""
    before, CHOICE.number = CHOICE.number, number
    try:
        yield
    finally:
        CHOICE.number = before


def choose(right: Callable[[], Any], wrong: Iterable[tuple[int, Callable[[], Any]]]) -> Any:
    """The value of the right program, or of the chosen mutant."""
    if not CHOICE.is_traced:
        return _chosen(right, wrong)()
    found = value = right()
    for number, other in wrong:
        CHOICE.traced.add(number)
        if number not in CHOICE.static:
            found = _or_other(number, other, value, found)
    return found


def _chosen(right: Callable[[], Any], wrong: Iterable[tuple[int, Any]]) -> Callable[[], Any]:
    for number, value in wrong:
        if CHOICE.number is None:
            CHOICE.called.add(number)
        elif number == CHOICE.number:
            return value  # type: ignore[no-any-return]
    return right


def _or_other(number: int, other: Callable[[], Any], right: Any, found: Any) -> Any:
    """What was found so far, or the mutant's value where its number is chosen."""
    try:
        with choosing(NONE):  # one mutant at a time: none inside this one
            made = other()
    except Exception as error:
        CHOICE.raising[number] = type(error).__name__
        CHOICE.static.add(number)
        return found
    selected = _selected(CHOICE.number == number, made, right, found)
    if selected is None:
        CHOICE.static.add(number)
        return found
    return selected


def _selected(is_chosen: Any, made: Any, right: Any, found: Any) -> Any:
    """The made value where it is chosen, else what was found; None if that cannot be selected."""
    leaves, others = jax.tree.leaves(right), jax.tree.leaves(made)
    shape: Any = jax.tree.structure(right)
    if shape != jax.tree.structure(made) or not leaves or not all(map(_alike, leaves, others)):
        return None
    before = jax.tree.leaves(found)
    return shape.unflatten(
        [jnp.where(is_chosen, new, old) for new, old in zip(others, before, strict=True)]
    )


def _alike(right: Any, made: Any) -> bool:
    """Whether one array can stand for the other."""
    if not isinstance(right, jax.Array):
        return False
    other = jnp.asarray(made)
    fits = other.shape == right.shape or other.ndim == 0
    return fits and (other.dtype == right.dtype or not isinstance(made, jax.Array))


def dropped(specs: Specs) -> bool:
    """Whether a statement is left out."""
    ((number, _, _),) = specs
    if CHOICE.is_traced:
        CHOICE.traced.add(number)
        CHOICE.static.add(number)
        return False
    return bool(_chosen(lambda: False, [(number, lambda: True)])())


def constant(specs: Specs, value: Any) -> Any:
    """A constant that stands by itself."""
    return choose(lambda: value, _each(specs, lambda _, to: to))


def operation(specs: Specs, name: str, left: Any, right: Any) -> Any:
    """A comparison of two values, or an operation on them."""

    def other(how: str, to: Any) -> Any:
        match how:
            case "operator":
                return OPERATIONS[to](left, right)
            case "left":
                return OPERATIONS[name](to, right)
            case "right":
                return OPERATIONS[name](left, to)
            case "only left":
                return left
        return right

    return choose(lambda: OPERATIONS[name](left, right), _each(specs, other))


def unary(specs: Specs, name: str, value: Any) -> Any:
    """An operation on one value, which a mutant leaves out."""
    return choose(lambda: UNARY[name](value), [(number, lambda: value) for number, _, _ in specs])


def subscript(specs: Specs, value: Any, index: Any) -> Any:
    """An element, or with an index one higher."""
    return choose(lambda: value[index], _each(specs, lambda _, at: value[_moved(index, at)]))


def _moved(index: Any, at: int) -> Any:
    if not isinstance(index, tuple):
        return index + 1
    return (*index[:at], index[at] + 1, *index[at + 1 :])


def call(
    specs: Specs, function: Any, args: tuple[tuple[bool, Any], ...], named: dict[str, Any]
) -> Any:
    """A call. args: each with whether it is starred."""

    def other(how: str, to: Any) -> Any:
        match how:
            case "swap":
                return function(*_flat(_swapped(args, to)), **named)
            case "reverse":
                return function(*reversed(_flat(args)), **named)
            case "drop argument":
                return function(*_flat(args[:to] + args[to + 1 :]), **named)
            case "argument":
                at, value = to
                return function(*_flat((*args[:at], (False, value), *args[at + 1 :])), **named)
            case "drop keyword":
                return function(*_flat(args), **{k: v for k, v in named.items() if k != to})
            case "keyword":
                return function(*_flat(args), **{**named, to[0]: to[1]})
            case "narrow":
                made = function(*_flat(args), **named)
                return made.astype(jnp.int8).astype(made.dtype)
        return jnp.broadcast_to(args[to][1], jnp.shape(function(*_flat(args), **named)))

    return choose(lambda: function(*_flat(args), **named), _each(specs, other))


def _flat(args: tuple[tuple[bool, Any], ...]) -> list[Any]:
    return [one for starred, value in args for one in (value if starred else (value,))]


def _swapped(args: tuple[Any, ...], at: int) -> tuple[Any, ...]:
    return (*args[:at], args[at + 1], args[at], *args[at + 2 :])


def update(
    specs: Specs, method: str, array: Any, index: Any, args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """A gather or scatter, `array.at[index].method(*args, **named)`."""

    def done(at: Any, how: str, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return getattr(array.at[at], how)(*given, **options)

    def other(how: str, to: Any) -> Any:
        match how:
            case "index":
                return done(_moved(index, to), method, args, named)
            case "method":
                return done(index, to, args, named)
            case "mode":
                kept = {k: v for k, v in named.items() if k != "fill_value"}
                return done(index, method, args, {**kept, "mode": to})
            case "argument":
                return done(index, method, (to,), named)
            case "keyword":
                return done(index, method, args, {**named, to[0]: to[1]})
        return array

    return choose(lambda: done(index, method, args, named), _each(specs, other))


def guard(specs: Specs, refuses: Any, *rest: Any) -> tuple[Any, ...]:
    """A guard of the engine, or one that never refuses."""
    never = [(number, lambda: refuses & False) for number, _, _ in specs]  # also of a Python bool
    return (choose(lambda: refuses, never), *rest)


def assign(specs: Specs, new: Any, old: Callable[[], Any]) -> Any:
    """The new value of a name, or its old one where the statement is left out."""
    return choose(lambda: new, [(number, old) for number, _, _ in specs])


def lazily(specs: Specs, right: Callable[[], Any], *others: Callable[[], Any]) -> Any:
    """A condition with several parts, or one of its parts."""
    return choose(right, [(number, others[to]) for number, _, to in specs])


def _each(specs: Specs, other: Callable[[str, Any], Any]) -> list[tuple[int, Callable[[], Any]]]:
    return [(number, partial(other, how, to)) for number, how, to in specs]
