"""The calls of an adapter, so that a mistake of the adapter is told apart from the engine's.

An exception is the engine's if it comes out of the engine's code: out of a function that is neither
in the module of the adapter, nor the kit's, nor of the standard library or a library of arrays. In
the module of the adapter the methods of other classes are the engine's. Everything else is the
adapter's mistake, which is no finding: its factory, a view of the wrong shape, an exception in its
own code. Source: docs/sources.md, "Adapters".
"""

import linecache
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from copy import copy
from functools import partial
from operator import eq, index
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, NamedTuple

from attrs import asdict

import spec
from conformance.lockstep.lockstep import Violation
from conformance.lockstep.watchdog import Hung
from conformance.protocol import (
    RESULTS,
    Action,
    AdapterMistake,
    Attends,
    Compiles,
    Copies,
    Counts,
    Emits,
    Engine,
    EngineFailed,
    Erases,
    Poison,
    Poisonable,
    Profile,
    Result,
    Scores,
    Serves,
)
from conformance.runtime.optional_dependencies import extra_of
from spec.fields import OutputEntry
from spec.stats import NAMED
from spec.table import BatchPlan
from spec.view import View, outputs, plain
from spec.vocabulary import Geometry, InvalidInput, Refused, Request, Tokens
from spec.vocabulary.errors import shown
from spec.vocabulary.events import WORDS, Event

OPTIONAL: Final[Mapping[str, type]] = {
    "poison": Poisonable,
    "attend": Attends,
    "compilations": Compiles,
    "pool_copies": Copies,
    "serve": Serves,
    "statistics": Counts,
    "events": Emits,
    "logprobs": Scores,
    "erased": Erases,
}
"""The optional methods of an adapter."""
ASKED: Final = tuple(name for name in OPTIONAL if name not in {"poison", "attend", "serve"})
"""Those that take no argument, and change nothing that the view shows."""
FACTORY: Final = "a factory takes (geometry, limits, cleanup) and returns a new adapter each time"
_HOME: Final = Path(spec.__file__).parents[1]
_KIT: Final = tuple(str(_HOME / name) for name in ("spec", "conformance"))
_ADAPTERS: Final = str(_HOME / "conformance" / "engines")
_STDLIB: Final = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_ARRAYS: Final = frozenset({"numpy", "jax", "jaxlib", "torch", "attr", "attrs"})
"""Libraries whose functions an adapter calls itself: an exception there is their caller's."""
_COMPARED: Final = frozenset({int, float, bool, str, bytes, type(None)})
"""The types of contents that can be compared with any other."""


