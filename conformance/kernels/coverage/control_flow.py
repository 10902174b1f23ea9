"""The control flow of a Pallas kernel, run on the integers of a batch alone.

Lengths and page ids lie in scalar memory, and they alone steer a kernel. So its branches and
loops are followed without K and V, in milliseconds: scalar integers are computed, copies into
scalar memory are made at once, and everything else is unknown.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any, Final

import jax
import numpy as np
from attrs import define, evolve, field, frozen

from conformance.kernels import promises
from conformance.kernels.coverage.memory import Numbers, Part, filled, fresh, steers
from conformance.kernels.coverage.scalars import (
    ARITHMETIC,
    COMPARING,
    SAME,
    Unknown,
    Value,
    is_scalar,
    plain,
)
from conformance.kernels.coverage.sites import Kind, Site, Watch
from conformance.kernels.operands import CALLS, programs

FOREIGN: Final = ("/jax/_src/", "/jaxtyping/", "/contextlib.py", "/functools.py")
"""Files of jax, jaxtyping and Python, for which no reader of a kernel looks."""
FRAMES: Final = 3
OF_PROMISES: Final = frozenset({"cond", "rem", "ne"})
"""Equations by which `promises` checks one."""
SILENT: Final = {*ARITHMETIC, *SAME, "convert_element_type", "select_n", "get"} - COMPARING
"""Equations that do nothing but compute: comparisons are noted."""
SHIFTS: Final = frozenset({"shift_left", "shift_right_arithmetic", "shift_right_logical"})
BITS: Final = 31
"""A shift by fewer is a product or a quotient of int32."""
DIVIDING: Final = (SHIFTS - {"shift_left"}) | {"div", "rem"}
NAMELESS: Final = ("<locals>", "<lambda>", "_")


@define(eq=False)
class Run:
    """One call of a kernel. work: the equations that were computed."""

    watch: Watch
    grid: tuple[int, ...]
    point: tuple[int, ...] = ()
    work: int = 0


_Step = Callable[[list[Value], Run], None]


class _Slots:
    """A place for each variable of a program; literals have their value from the start."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Any, int] = {}

    def of(self, atom: Any) -> int:
        if hasattr(atom, "val"):
            self.values.append(plain(atom))
            return len(self.values) - 1
        if atom not in self._numbers:
            self._numbers[atom] = len(self.values)
            self.values.append(None)
        return self._numbers[atom]

    def every(self, atoms: Sequence[Any]) -> list[int]:
        return [self.of(atom) for atom in atoms]


@define(eq=False)
class _Block:
    """A compiled program. start: the values at its start. given, out: their places.

    work: its equations of integers, those among them whose results nothing uses.
    """

    start: list[Value]
    given: list[int]
    out: list[int]
    steps: list[_Step]
    work: int

    def run(self, run: Run, given: Sequence[Value]) -> list[Value]:
        values = self.start.copy()
        for place, value in zip(self.given, given, strict=True):
            values[place] = value
        for step in self.steps:
            step(values, run)
        run.work += self.work
        return [values[place] for place in self.out]


@frozen(kw_only=True)
class _Place:
    """Where a program is in its kernel. looped: whether a loop is around it."""

    kernel: str
    path: str = ""
    looped: bool = False

    def inside(self, part: object, *, loop: bool = False) -> "_Place":
        return evolve(self, path=f"{self.path}/{part}", looped=self.looped or loop)


