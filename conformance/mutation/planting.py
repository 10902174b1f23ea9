"""The mutants of modules, put in the place of the modules' own functions while a block runs.

Only the code of a function is exchanged. The function stays the same object, so that every module
that imported it, and every table and decorator that holds it, has the mutants.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType

from conformance.mutation import schemata
from conformance.mutation.rewriting import RUNTIME, Rewritten

Place = tuple[str, int]
"""The qualified name of a function and its first line."""


@contextmanager
def planted(modules: Sequence[Rewritten]) -> Iterator[None]:
    """Exchange the code of the functions of these modules, which must have been imported.

    Compiled functions are neither dropped nor remade: a caller who has some clears them itself.
    """
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for one in modules:
            setattr(sys.modules[one.module], RUNTIME, schemata)
            for function, code in exchanged(one):
                before.append((function, function.__code__))
                function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def exchanged(rewritten: Rewritten) -> list[tuple[FunctionType, CodeType]]:
    """Each function of a module, wherever it is held, and the code that has its mutants."""
    codes, file = dict(_codes(rewritten.code)), sys.modules[rewritten.module].__file__
    found = []
    for function in _objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == file:
            own = function.__code__
            code = codes.get((own.co_qualname, own.co_firstlineno))
            if code is not None and code.co_freevars == own.co_freevars:
                found.append((function, code))
    return found


def _objects() -> list[object]:
    """Every object that the collector knows, those that it leaves alone included."""
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
    every = gc.get_objects()
    if frozen:
        gc.freeze()
    return every


def _codes(code: CodeType) -> Iterator[tuple[Place, CodeType]]:
    """Every function in a compiled module."""
    for held in code.co_consts:
        if isinstance(held, CodeType):
            yield (held.co_qualname, held.co_firstlineno), held
            yield from _codes(held)
