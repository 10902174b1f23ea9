"""The mutation operators: for each kind of place in a program, the mutants of it.

What cannot change a result is left alone: annotations, documentation, assertions about static
shapes, the text of errors, and the values that a refusal shows.
"""

import ast
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from attrs import frozen

COMPARE: Final[Mapping[type[ast.cmpop], tuple[str, tuple[str, ...]]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=", ">=")),
    ast.NotEq: ("!=", ("==", "<")),
}
"""Each comparison, and what it becomes: its boundary moves, or its answer turns round."""
BINARY: Final[Mapping[type[ast.operator], tuple[str, tuple[str, ...]]]] = {
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("+",)),
    ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("%",)),
    ast.Mod: ("%", ("//",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
    ast.BitXor: ("^", ("|",)),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
    ast.Pow: ("**", ("*",)),
    ast.MatMult: ("@", ()),
}
_SAME_OF_LARGEST: Final = ({"==", ">="}, {"!=", "<"})
"""Comparisons that are the same with INVALID, since no int32 is larger. Words have no order."""
UNARY: Final[Mapping[type[ast.unaryop], str]] = {ast.USub: "-", ast.Invert: "~", ast.Not: "not"}
METHODS: Final[Mapping[str, str | None]] = {
    "set": "add",
    "add": "set",
    "min": "max",
    "max": "min",
    "multiply": "add",
    "get": None,
}
"""The gathers and scatters of jax arrays, and another for each."""
_GATES: Final = (ast.BitAnd, ast.BitOr)
"""Each side of them is a mask or a gate, which may be dropped."""
_MODES: Final = {"drop": "clip", "fill": "clip", "clip": "fill"}
_FIELDS: Final = frozenset({"_replace", "evolve", "put", "replace"})
"""Calls of which each keyword is a field that may be left out."""
_GUARDED: Final = frozenset({"first_refusal"})
"""Calls of which each argument is a guard that may be left out."""
_CLAMPS: Final = frozenset({"minimum", "maximum", "clip", "min", "max"})
_COMMUTATIVE: Final = frozenset({"minimum", "maximum", "min", "max", "array_equal"})
_UNSWAPPED: Final = frozenset(
    {"where", "isinstance", "getattr", "partial", "range", "zip", "cast", *_COMMUTATIVE, *_GUARDED}
)
"""Calls whose arguments trade places to no effect, or to none but an exception."""
_WORDS: Final = frozenset({"require", "Refusal", "InvalidInput", "Check", "Rule"})
"""Functions whose positional arguments are what an error says, beside what decides."""
_SMALL: Final = frozenset({"zeros", "zeros_like", "ones", "ones_like"})
"""Calls whose values fit in 8 bits."""
_ASSERTED: Final = "strict"
"""The keyword by which `zip` asserts that its parts are equally long."""
_GUARD_SIZE: Final = 4
_CHECKED: Final = frozenset({"__attrs_post_init__", "check", "require"})
"""Functions that do nothing but check arguments, beside those whose names begin with `check_`, or
with `_check_`.
"""
LONGEST: Final = 90
"""The most characters of a text in a name."""


class Place(NamedTuple):
    """A mutant at a place. kind: the operator. how, to: what `schemata` needs to make it.

    after: the text that it stands for.
    """

    kind: str
    how: str
    to: Any
    after: str


@frozen
class Mutant:
    """One change. number: chooses it. place: the function, dotted. line: of the file.

    kind: the operator. before, after: the expression or statement. checks: whether it is in a check
    of arguments. same: how many mutants before it would have the same name.
    """

    number: int
    module: str
    place: str
    line: int
    kind: str
    before: str
    after: str
    checks: bool = False
    same: int = 0

    @property
    def id(self) -> str:
        """A name for people, the same as long as the function is."""
        again = f" ({self.same})" if self.same else ""
        before, after = (shorten(text) for text in (self.before, self.after))
        return f"{self.module}.{self.place}: {before} -> {after}{again}"


def shorten(text: str) -> str:
    """A text without its middle if it is long; unlike texts may become alike."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"


def statement(node: ast.stmt) -> list[Place]:
    """A statement that is left out: a guard, if it refuses."""
    return [Place("guard" if refuses(node) else "statement", "", None, "(left out)")]


def condition(node: ast.expr) -> list[Place]:
    """The test of an `if` or a `while` turned round, unless it has mutants of its own."""
    if isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
        return []
    return [Place("condition", "", 0, f"not ({ast.unparse(node)})")]


def constant(node: ast.Constant) -> list[Place]:
    """A constant that stands by itself."""
    other = _other(node)
    return [] if other is None else [Place("constant", "", other, repr(other))]


def comparison(node: ast.Compare) -> list[Place]:
    """A comparison with another operator or another constant."""
    name, others = COMPARE[type(node.ops[0])]
    left, right = node.left, node.comparators[0]
    a, b = ast.unparse(left), ast.unparse(right)
    if b == "INVALID" or _is_text(right):
        others = tuple(to for to in others if {name, to} not in _SAME_OF_LARGEST)
    found = [Place("comparison", "operator", to, f"{a} {to} {b}") for to in others]
    return found + _shifted(name, left, right)


def arithmetic(node: ast.BinOp) -> list[Place]:
    """An operation that becomes another one, or one of its sides."""
    name, others = BINARY[type(node.op)]
    a, b = ast.unparse(node.left), ast.unparse(node.right)
    found = [Place("arithmetic", "operator", to, f"{a} {to} {b}") for to in others]
    if isinstance(node.op, _GATES):
        found += [Place("mask", "only left", None, a), Place("mask", "only right", None, b)]
    return found + _shifted(name, node.left, node.right)


def unary(node: ast.UnaryOp) -> list[Place]:
    """An operation on one value that is left out."""
    return [Place("mask", "", None, ast.unparse(node.operand))]


def either(node: ast.BoolOp) -> list[Place]:
    """One part alone of a condition with several."""
    return [Place("mask", "", at, ast.unparse(one)) for at, one in enumerate(node.values)]


def subscript(node: ast.Subscript) -> list[Place]:
    """An index one higher."""
    return [
        Place("index", "", at, f"index {at} one higher")
        for at, part in enumerate(parts(node.slice))
        if not isinstance(part, ast.Slice | ast.Constant | ast.UnaryOp | ast.Starred)
    ]


def guard(node: ast.Tuple) -> list[Place]:
    """A guard that never refuses."""
    return [Place("guard", "", None, f"{ast.unparse(node.elts[1])} never refuses")]


def update(node: Any) -> list[Place]:
    """A gather or scatter of a jax array, `array.at[index].method(...)`."""
    method = node.func.attr
    found = [
        Place("index", "index", at, f"index {at} one higher")
        for at, part in enumerate(parts(node.func.value.slice))
        if not isinstance(part, ast.Slice | ast.Constant)
    ]
    if METHODS[method]:
        found.append(Place("arithmetic", "method", METHODS[method], f"{METHODS[method]}"))
        found.append(Place("statement", "drop", None, "(left out)"))
    for one in node.keywords:
        if one.arg == "mode" and isinstance(one.value, ast.Constant):
            mode = _MODES[str(one.value.value)]
            found.append(Place("mode", "mode", mode, f"mode {mode}"))
    for one in node.args:
        other = _other(one)
        if other is not None:
            found.append(Place("constant", "argument", other, f"{other!r}"))
    return found


def call(node: ast.Call) -> list[Place]:
    """A call with other arguments, or one of its arguments in its place."""
    name = name_of(node.func)
    return [*_arguments(node, name), *_constants(node), *_masks(node, name), *_dtypes(node, name)]


def _arguments(node: ast.Call, name: str) -> Iterator[Place]:
    """Arguments that trade places, and guards and fields that are left out."""
    says = isinstance(node.func, ast.Name) and name in _WORDS
    if name not in _UNSWAPPED and not says:
        for at in range(len(node.args) - 1):
            yield Place("arguments", "swap", at, f"arguments {at} and {at + 1} swapped")
    if name in _GUARDED:
        yield Place("order", "reverse", None, "the guards in reverse order")
        for at, one in enumerate(node.args):
            yield Place("guard", "drop argument", at, f"without {ast.unparse(one)}")
    if name in _FIELDS:
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield Place("field", "drop keyword", keyword.arg, f"without {keyword.arg}")


def _constants(node: ast.Call) -> Iterator[Place]:
    for at, one in enumerate(node.args):
        other = _other(one)
        if other is not None:
            yield Place("constant", "argument", (at, other), f"argument {at} is {other!r}")
    for keyword in node.keywords:
        other = _other(keyword.value)
        if other is not None and keyword.arg not in {None, _ASSERTED}:
            yield Place("constant", "keyword", (keyword.arg, other), f"{keyword.arg} is {other!r}")


def _masks(node: ast.Call, name: str) -> Iterator[Place]:
    """A selection that always takes one side; a clip or a minimum that is left out."""
    if name == "where" and len(node.args) == 3:
        yield Place("mask", "only", 1, "always the first")
        yield Place("mask", "only", 2, "always the second")
    elif name in _CLAMPS and node.args:
        yield Place("clamp", "only", 0, "its first argument")


def _dtypes(node: ast.Call, name: str) -> Iterator[Place]:
    if name in _SMALL:
        return
    narrowed = {"int32", "uint32"}
    every = [*node.args, *(one.value for one in node.keywords)]
    named = any(isinstance(one, ast.Attribute) and one.attr in narrowed for one in every)
    if named or name in narrowed:
        yield Place("dtype", "narrow", None, "narrowed to 8 bits")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _shifted(name: str, left: ast.expr, right: ast.expr) -> list[Place]:
    """Another constant on either side of an operation."""
    a, b = ast.unparse(left), ast.unparse(right)
    found = []
    if (other := _other(left)) is not None:
        found.append(Place("constant", "left", other, f"{other!r} {name} {b}"))
    if (other := _other(right)) is not None:
        found.append(Place("constant", "right", other, f"{a} {name} {other!r}"))
    return found


def _other(node: ast.expr) -> object:
    """Another constant: one more, or the opposite; None for text and the like."""
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else None


# What a node is.


def parts(index: ast.expr) -> list[ast.expr]:
    """The indices of a subscript, one for each axis."""
    return list(index.elts) if isinstance(index, ast.Tuple) else [index]


def name_of(function: ast.expr) -> str:
    """The last part of a dotted name; empty for another expression."""
    match function:
        case ast.Attribute(_, name) | ast.Name(name):
            return name
    return ""


def is_type(node: ast.Subscript) -> bool:
    """Whether a subscript is a type with parameters, as `tuple[int]`."""
    name = name_of(node.value)
    return name in {"tuple", "list", "dict", "set", "frozenset"} or name[:1].isupper()


def is_guard(node: ast.Tuple) -> bool:
    """Whether a tuple is a guard: (refuses, Reason, seen, allowed)."""
    return len(node.elts) == _GUARD_SIZE and ast.unparse(node.elts[1]).lower().startswith("reason")


def refuses(node: ast.stmt) -> bool:
    """Whether a statement raises a refusal."""
    match node:
        case ast.Raise(ast.Call(function)):
            return name_of(function) == "refused"
    return False


def is_check(node: ast.stmt) -> bool:
    """Whether a statement does nothing but check arguments: it may raise InvalidInput."""
    match node:
        case ast.FunctionDef(name):
            return _is_checking(name)
        case ast.Expr(ast.Call(function)):
            return _is_checking(name_of(function))
        case ast.If(_, [inner], []):
            return isinstance(inner, ast.Raise) and is_check(inner)
        case ast.Raise(ast.Call(function)):
            return name_of(function) == "InvalidInput"
    return False


def _is_checking(name: str) -> bool:
    return name in _CHECKED or name.removeprefix("_").startswith("check_")


def is_update(node: ast.Call) -> bool:
    """Whether a call gathers from or scatters to a jax array."""
    match node.func:
        case ast.Attribute(ast.Subscript(ast.Attribute(_, "at"), _), method):
            return method in METHODS
    return False


def binds(node: ast.AST) -> bool:
    """Whether an expression binds a name, so that it cannot move into a function."""
    return any(isinstance(one, ast.NamedExpr | ast.Yield | ast.Await) for one in ast.walk(node))
