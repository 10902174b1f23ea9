"""The mutation operator: each comparison, constant and index of some engine functions is changed.

A mutant is made from the source of a function, never stored. The diagnostics of a refusal, the
value seen and the value allowed, are not mutated: no contract fixes them.
"""

import ast
import copy
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from attrs import frozen

TARGETS: Final = {
    "impl.plan": (
        *("sort_batch", "plan_pages", "fork_pages", "batch_plan", "in_range", "choice_taken"),
        *("require_used", "require_unused", "require_live", "require_next", "require_below"),
        *("require_length", "require_pages", "require_unqueued", "require_prompt"),
        "require_no_proposal",
    ),
    "impl.commit": ("commit_pages", "commit_cells", "cut_cells", "begin", "fork", "release"),
    "impl.state.pages": ("make", "is_free", "lowest_free", "grow", "fork", "cut", "release"),
    "impl.state.slots": ("make", "lowest_unused", "put", "begin", "fork", "release"),
    "impl.state.queue": (
        *("make", "head", "pop", "push", "fork", "purge", "truncate", "pending", "_keep"),
    ),
    "impl.state.outputs": ("make", "waiting"),
    "impl.steps.sequences": ("reserve", "assign", "clone", "free", "free_finished"),
    "impl.steps.allocation": ("allocate",),
    "impl.steps.writing": ("write",),
    "impl.steps.queueing": ("enqueue", "pack", "purge"),
    "impl.steps.rollback": ("propose", "commit", "truncate"),
    "impl.steps.reset": ("reset_logical", "reset_physical"),
    "impl.status": ("first_refusal", "accepted", "target"),
    "impl.cache.paged": ("write", "copy_page", "zero"),
}
"""The mutated functions: allocation, clone, free, rollback, reset, the queue, their helpers."""

FLIPPED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
GUARD_SIZE: Final = 4

Site = tuple[ast.expr, Callable[[], None]]
"""An expression that can be changed, and what changes it in place."""


@frozen
class Mutant:
    """One change. before, after: the expression. number: among equal expressions."""

    module: str
    function: str
    before: str
    after: str
    number: int
    tree: ast.Module

    @property
    def id(self) -> str:
        """Stable as long as the text of the function is."""
        again = f" ({self.number})" if self.number else ""
        return f"{self.module}.{self.function}: {self.before} -> {self.after}{again}"

    def build(self, _right: object) -> Callable[..., object]:
        """The changed function."""
        namespace = dict(vars(importlib.import_module(self.module)))
        exec(compile(self.tree, f"<{self.id}>", "exec"), namespace)
        made: Callable[..., object] = namespace[self.function]
        return made


def mutants() -> Iterator[Mutant]:
    """All mutants, in order of the source."""
    for module, functions in TARGETS.items():
        held = importlib.import_module(module)
        for function in functions:
            yield from _of(module, function, inspect.getsource(getattr(held, function)))


def _of(module: str, function: str, source: str) -> Iterator[Mutant]:
    tree = ast.parse(textwrap.dedent(source))
    count = len(list(_sites(tree)))
    seen: dict[tuple[str, str], int] = {}
    for index in range(count):
        changed = copy.deepcopy(tree)
        node, change = list(_sites(changed))[index]
        before = ast.unparse(node)
        change()
        after = ast.unparse(node)
        number = seen.get((before, after), 0)
        seen[before, after] = number + 1
        yield Mutant(module, function, before, after, number, ast.fix_missing_locations(changed))


def _sites(tree: ast.AST) -> Iterator[Site]:
    """The nodes to change: in the body, not annotations or documentation."""
    for node in tree.body[0].body:  # type: ignore[attr-defined]
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield from _inside(node)


def _inside(node: ast.AST) -> Iterator[Site]:
    if isinstance(node, ast.Assert):  # what is static: the tests of the engine trip each assertion
        return
    if isinstance(node, ast.Compare) and type(node.ops[0]) in FLIPPED:
        yield node, partial(_flip, node)
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int)):
        yield node, partial(_shift_constant, node)
    if isinstance(node, ast.Subscript) and not _is_type(node):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for number, part in enumerate(parts):
            if not isinstance(part, (ast.Constant, ast.Slice)):
                yield node, partial(_shift_index, node, number)
    for child in _children(node):
        yield from _inside(child)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for name, child in ast.iter_fields(node):
        held = child if isinstance(child, list) else [child]
        if name not in {"annotation", "returns"}:
            shown = held[:1] if _is_guard(node) and name == "elts" else held
            yield from (one for one in shown if isinstance(one, ast.AST))


def _is_guard(node: ast.AST) -> bool:
    """Whether a node is a guard tuple (refuses, Reason, seen, allowed)."""
    return (
        isinstance(node, ast.Tuple)
        and len(node.elts) == GUARD_SIZE
        and ast.unparse(node.elts[1]).lower().startswith("reason")
    )


def _is_type(node: ast.Subscript) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"tuple", "list", "dict"}


def _flip(node: ast.Compare) -> None:
    node.ops[0] = FLIPPED[type(node.ops[0])]()


def _shift_constant(node: ast.Constant) -> None:
    value = node.value
    node.value = not value if isinstance(value, bool) else int(str(value)) + 1


def _shift_index(node: ast.Subscript, number: int) -> None:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    moved = ast.BinOp(parts[number], ast.Add(), ast.Constant(1))
    if isinstance(node.slice, ast.Tuple):
        node.slice.elts[number] = moved
    else:
        node.slice = moved