@define(eq=False)
class _Compiler:
    """Compiles the programs of one kernel.

    literals: integers beside which others are computed. sizes: those by which others are divided.
    """

    sites: list[Site] = field(factory=list)
    literals: set[int] = field(factory=set)
    sizes: set[int] = field(factory=set)

    def block(self, jaxpr: Any, place: _Place) -> _Block:
        if jaxpr.constvars:
            raise Unknown("a program with constants")
        at = _Slots()
        given = at.every(jaxpr.invars)
        steps = [
            self._step(equation, at, place.inside(number))
            for number, equation in enumerate(jaxpr.eqns)
        ]
        out = at.every(jaxpr.outvars)
        made = [
            (one, step) for one, step in zip(jaxpr.eqns, steps, strict=True) if step is not None
        ]
        return _Block(at.values, given, out, _used(made, jaxpr.outvars), len(made))

    def site(self, equation: Any, place: _Place, kind: Kind, branches: int = 0) -> Site:
        where = _where(equation)
        found = Site(
            kernel=place.kernel,
            path=place.path,
            kind=kind,
            where=where,
            branches=branches,
            looped=place.looped,
        )
        self.sites.append(found)
        return found

    def _step(self, equation: Any, at: _Slots, place: _Place) -> _Step | None:
        name = equation.primitive.name
        if name in OF_PROMISES and _is_of_promise(equation):
            at.every(equation.outvars)
            return None
        if name in _MAKERS:
            return _MAKERS[name](self, equation, at, place)
        out = at.every(equation.outvars)
        if programs(equation) or any(steers(one.aval) for one in equation.invars):
            raise Unknown(f"{name} is not modelled: {_where(equation)}")
        if len(out) != 1 or not is_scalar(equation.outvars[0].aval):
            return None
        if name in SAME:
            return _copied(at.of(equation.invars[0]), out[0])
        if name == "convert_element_type":
            return _converted(at.of(equation.invars[0]), out[0], equation.params["new_dtype"])
        if name not in ARITHMETIC:
            return None
        self._note(equation)
        site = self.site(equation, place, Kind.COMPARISON) if name in COMPARING else None
        return _computed(ARITHMETIC[name], at.every(equation.invars), out[0], site)

    def _note(self, equation: Any) -> None:
        name = equation.primitive.name
        *others, by = (plain(one) if hasattr(one, "val") else None for one in equation.invars)
        if name in SHIFTS:
            by = 1 << by if by is not None and by in range(BITS) else None
        self.literals |= {one for one in (*others, by) if one is not None and one > 1}
        if name in DIVIDING and by is not None and by > 1:
            self.sizes.add(by)


def _used(made: Sequence[tuple[Any, _Step]], results: Sequence[Any]) -> list[_Step]:
    """The steps in their order, without those whose only effect is a number that nothing uses."""
    used, found = {id(one) for one in results}, list[_Step]()
    for equation, step in reversed(made):
        name = equation.primitive.name
        if name in SILENT and not any(id(one) in used for one in equation.outvars):
            continue
        used |= {id(one) for one in equation.invars}
        found.append(step)
    return found[::-1]


def _is_of_promise(equation: Any) -> bool:
    """Whether it checks a promise of the kernel, and is none of its own."""
    innermost = next(_frames(equation), None)
    return innermost is not None and innermost.file_name == promises.__file__


def _where(equation: Any) -> str:
    """Its innermost lines in the source that are not jax's own, and the name of its scope."""
    names = str(equation.source_info.name_stack)
    lines = (
        f"{_function(one)} ({one.file_name.rpartition('/')[2]}:{one.line_num})"
        for one in _frames(equation)
    )
    scope = names.rpartition("/")[2]
    return " < ".join(islice(lines, FRAMES)) + (f" [{scope}]" if scope else "")


def _frames(equation: Any) -> Iterator[Any]:
    """Where it was traced, from the innermost frame on, without jax's own."""
    traceback = equation.source_info.traceback
    return (one for one in (traceback.frames if traceback else ()) if not _is_foreign(one))


def _is_foreign(frame: Any) -> bool:
    return any(part in frame.file_name for part in FOREIGN)


def _function(frame: Any) -> str:
    """The innermost function of a frame that has a name."""
    names = [one for one in frame.function_name.split(".") if one not in NAMELESS]
    return str(names[-1]) if names else "<module>"


def _copied(source: int, out: int) -> _Step:
    def step(values: list[Value], _run: Run) -> None:
        values[out] = values[source]

    return step


def _converted(source: int, out: int, kind: Any) -> _Step:
    to = bool if np.dtype(kind).kind == "b" else int

    def step(values: list[Value], _run: Run) -> None:
        values[out] = None if values[source] is None else to(values[source])

    return step


def _computed(act: Callable[..., int], given: list[int], out: int, site: Site | None) -> _Step:
    if len(given) == 2:
        return _of_two(act, *given, out=out, site=site)

    def step(values: list[Value], _run: Run) -> None:
        numbers = [values[place] for place in given]
        values[out] = None if None in numbers else act(*numbers)

    return step


def _of_two(
    act: Callable[..., int], first: int, second: int, *, out: int, site: Site | None
) -> _Step:
    def step(values: list[Value], run: Run) -> None:
        one, other = values[first], values[second]
        if one is None or other is None:
            values[out] = None
            return
        values[out] = act(one, other)
        if site is not None:
            run.watch.compared(site, one, other)

    return step


def _select(_compiler: _Compiler, equation: Any, at: _Slots, _place: _Place) -> _Step | None:
    which, *cases = at.every(equation.invars)
    (out,) = at.every(equation.outvars)
    if not is_scalar(equation.outvars[0].aval):
        return None

    def step(values: list[Value], _run: Run) -> None:
        index = values[which]
        values[out] = None if index is None else values[cases[int(index)]]

    return step


