"""Digests of our own sources, which say whether a result was found with the same ones."""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

import spec

PACKAGES: Final = ("spec", "impl", "conformance")
_ROOT: Final = Path(spec.__file__).parents[1]
_PARSES: Final = Lock()
"""Held while a file is parsed: in some releases of CPython two threads that parse at once raise
SystemError.
"""


def digest(*packages: str) -> str:
    """A digest of the Python files of these packages or folders; by default of all of ours."""
    folders = packages or PACKAGES
    return digest_of(path for folder in folders for path in sorted((_ROOT / folder).rglob("*.py")))


def digest_of(paths: Iterable[Path]) -> str:
    """A digest of the contents of these files, in this order."""
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def code_of(paths: Iterable[Path]) -> str:
    """A digest of the code of these files, in this order. Comments and docstrings do not count."""
    found = hashlib.sha256()
    for path in paths:
        found.update(_code(path.read_bytes()))
    return found.hexdigest()[:16]


@cache
def _code(source: bytes) -> bytes:
    with _PARSES:
        tree = ast.parse(source)
    return ast.unparse(_Wordless().visit(tree)).encode() + b"\0"


class _Wordless(ast.NodeTransformer):
    """Leaves out texts that are statements: docstrings, and those behind a constant."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """Nothing in the place of a text."""
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if text else node


def imported(*modules: str) -> list[Path]:
    """The files of ours that these modules import, with their own, in order.

    Imports inside functions count, and so does a module that a text names, such as MODULE:FUNCTION.
    """
    found, waiting = dict[str, Path](), [*modules]
    while waiting:
        name = waiting.pop()
        path = None if name in found else _file(name)
        if path is not None:
            found[name] = path
            waiting += [name.rpartition(".")[0], *_named(path)]
    return sorted({*found.values()})


@cache
def _file(module: str) -> Path | None:
    """The file of a module of ours; None for any other name."""
    parts = module.split(".")
    if parts[0] not in PACKAGES or not all(part.isidentifier() for part in parts):
        return None
    at = _ROOT.joinpath(*parts)
    return next(
        (path for path in (at.with_suffix(".py"), at / "__init__.py") if path.exists()), None
    )


@cache
def _named(path: Path) -> tuple[str, ...]:
    """What a file names that may be a module."""
    with _PARSES:
        tree = ast.parse(path.read_bytes())
    return tuple(name for node in ast.walk(tree) for name in _names(node))


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names):
            yield from (one.name for one in names)
        case ast.ImportFrom(str(module), names):
            yield from (module, *(f"{module}.{one.name}" for one in names))
        case ast.Constant(str(text)):
            yield text.partition(":")[0]
