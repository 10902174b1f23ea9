"""A module rewritten so that each of its mutants can be chosen by its number.

Every place that can be mutated becomes a call of `schemata`, from the leaves up. Code at the top of
a module or a class is left alone: it has run already when a mutant is chosen.
"""

import ast
import importlib.util
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Final, cast

from attrs import evolve, frozen

from conformance.mutation import operators
from conformance.mutation.operators import BINARY, COMPARE, UNARY, Mutant, Place

RUNTIME: Final = "__schemata__"
"""The name under which a rewritten module knows `schemata`."""


@frozen(eq=False)
class Rewritten:
    """A module with mutants. mutants: all of them. code: to be executed in place of its own."""

    module: str
    mutants: tuple[Mutant, ...]
    code: CodeType


def rewrite(module: str, *, first: int = 0, only: Collection[int] | None = None) -> Rewritten:
    """A module of ours. first: the number of its first mutant. only: those in the code; all."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, "it is a module of ours"
    assert spec.origin is not None, "it has a file"
    text = Path(spec.origin).read_text(encoding="utf-8")
    return rewrite_text(module, text, file=spec.origin, first=first, only=only)


def rewrite_text(
    module: str,
    text: str,
    *,
    file: str = "",
    first: int = 0,
    only: Collection[int] | None = None,
) -> Rewritten:
    """The same for the text of a module. file: whence tracebacks say that it comes."""
    rewriter = _Rewriter(module, first, only)
    changed = ast.fix_missing_locations(rewriter.visit(ast.parse(text)))
    return Rewritten(module, tuple(rewriter.found), compile(changed, file, "exec"))


class _Rewriter(ast.NodeTransformer):
    """Replaces each place. A place without mutants in the code keeps its form."""

    def __init__(self, module: str, first: int, only: Collection[int] | None) -> None:
        self._module, self._first, self._only = module, first, only
        self.found: list[Mutant] = []
        self._named: Counter[str] = Counter()
        self._place: list[str] = []
        self._bound: set[str] = set()
        self._checks = False

    # Statements.

    def visit_Module(self, node: ast.Module) -> ast.AST:
        node.body = self._only_functions(node.body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._place.append(node.name)
        node.body = self._only_functions(node.body)
        self._place.pop()
        return node

    def _only_functions(self, body: list[ast.stmt]) -> list[ast.stmt]:
        kinds = (ast.FunctionDef, ast.ClassDef)
        return [self.visit(one) if isinstance(one, kinds) else one for one in body]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._place.append(node.name)
        outer, checks, arguments = self._bound, self._checks, node.args
        self._checks |= operators.is_check(node)
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        self._bound = {one.arg for one in every}
        node.body = self._block(node.body)
        self._bound, self._checks = outer, checks
        self._place.pop()
        return node

    def _block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [self._statement(one) for one in body]

    def _statement(self, node: ast.stmt) -> ast.stmt:
        outer = self._checks
        self._checks |= operators.is_check(node)
        changed = self._changed(node)
        self._checks = outer
        return changed

    def _changed(self, node: ast.stmt) -> ast.stmt:
        match node:
            case ast.Expr(ast.Constant()) | ast.Assert() | ast.Pass() | ast.Global():
                return node
            case ast.Import() | ast.ImportFrom() | ast.Nonlocal():
                return node
            case ast.Raise():
                return self._droppable(node, lambda _: node)
            case ast.Expr():
                return self._droppable(node, self.generic_visit)
            case ast.Assign([ast.Name(name)], value):
                return self._assignment(node, name, value)
            case ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
                return self._droppable(node, self._with_value)
            case ast.Assign() | ast.AnnAssign() | ast.Return():
                self._bound |= _names(node)
                return cast(ast.stmt, self._with_value(node))
            case ast.FunctionDef():
                visited: ast.stmt = self.visit(node)
                return visited
        self._inside(node)
        return node

    def _inside(self, node: ast.stmt) -> None:
        """The blocks and expressions of a compound statement."""
        for name, held in ast.iter_fields(node):
            if isinstance(held, list) and held and isinstance(held[0], ast.stmt):
                setattr(node, name, self._block(held))
            elif isinstance(held, list):
                setattr(node, name, [self._part(one) for one in held])
            elif name == "test":
                setattr(node, name, self._condition(held))
            elif isinstance(held, ast.expr) and name != "target":
                setattr(node, name, self.visit(held))

    def _part(self, node: Any) -> Any:
        match node:
            case ast.ExceptHandler():
                node.body = self._block(node.body)
            case ast.match_case():
                node.body = self._block(node.body)
                node.guard = node.guard and self._condition(node.guard)
            case ast.withitem():
                node.context_expr = self.visit(node.context_expr)
            case ast.expr():
                return self.visit(node)
        return node

    def _with_value(self, node: Any) -> Any:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def _condition(self, node: ast.expr) -> ast.expr:
        specs = [] if operators.binds(node) else self._specs(node, operators.condition(node))
        inner: ast.expr = self.visit(node)
        if not specs:
            return inner
        negated = ast.UnaryOp(ast.Not(), inner)
        return _call("lazily", _tuple(specs), _thunk(inner), _thunk(negated))

    def _assignment(self, node: ast.Assign, name: str, value: ast.expr) -> ast.stmt:
        specs = self._specs(node, operators.statement(node)) if name in self._bound else []
        node.value = self.visit(value)
        if specs:
            before = _thunk(ast.Name(name, ast.Load()))  # it may be unbound on this path
            node.value = _call("assign", _tuple(specs), node.value, before)
        self._bound.add(name)
        return node

    def _droppable(self, node: ast.stmt, visit: Callable[[Any], Any]) -> ast.stmt:
        specs = self._specs(node, operators.statement(node))
        changed = visit(node)
        if not specs:
            return cast(ast.stmt, changed)
        test = ast.UnaryOp(ast.Not(), _call("dropped", _tuple(specs)))
        return ast.copy_location(ast.If(test, [changed], []), node)

    # Expressions.

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        node.body = self.visit(node.body)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        specs = self._specs(node, operators.constant(node))
        return _call("constant", _tuple(specs), node) if specs else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) > 1 or type(node.ops[0]) not in COMPARE:
            return self.generic_visit(node)
        specs = self._specs(node, operators.comparison(node))
        node.left, right = self._operand(node.left), self._operand(node.comparators[0])
        node.comparators = [right]
        if not specs:
            return node
        name = _constant(COMPARE[type(node.ops[0])][0])
        return _call("operation", _tuple(specs), name, node.left, right)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if type(node.op) not in BINARY or isinstance(node.left, ast.JoinedStr):
            return self.generic_visit(node)
        specs = self._specs(node, operators.arithmetic(node))
        node.left, node.right = self._operand(node.left), self._operand(node.right)
        if not specs:
            return node
        name = _constant(BINARY[type(node.op)][0])
        return _call("operation", _tuple(specs), name, node.left, node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if type(node.op) not in UNARY or isinstance(node.operand, ast.Constant):
            return node
        specs = self._specs(node, operators.unary(node))
        node.operand = self.visit(node.operand)
        if not specs:
            return node
        return _call("unary", _tuple(specs), _constant(UNARY[type(node.op)]), node.operand)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if operators.binds(node):
            return self.generic_visit(node)
        specs = self._specs(node, operators.either(node))
        changed = cast(ast.BoolOp, self.generic_visit(node))
        if not specs:
            return changed
        return _call("lazily", _tuple(specs), _thunk(changed), *map(_thunk, changed.values))

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test = self._condition(node.test)
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if operators.is_type(node) or not isinstance(node.ctx, ast.Load):
            return node
        specs = self._specs(node, operators.subscript(node))
        node.value, node.slice = self.visit(node.value), self._index(node.slice)
        return _call("subscript", _tuple(specs), node.value, node.slice) if specs else node

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        if not operators.is_guard(node) or not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        specs = self._specs(node, operators.guard(node))
        node.elts[0] = self.visit(node.elts[0])
        return _call("guard", _tuple(specs), *node.elts) if specs else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if operators.is_update(node):
            return self._update(node)
        unpacks = any(one.arg is None for one in node.keywords)
        specs = [] if unpacks else self._specs(node, operators.call(node))
        node.args = [self._operand(one) for one in node.args]
        for one in node.keywords:
            one.value = self._operand(one.value)
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        if not specs:
            return node
        return _call("call", _tuple(specs), node.func, _each(node.args), _named(node))

    def _update(self, node: Any) -> ast.AST:
        specs = self._specs(node, operators.update(node))
        node.args = [self._operand(one) for one in node.args]
        for one in node.keywords:
            one.value = self._operand(one.value)
        at = node.func.value
        at.value.value, at.slice = self.visit(at.value.value), self._index(at.slice)
        if not specs:
            return cast(ast.Call, node)
        method, args = _constant(node.func.attr), ast.Tuple(node.args, ast.Load())
        return _call("update", _tuple(specs), method, at.value.value, at.slice, args, _named(node))

    def _operand(self, node: ast.expr) -> Any:
        """An operand of a place; a constant there is mutated with the place."""
        return node if isinstance(node, ast.Constant) else self.visit(node)

    def _index(self, node: ast.expr) -> ast.expr:
        """An index as a value: a slice `a:b` becomes a call of `slice`."""
        parts = [
            _slice(one) if isinstance(one, ast.Slice) else self._operand(one)
            for one in operators.parts(node)
        ]
        return ast.Tuple(parts, ast.Load()) if isinstance(node, ast.Tuple) else parts[0]

    def _specs(self, node: ast.AST, places: Sequence[Place]) -> list[ast.expr]:
        """Number the mutants of a place; return what `schemata` needs of those in the code."""
        made: list[ast.expr] = []
        text, line, where = ast.unparse(node), getattr(node, "lineno", 0), ".".join(self._place)
        for place in places:
            number = self._first + len(self.found)
            what = (place.kind, text, place.after)
            mutant = Mutant(number, self._module, where, line, *what, checks=self._checks)
            self.found.append(evolve(mutant, same=self._named[mutant.id]))
            self._named[mutant.id] += 1
            if self._only is None or number in self._only:
                made.append(_constant((number, place.how, place.to)))
        return made


def _call(name: str, *args: Any) -> ast.Call:
    """A call of a function of `schemata`."""
    function = ast.Attribute(ast.Name(RUNTIME, ast.Load()), name, ast.Load())
    return ast.Call(function, list(args), [])


def _constant(value: object) -> ast.expr:
    return _tuple(map(_constant, value)) if isinstance(value, tuple) else ast.Constant(value)  # type: ignore[arg-type]


def _tuple(parts: Any) -> ast.expr:
    return ast.Tuple(list(parts), ast.Load())


def _thunk(body: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), body)


def _each(args: Sequence[ast.expr]) -> ast.expr:
    """The arguments of a call, each with whether it is starred."""
    return _tuple(
        _tuple([ast.Constant(value=True), one.value])
        if isinstance(one, ast.Starred)
        else _tuple([ast.Constant(value=False), one])
        for one in args
    )


def _named(node: ast.Call) -> ast.expr:
    keys: list[ast.expr | None] = [ast.Constant(one.arg) for one in node.keywords]
    return ast.Dict(keys, [one.value for one in node.keywords])


def _slice(node: ast.Slice) -> ast.expr:
    ends = [end or ast.Constant(None) for end in (node.lower, node.upper, node.step)]
    return ast.Call(ast.Name("slice", ast.Load()), ends, [])


def _names(node: ast.stmt) -> set[str]:
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return {one.id for one in names if isinstance(one.ctx, ast.Store)}