def _cond(compiler: _Compiler, equation: Any, at: _Slots, place: _Place) -> _Step:
    which, *given = at.every(equation.invars)
    out, branches = at.every(equation.outvars), equation.params["branches"]
    site = compiler.site(equation, place, Kind.PREDICATE, len(branches))
    blocks = [
        compiler.block(branch.jaxpr, place.inside(index)) for index, branch in enumerate(branches)
    ]

    def step(values: list[Value], run: Run) -> None:
        if values[which] is None:
            raise Unknown(f"a branch depends on data: {site.where}")
        index = min(max(int(values[which]), 0), len(blocks) - 1)
        run.watch.decided(site, index)
        _put(values, out, blocks[index].run(run, [values[one] for one in given]))

    return step


def _put(values: list[Value], out: list[int], found: Sequence[Value]) -> None:
    for place, value in zip(out, found, strict=True):
        values[place] = value


def _while(compiler: _Compiler, equation: Any, at: _Slots, place: _Place) -> _Step:
    asked, held = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    given, out = at.every(equation.invars), at.every(equation.outvars)
    site = compiler.site(equation, place, Kind.LOOP)
    goes_on = compiler.block(equation.params["cond_jaxpr"].jaxpr, place.inside("while"))
    body = compiler.block(equation.params["body_jaxpr"].jaxpr, place.inside("do", loop=True))

    def step(values: list[Value], run: Run) -> None:
        every = [values[one] for one in given]
        carry = every[asked + held :]
        run.watch.enter()
        while _holds(goes_on, run, [*every[:asked], *carry], site):
            run.watch.passes()
            carry = body.run(run, [*every[asked : asked + held], *carry])
        run.watch.leave(site)
        _put(values, out, carry)

    return step


def _holds(condition: _Block, run: Run, given: list[Value], site: Site) -> bool:
    (more,) = condition.run(run, given)
    if more is None:
        raise Unknown(f"a loop depends on data: {site.where}")
    return bool(more)


def _scan(compiler: _Compiler, equation: Any, at: _Slots, place: _Place) -> _Step:
    fixed, carried = equation.params["num_consts"], equation.params["num_carry"]
    given, out = at.every(equation.invars), at.every(equation.outvars)
    body = compiler.block(equation.params["jaxpr"].jaxpr, place.inside("do", loop=True))

    def step(values: list[Value], run: Run) -> None:
        every = [values[one] for one in given]
        carry, unknown = every[fixed : fixed + carried], [None] * (len(every) - fixed - carried)
        run.watch.enter()
        for _ in range(equation.params["length"]):
            run.watch.passes()
            carry = body.run(run, [*every[:fixed], *carry, *unknown])[:carried]
        run.watch.leave(None)
        _put(values, out, [*carry, *[None] * (len(out) - carried)])

    return step


def _call(compiler: _Compiler, equation: Any, at: _Slots, place: _Place) -> _Step:
    called = programs(equation)
    if len(called) != 1:
        raise Unknown(f"{equation.primitive.name} calls {len(called)} programs")
    (program,) = called
    given, out = at.every(equation.invars), at.every(equation.outvars)
    block = compiler.block(program, place)

    def step(values: list[Value], run: Run) -> None:
        _put(values, out, block.run(run, [values[one] for one in given]))

    return step


def _scoped(compiler: _Compiler, equation: Any, at: _Slots, place: _Place) -> _Step:
    program = equation.params["jaxpr"]
    kinds = [variable.aval for variable in program.invars]
    given, out = at.every(equation.invars), at.every(equation.outvars)
    # What it uses from around it are its constants, which are the inputs of the equation.
    opened = program.replace(constvars=[], invars=[*program.constvars, *program.invars])
    block = compiler.block(opened, place)

    def step(values: list[Value], run: Run) -> None:
        _put(values, out, block.run(run, [*(values[one] for one in given), *map(fresh, kinds)]))

    return step


def _program_id(_compiler: _Compiler, equation: Any, at: _Slots, _place: _Place) -> _Step:
    (out,), axis = at.every(equation.outvars), equation.params["axis"]
    counts = equation.primitive.name == "num_programs"

    def step(values: list[Value], run: Run) -> None:
        values[out] = run.grid[axis] if counts else run.point[axis]

    return step


def _get(_compiler: _Compiler, equation: Any, at: _Slots, _place: _Place) -> _Step | None:
    ref, *rest = equation.invars
    (out,) = at.every(equation.outvars)
    if not is_scalar(equation.outvars[0].aval):
        return None
    part = Part(ref, jax.tree.unflatten(equation.params["tree"], rest), at.of)

    def step(values: list[Value], _run: Run) -> None:
        numbers = part.numbers(values)
        index = None if numbers is None else part.index(values, numbers)
        found = None if numbers is None or index is None else numbers[index]
        values[out] = None if found is None else int(found)

    return step