class Called:
    """An adapter as the kit calls it; see `conformance.protocol.Engine`.

    make: makes the adapter, which is then `adapter`. It has those of the OPTIONAL methods that the
    adapter has. Its methods raise Refused, EngineFailed, and AdapterMistake or another
    InvalidInput.
    """

    def __init__(self, make: Callable[[], Engine]) -> None:
        with _told_apart("factory", None):
            self.adapter = make()
        with _told_apart("profile", self.adapter):
            self.profile = self.adapter.profile
        _require_kind("profile", self.profile, Profile)
        self._seen: tuple[View, View] | None = None
        for name, kind in OPTIONAL.items():
            if isinstance(self.adapter, kind):  # what it does not have must not be found here
                setattr(self, name, getattr(self, f"_{name}"))

    def apply(self, action: Action) -> Result:
        """Apply an action. Lists and arrays in its result become tuples."""
        with _told_apart(action, self.adapter):
            result: Any = _plain_result(self._apply(action))
        returned = RESULTS.get(type(action))
        if returned is None or result is None:
            return None
        _require_kind(_name(action), result, returned.type, or_none=" or None")
        checked: Result = result
        return checked

    def _apply(self, action: Action) -> Result:
        try:
            return self.adapter.apply(action)
        except Refused as refused:
            if refused.reasons:
                raise
            raise AdapterMistake(
                _name(action), "Refused without a reason", line=None, allowed="a Reason that holds"
            ) from refused

    def observe(self) -> View:
        """The view of the adapter; the last one again if the adapter returns that again."""
        with _told_apart("observe()", self.adapter):
            view = self.adapter.observe()
        if self._seen is not None and view is self._seen[0]:
            return self._seen[1]
        _require_kind("observe()", view, View)
        _require_sizes("observe()", view.geometry, self.profile.geometry)
        if view.cells is None:
            return view
        shown = copy(view)  # its fields are in form: to evolve it would cost twenty times as much
        object.__setattr__(shown, "expected", partial(_expected, self.adapter, view.expected))
        with _told_apart("View.cells", self.adapter):
            _require_comparable(shown)
        self._seen = view, shown
        return shown

    def _poison(self, kind: Poison) -> None:
        with _told_apart(f"poison({kind})", self.adapter):
            self.adapter.poison(kind)  # type: ignore[attr-defined]

    def _attend(self) -> Mapping[int, Mapping[int, int]]:
        with _told_apart("attend()", self.adapter):
            read = self.adapter.attend()  # type: ignore[attr-defined]
        try:
            return {index(slot): _times(cells) for slot, cells in read.items()}
        except (AttributeError, TypeError):
            allowed = "{slot: {destination: times}}, all integers"
            raise AdapterMistake("attend()", shown(read), line=None, allowed=allowed) from None

    def _compilations(self) -> Mapping[str, int]:
        with _told_apart("compilations()", self.adapter):
            counts: Mapping[str, int] = self.adapter.compilations()  # type: ignore[attr-defined]
            return counts

    def _pool_copies(self) -> Mapping[str, Sequence[str]]:
        with _told_apart("pool_copies()", self.adapter):
            copies: Mapping[str, Sequence[str]] = self.adapter.pool_copies()  # type: ignore[attr-defined]
            return copies

    def _statistics(self) -> Mapping[str, object]:
        with _told_apart("statistics()", self.adapter):
            found = self.adapter.statistics()  # type: ignore[attr-defined]
        try:
            if found.keys() <= NAMED.keys():
                return {name: _statistic(value) for name, value in found.items()}
        except (AttributeError, TypeError):
            pass
        allowed = f"integers, lists of them or sets of pairs, under names of {', '.join(NAMED)}"
        raise AdapterMistake("statistics()", shown(found), line=None, allowed=allowed)

    def _events(self) -> Sequence[Event]:
        with _told_apart("events()", self.adapter):
            found = self.adapter.events()  # type: ignore[attr-defined]
        try:
            return [_event(*plain(one)) for one in found]
        except (TypeError, ValueError):
            allowed = '("stored" or "removed", (context, *tokens)) for each event'
            raise AdapterMistake("events()", shown(found), line=None, allowed=allowed) from None

    def _logprobs(self) -> Sequence[Sequence[float]]:
        with _told_apart("logprobs()", self.adapter):
            found = self.adapter.logprobs()  # type: ignore[attr-defined]
        try:
            return [[float(one) for one in output] for output in found]
        except (TypeError, ValueError):
            allowed = "a list of numbers for each output"
            raise AdapterMistake("logprobs()", shown(found), line=None, allowed=allowed) from None

    def _serve(self, requests: Sequence[Request]) -> Sequence[OutputEntry]:
        refusal: Refused | None = None
        with _told_apart("serve(requests)", self.adapter):
            try:
                found = plain(self.adapter.serve(requests))  # type: ignore[attr-defined]
            except Refused as refused:
                refusal = refused
        if refusal is not None:
            raise refusal
        try:
            return outputs(found)
        except (TypeError, ValueError):
            allowed = "a list of (request, choice, generated tokens, reason)"
            raise AdapterMistake(
                "serve(requests)", shown(found), line=None, allowed=allowed
            ) from None

    def _erased(self) -> object:
        with _told_apart("erased()", self.adapter):
            return plain(self.adapter.erased())  # type: ignore[attr-defined]


def _times(cells: Mapping[Any, Any]) -> dict[int, int]:
    """How often each cell was read, in Python's own integers. Raises TypeError."""
    return {index(cell): index(times) for cell, times in cells.items()}


def _statistic(value: Any) -> object:
    """A statistic in Python's own integers, in tuples; a set is sorted. Raises TypeError."""
    if isinstance(value, Set):
        return tuple(sorted(map(_statistic, value)))  # type: ignore[type-var]
    given = plain(value)
    return tuple(map(_statistic, given)) if isinstance(given, tuple) else index(given)


def _event(word: Any, key: Any) -> Event:
    """An event with a key in Python's own integers. Raises TypeError or ValueError."""
    return WORDS[WORDS.index(word)], tuple(map(index, key))


def _plain_result(result: Any) -> Any:
    if not isinstance(result, BatchPlan):
        return plain(result)
    return BatchPlan(
        **{name: plain(value) for name, value in asdict(result, recurse=False).items()}
    )