def _swap(_compiler: _Compiler, equation: Any, at: _Slots, _place: _Place) -> _Step | None:
    ref, value, *rest = equation.invars
    (out,) = at.every(equation.outvars)
    if not steers(ref.aval):
        return None
    part = Part(ref, jax.tree.unflatten(equation.params["tree"], rest), at.of)
    given, scalar = at.of(value), is_scalar(value.aval)

    def step(values: list[Value], _run: Run) -> None:
        numbers, after = part.numbers(values), values[given] if scalar else None
        values[out] = None
        if numbers is None:
            return
        index = part.index(values, numbers)
        if index is not None and scalar:
            values[out] = numbers[index]
        numbers[... if index is None else index] = after if index is not None else None

    return step


def _start(_compiler: _Compiler, equation: Any, at: _Slots, _place: _Place) -> _Step | None:
    pair = jax.tree.unflatten(equation.params["tree"], equation.invars)[:2]
    refs = [getattr(one, "ref", one) for one in pair]
    if not steers(refs[1].aval):
        return None
    source, target = (
        Part(ref, getattr(one, "transforms", ()), at.of)
        for ref, one in zip(refs, pair, strict=True)
    )

    def step(values: list[Value], _run: Run) -> None:
        numbers, came = target.numbers(values), source.numbers(values)
        if numbers is None:
            return
        there = target.index(values, numbers)
        here = None if came is None else source.index(values, came)
        if there is None or came is None or here is None:
            numbers[... if there is None else there] = None
        else:
            numbers[there] = np.reshape(came[here], np.shape(numbers[there]))

    return step


def _nothing(_compiler: _Compiler, equation: Any, at: _Slots, _place: _Place) -> None:
    at.every(equation.outvars)


_Maker = Callable[[_Compiler, Any, _Slots, _Place], _Step | None]
_MAKERS: Final[Mapping[str, _Maker]] = {
    "select_n": _select,
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    **dict.fromkeys(CALLS, _call),
    "run_scoped": _scoped,
    "program_id": _program_id,
    "num_programs": _program_id,
    "get": _get,
    "swap": _swap,
    "dma_start": _start,
    # What follows changes no number that steers: copies are made when they start.
    **dict.fromkeys(("dma_wait", "semaphore_signal", "semaphore_wait", "debug_callback"), _nothing),
}


@frozen(eq=False)
class Kernel:
    """One kernel of a program. sites: where integers decide. literals: integers in its sizes.

    sizes: those by which it divides. whole: of each operand, whether a kernel with a grid has all
    of it at each of its points.
    """

    sites: tuple[Site, ...]
    literals: frozenset[int]
    sizes: frozenset[int]
    _block: _Block
    _kinds: tuple[Any, ...]
    _grid: tuple[int, ...]
    _whole: tuple[bool, ...]

    def follow(self, operands: Sequence[Numbers | None], watch: Watch) -> int:
        """Run it on the integers among its operands, and return its work. Raises Unknown."""
        given = [*operands, *[None] * (len(self._kinds) - len(operands))]
        held = [
            fresh(kind) if number is None or not whole else filled(kind, number)
            for kind, number, whole in zip(self._kinds, given, self._whole, strict=True)
        ]
        run = Run(watch, self._grid)
        for point in product(*map(range, self._grid)):
            run.point = point
            self._block.run(run, held)
        return run.work


def kernel(params: Mapping[str, Any], *, name: str) -> Kernel:
    """Compile the kernel of a `pallas_call`. Raises Unknown."""
    mapping = params["grid_mapping"]
    if not all(isinstance(size, int) for size in mapping.grid):
        raise Unknown("a grid that is not known beforehand")
    compiler = _Compiler()
    block = compiler.block(params["jaxpr"], _Place(kernel=name))
    kinds = tuple(variable.aval for variable in params["jaxpr"].invars)
    whole = [True] * mapping.num_index_operands + [*map(_is_whole, mapping.block_mappings)]
    whole += [True] * (len(kinds) - len(whole))
    numbers = frozenset(compiler.literals), frozenset(compiler.sizes)
    return Kernel(tuple(compiler.sites), *numbers, block, kinds, tuple(mapping.grid), tuple(whole))


def _is_whole(mapping: Any) -> bool:
    """Whether a block is the array."""
    sizes = tuple(getattr(size, "block_size", size) for size in mapping.block_shape)
    return sizes == tuple(mapping.array_aval.shape)