def called(make: Callable[[], Engine]) -> Called:
    """A new adapter as the kit calls it."""
    engine = Called(make)
    return engine.adapter if isinstance(engine.adapter, Called) else engine


def not_new(wrong: str) -> AdapterMistake:
    """The mistake of a factory whose later engines do not begin in the initial state."""
    return AdapterMistake(
        "factory",
        f"an engine that does not begin in its initial state: {wrong}",
        line="which shares state with an earlier engine, or whose engine does",
        allowed=FACTORY,
    )


def made_at(geometry: Geometry, make: Callable[[], Engine]) -> Called:
    """An adapter of this geometry. Raises AdapterMistake if its profile says another."""
    engine = Called(make)
    _require_sizes("profile", engine.profile.geometry, geometry)
    return engine


def _require_sizes(call: str, seen: Geometry, given: Geometry) -> None:
    if seen != given:
        raise AdapterMistake(
            call, str(seen), line=None, allowed=f"{given}, as the kit has given it"
        )


def _expected(adapter: Engine, expected: Callable[[Tokens], object], prefix: Tokens) -> object:
    """What a view of the adapter expects; it must not keep the engine behind its calls."""
    try:
        content = expected(prefix)
    except BaseException:  # not within the block below, which costs more than the call
        with _told_apart("View.expected", adapter):
            raise
    if not (_is_comparable(content) or _is_comparable(plain(content))):
        raise _incomparable(f"View.expected({prefix})", content)
    return content


def _require_comparable(view: View) -> None:
    """Raise AdapterMistake for a cell that cannot be compared.

    Cells that are read one at a time are read where they are live, for the clauses to read again.
    """
    if isinstance(view.cells, list | tuple):
        if _COMPARED.issuperset(map(type, view.cells)):
            return
        for cell, content in enumerate(view.cells):
            if not _is_comparable(content):
                page, offset = divmod(cell, view.geometry.page_size)
                slots = [slot for slot, row in enumerate(view.rows) if page in row]
                where = f"slot {slots[0]}" if slots else "no slot"
                name = f"View.cells[{cell}] (page {page}, offset {offset}, of {where})"
                raise _incomparable(name, content)
        return
    if view.written is None or max(view.written) > view.geometry.max_len:
        return
    for slot in range(len(view.rows)):
        for position, content in enumerate(view.read(slot)):
            if not _is_comparable(content):
                raise _incomparable(f"View.cells (slot {slot} position {position})", content)


def _is_comparable(content: object) -> bool:
    """Whether a content can be compared with another one."""
    if isinstance(content, tuple):
        return _COMPARED.issuperset(map(type, content)) or all(map(_is_comparable, content))
    if type(content) in _COMPARED:
        return True
    try:
        bool(eq(content, content))
    except Exception:
        return False
    return True


def _incomparable(name: str, content: object) -> AdapterMistake:
    return AdapterMistake(
        name,
        f"a {type(content).__name__}, whose == raises or is no truth value",
        line=None,
        allowed="numbers, text, or lists, tuples or arrays of them",
    )


class _Frame(NamedTuple):
    """A function call of a traceback, and the line in it."""

    frame: FrameType
    line: int

    @property
    def code(self) -> CodeType:
        return self.frame.f_code

    def __str__(self) -> str:
        name = self.code.co_filename
        source = linecache.getline(name, self.line).strip()
        return f"{Path(name).name} line {self.line}, in {self.code.co_qualname}: {source}"


@contextmanager
def _told_apart(call: str | Action, engine: Engine | None) -> Iterator[None]:
    """Raise AdapterMistake or EngineFailed for any exception that an adapter may not raise.

    call: what is called, or the action that is applied: its text is made only if it is needed.
    """
    try:
        yield
    except (EngineFailed, AdapterMistake, Hung, Violation):
        raise
    except Refused as error:
        if not isinstance(call, str):
            raise
        line = _adapters_line(_frames(error.__traceback__), engine)
        allowed = "no refusal: apply alone refuses"
        raise AdapterMistake(call, _said(error), line=line, allowed=allowed) from error
    except InvalidInput as error:
        where = _adapters_line(_frames(error.__traceback__), engine)
        if where is not None and not notes_of(error):
            error.add_note(f"the adapter's {_name(call)}: {where}")
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or extra_of(error) is not None:
            raise
        frames = _frames(error.__traceback__)
        said = _said(error)
        if engine is not None and _is_engines(frames, engine):
            failed = EngineFailed(f"the engine raised {said} ({frames[-1]})", raised=said)
            failed.add_note(_text(frames, said))
            raise failed from error
        line = _adapters_line(frames, engine)
        if engine is None:
            mistake = AdapterMistake(_name(call), said, line=line, allowed=FACTORY)
        else:
            mistake = AdapterMistake(_name(call), said, line=line)
        mistake.add_note(_text(frames, said))
        raise mistake from error


def _name(call: str | Action) -> str:
    return call if isinstance(call, str) else f"apply({call})"


def _require_kind(call: str, value: object, kind: type, *, or_none: str = "") -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = (
            kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        )
        given = f"{shown(value)}, which is no {kind.__name__}"
        raise AdapterMistake(call, given, line=None, allowed=f"{wanted}{or_none}")


def _frames(trace: TracebackType | None) -> list[_Frame]:
    """The calls below this module, outermost first."""
    frames = [_Frame(frame, line) for frame, line in traceback.walk_tb(trace)]
    return [one for one in frames if one.code.co_filename != __file__]


def _is_engines(frames: list[_Frame], engine: Engine) -> bool:
    """Whether the innermost function that belongs to somebody belongs to the engine.

    An adapter may be made of functions: then the outermost one tells its module.
    """
    beside = {kind.__module__ for kind in type(engine).__mro__}
    beside |= {_module(one) for one in frames[:1]}
    for one in reversed(frames):
        if _is_adapters(one, engine):
            return False
        if not _is_nobodys(one, beside):
            return True
    return False


def _is_adapters(one: _Frame, engine: Engine) -> bool:
    """Whether a function is a method of the adapter's class, or is defined in one.

    A base class without `apply` and `observe` is the engine's, and so is a class inside.
    """
    for kind in type(engine).__mro__:
        if _module(one) == kind.__module__ and not {"apply", "observe"}.isdisjoint(vars(kind)):
            prefix, _, rest = one.code.co_qualname.partition(f"{kind.__qualname__}.")
            if not prefix and rest and "." not in rest.partition(".<locals>")[0]:
                return True
    return False


def _is_nobodys(one: _Frame, beside: set[str]) -> bool:
    """Whether a function belongs to its caller: a library's, or a bare one in these modules."""
    if _is_librarys(one):
        return True
    is_method = "." in one.code.co_qualname.rpartition("<locals>.")[2]
    return not is_method and _module(one) in beside


def _module(one: _Frame) -> str:
    return str(one.frame.f_globals.get("__name__"))


def _is_kits(one: _Frame) -> bool:
    """Whether a function is the kit's, and no adapter's: such as an engine in another process."""
    name = one.code.co_filename
    return name.startswith(_KIT) and not name.startswith(_ADAPTERS)


def _is_librarys(one: _Frame) -> bool:
    """Whether a function is a library's. Code that is in no file is of the module of its globals,
    but for methods that attrs makes, which are of none.
    """
    name = one.code.co_filename
    if not name.startswith("<"):
        return _is_library(name)
    root = _module(one).partition(".")[0]
    if name.startswith("<attrs generated ") or root in sys.stdlib_module_names | _ARRAYS:
        return True
    return _is_library(str(one.frame.f_globals.get("__file__", name)))


def _is_library(name: str) -> bool:
    if name.startswith(_KIT):
        return True
    parts = Path(name).parts
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1] in _ARRAYS
    return name.startswith(_STDLIB)


def _said(error: BaseException) -> str:
    """The class of an exception, and its text if it has one."""
    try:
        text = str(error)
    except Exception as another:
        text = f"whose text raises {type(another).__name__}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _adapters_line(frames: list[_Frame], engine: Engine | None) -> str | None:
    """The innermost line of the adapter; None if it was not reached.

    Before there is an engine, that is the innermost line in the file of the factory.
    """
    if engine is not None:
        own = [one for one in frames if _is_adapters(one, engine) and not _is_kits(one)]
    else:
        first = next((one.code.co_filename for one in frames if not _is_librarys(one)), None)
        own = [one for one in frames if one.code.co_filename == first]
    return str(own[-1]) if own else None


def _text(frames: list[_Frame], said: str) -> str:
    """The traceback without the kit's own calls before the adapter."""
    stack = traceback.StackSummary.extract((one.frame, one.line) for one in frames)
    return "".join(["Traceback (most recent call last):\n", *stack.format(), said])


def notes_of(error: BaseException) -> tuple[str, ...]:
    """What was noted on an exception: where it came from."""
    noted: Any = getattr(error, "__notes__", ())
    return tuple(noted)
