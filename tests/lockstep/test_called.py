"""The calls of an adapter: an exception is the engine's, or a mistake of the adapter with its line.

The engines are in modules of their own, made here, so that the names of modules decide.
"""

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from attrs import evolve, fields
from drawn_histories import ROOMY, TIGHT, drawn, engine_of
from spec_engine import SpecEngine

import conformance
from conformance.lockstep import called as calls
from conformance.lockstep.called import (
    ASKED,
    FACTORY,
    OPTIONAL,
    called,
    made_at,
    not_new,
    notes_of,
)
from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.lockstep.run import take
from conformance.lockstep.serving import MORE
from conformance.lockstep.watchdog import Hung
from conformance.protocol import (
    RESULTS,
    AdapterMistake,
    EngineFailed,
    Poison,
    Rounds,
)
from spec.cells import POISON
from spec.machines import actions as act
from spec.stats import NAMED
from spec.table import BatchPlan
from spec.view import plain
from spec.vocabulary import FinishReason, InvalidInput, Params, Reason, Refused, refused

ARGUMENTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "apply": (act.Free(2),),
    "observe": (),
    "poison": (Poison.NAN,),
    "attend": (),
    "compilations": (),
    "pool_copies": (),
    "serve": ((),),
    "statistics": (),
    "events": (),
    "logprobs": (),
    "erased": (),
}
"""Each method of an adapter, and what the kit calls it with."""
SAID: Final = {
    "apply": "apply(Free(slot=2))",
    "poison": "poison(Poison.NAN)",
    "serve": "serve(requests)",
} | {name: f"{name}()" for name in ARGUMENTS if name not in {"apply", "poison", "serve"}}
"""How each call is named."""


class Whole(SpecEngine):
    """The specification with every optional method; one of its methods does something else."""

    def __init__(self, instead: str = "", does: Callable[..., Any] = print) -> None:
        super().__init__(*self.sizes)
        if instead:
            setattr(self, instead, does)

    sizes = (ROOMY, engine_of(ROOMY).profile.limits, engine_of(ROOMY).profile.cleanup)

    def compilations(self) -> Mapping[str, int]:
        """Each function once."""
        return {"round": 1}

    def pool_copies(self) -> Mapping[str, Any]:
        """No copies."""
        return {"round": ()}


def test_every_optional_method_is_one_of_an_engine() -> None:
    """They are all that an adapter may have beside apply and observe."""
    assert {*OPTIONAL, "apply", "observe"} == set(ARGUMENTS)
    assert set(OPTIONAL) - {"poison", "attend", "serve"} == set(ASKED)


@pytest.mark.parametrize("left_out", [None, *OPTIONAL])
def test_an_adapter_has_the_optional_methods_that_it_has(left_out: str | None) -> None:
    """Each that is there can be called, and one that is not there is not found."""
    names = [name for name in OPTIONAL if name != left_out]
    right = Whole()

    class Some:
        profile, apply, observe = right.profile, right.apply, right.observe

    adapter = Some()
    for name in names:
        setattr(adapter, name, getattr(right, name))
    engine = called(lambda: adapter)

    assert adapter is engine.adapter
    assert right.profile is engine.profile
    assert names == [name for name in OPTIONAL if hasattr(engine, name)]
    for name in names:
        assert isinstance(engine, OPTIONAL[name])
        getattr(engine, name)(*ARGUMENTS[name])


@pytest.mark.parametrize("sizes", [ROOMY, TIGHT], ids=["roomy", "tight"])
def test_a_right_engine_is_the_same_behind_its_calls(sizes: Any) -> None:
    """Results, views, refusals and all that it shows are those of the engine itself."""
    bare, behind = engine_of(sizes), called(lambda: engine_of(sizes))
    lockstep = Lockstep(called(lambda: engine_of(sizes)))
    for step in drawn(sizes, 6):
        answers = list[Any]()
        for engine in (bare, behind):
            try:
                answers.append(engine.apply(step))
            except Refused as no:
                answers.append(no.reasons)
        assert answers[0] == answers[1]
        assert bare.observe() == behind.observe()
        shown: Any = behind
        assert bare.attend() == shown.attend()
        assert bare.statistics() == shown.statistics()
        assert list(bare.events()) == list(shown.events())
        assert bare.logprobs() == tuple(map(tuple, shown.logprobs()))
        assert POISON == shown.erased()
        take(lockstep, step)
    fresh: Any = called(lambda: engine_of(sizes))
    assert engine_of(sizes).serve(MORE) == fresh.serve(MORE)


def test_a_view_that_is_returned_again_is_not_read_again() -> None:
    """The engine behind its calls has the same view then, and another one if there is another."""
    views = [Whole().observe(), Whole().observe()]
    behind = called(lambda: Whole("observe", lambda: views[0]))

    first = behind.observe()
    assert views[0] == first
    assert first is behind.observe()
    views.reverse()
    assert first is not behind.observe()


def test_an_engine_behind_its_calls_is_not_put_behind_them_again() -> None:
    """What is called already is taken as it is, and its sizes are those that were asked for."""
    inner = called(Whole)

    assert inner is called(lambda: inner)
    assert Whole is type(made_at(ROOMY, Whole).adapter)
    with pytest.raises(AdapterMistake) as told:
        made_at(TIGHT, Whole)
    mistake = told.value
    assert ("the adapter's profile", str(ROOMY)) == (mistake.name, mistake.seen)
    assert f"{TIGHT}, as the kit has given it" == mistake.allowed
    for one in fields(type(ROOMY)):
        for more in (1, -1):
            other = evolve(ROOMY, **{one.name: (getattr(ROOMY, one.name) or 3) + more})
            with pytest.raises(AdapterMistake, match="as the kit has given it"):
                made_at(other, Whole)


def test_an_engine_that_begins_elsewhere_is_a_mistake_of_its_factory() -> None:
    """The message says what is wrong, and what a factory does."""
    mistake = not_new("slot 0 is used")

    assert ("the adapter's factory", FACTORY) == (mistake.name, mistake.allowed)
    assert "an engine that does not begin in its initial state: slot 0 is used" == mistake.seen
    assert "shares state with an earlier engine" in mistake.remedy


# Whose exception it is.

NUMBERS: Final = count()
RAISING: Final = """
class Engine:
    def fail(self, *_given):
        raise KeyError("of the engine")

def bare(*_given):
    raise KeyError("of a bare function")
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Callable[..., ModuleType]]:
    """Makes a module with this source, in a file of this path, or in none."""
    made = list[str]()

    def make(source: str, path: str | None = "", **names: Any) -> ModuleType:
        name = f"made_{next(NUMBERS)}"
        new = ModuleType(names.pop("__name__", name))
        vars(new).update(names)
        if path is None:
            file = "<made>"
        else:
            where = tmp_path / (path or f"{name}.py")
            where.parent.mkdir(parents=True, exist_ok=True)
            where.write_text(source, encoding="utf-8")
            file = str(where)
            new.__file__ = file
        exec(compile(source, file, "exec"), vars(new))
        made.append(file)
        return new

    yield make
    for file in made:
        linecache.cache.pop(file, None)


ADAPTER: Final = """
class Adapter:
    def __init__(self, inner, *others):
        self.inner, self.profile, self.others = inner, inner.profile, others
        for name in ("poison", "attend", "compilations", "pool_copies", "serve", "statistics",
                     "events", "logprobs", "erased"):
            setattr(self, name, self.call)

    def call(self, *given):
        return self.others[0](*given)

    def apply(self, action):
        return self.others[0](action)

    def observe(self):
        return self.others[0]() if self.others[1:] else self.inner.observe()

    def own(*_given):
        raise KeyError("of the adapter")

    def local(*_given):
        def inside():
            raise KeyError("of a function in the adapter")
        inside()

    def inner_class(*_given):
        class Inner:
            def look(self):
                raise KeyError("of a class in the adapter")
        Inner().look()

    class Nested:
        def look(self, *_given):
            raise KeyError("of a nested class")

class AdapterBeside:
    def look(self, *_given):
        raise KeyError("of a class beside")

def helper(*_given):
    raise KeyError("of a helper")
"""


def told_of(engine: Any, method: str) -> Exception:
    """What the kit raises when it calls a method."""
    with pytest.raises((EngineFailed, AdapterMistake)) as found:
        getattr(engine, method)(*ARGUMENTS[method])
    return found.value


@pytest.mark.parametrize("method", ARGUMENTS)
def test_an_exception_in_a_call_is_told_with_the_call(
    method: str, module: Callable[..., ModuleType]
) -> None:
    """It is the adapter's with its line, or the engine's, with the traceback below the kit."""
    adapter, engine = module(ADAPTER), module(RAISING)
    inner, beside = engine_of(ROOMY), engine.Engine()

    def raised(look: Callable[..., Any], *, of_adapter: bool) -> Exception:
        made = adapter.Adapter(inner, look)
        behind = called(lambda: made)
        made.others = (look, "observe") if method == "observe" else (look,)
        error = told_of(behind, method)
        assert of_adapter == isinstance(error, AdapterMistake)
        (note,) = notes_of(error)
        assert note.startswith("Traceback (most recent call last):\n")
        assert Path(calls.__file__).name not in note
        assert f'File "{adapter.__file__}", line ' in note
        assert isinstance(error.__cause__, KeyError)
        return error

    for look, said, last in (
        (adapter.Adapter.own, "of the adapter", "Adapter.own"),
        (adapter.Adapter.local, "of a function in the adapter", "inside"),
        (adapter.helper, "of a helper", "Adapter."),
        (adapter.Adapter.inner_class, "of a class in the adapter", "Inner.look"),
    ):
        mistake = raised(look, of_adapter=True)
        assert isinstance(mistake, AdapterMistake)
        assert f"the adapter's {SAID[method]}" == mistake.name
        assert f"KeyError: '{said}'" == mistake.seen
        assert f"Mend the adapter, {Path(str(adapter.__file__)).name} line " in mistake.remedy
        assert last in mistake.remedy
        assert "no exception but Refused" in mistake.allowed
        assert notes_of(mistake)[0].endswith(f"KeyError: '{said}'")
    for look, said, where in (
        (beside.fail, "of the engine", 'Engine.fail: raise KeyError("of the engine")'),
        (engine.bare, "of a bare function", "bare: raise KeyError"),
        (adapter.AdapterBeside().look, "of a class beside", "AdapterBeside.look: raise"),
        (adapter.Adapter.Nested().look, "of a nested class", "Adapter.Nested.look: raise"),
    ):
        failed = raised(look, of_adapter=False)
        assert isinstance(failed, EngineFailed)
        assert f"KeyError: '{said}'" == failed.raised
        assert str(failed).startswith(f"the engine raised KeyError: '{said}' (made_")
        assert where in str(failed)
        assert "ATOMIC" == failed.clause
        assert notes_of(failed)[0].endswith(f"KeyError: '{said}'")
        assert f"in {where.partition(':')[0].rpartition('.')[2]}\n" in notes_of(failed)[0]


KINDS: Final = {
    "a derived adapter": "class Derived(Adapter):\n    pass\n",
    "an adapter of a base": (
        "class Base:\n    def fail(self):\n        raise KeyError('of a base')\n"
        "class Derived(Base, Adapter):\n    def apply(self, action):\n        self.fail()\n"
    ),
}


def test_a_base_class_without_the_calls_is_the_engines(module: Callable[..., ModuleType]) -> None:
    """A method of a base class with them is the adapter's."""
    made = module(ADAPTER + KINDS["an adapter of a base"])
    inherits = called(lambda: made.Derived(engine_of(ROOMY)))
    derived = module(ADAPTER + KINDS["a derived adapter"])
    child = derived.Derived(engine_of(ROOMY))
    child.others = (child.own,)

    failed = told_of(inherits, "apply")
    mistake = told_of(called(lambda: child), "apply")

    assert "the engine raised KeyError: 'of a base'" in str(failed)
    assert isinstance(failed, EngineFailed)
    assert isinstance(mistake, AdapterMistake)
    assert 'Adapter.own: raise KeyError("of the adapter")' in mistake.remedy


@pytest.mark.parametrize("name", ["a", "zzz", "made"])
def test_a_class_of_another_module_is_no_adapter_by_its_name(
    name: str, module: Callable[..., ModuleType]
) -> None:
    """Its module tells it apart, whichever of the two names comes first."""
    source = "class Adapter:\n    def own(self, *_given):\n        raise KeyError('of another')\n"
    made, other = module(ADAPTER), module(source, __name__=name)
    adapter = made.Adapter(engine_of(ROOMY), other.Adapter().own)

    assert isinstance(told_of(called(lambda: adapter), "apply"), EngineFailed)


HOME: Final = Path(str(conformance.__file__)).parent


@pytest.mark.parametrize(
    ("file", "is_named"),
    [
        (HOME / "isolation" / "made.py", False),
        (HOME.parent / "spec" / "made.py", False),
        (HOME / "engines" / "made.py", True),
        (HOME.parent / "tests" / "made.py", True),
    ],
)
def test_a_line_of_the_kit_is_none_of_an_adapter(file: Path, *, is_named: bool) -> None:
    """An engine in another process is the kit's, and the adapters that the kit has are adapters."""
    made = ModuleType("made_for_the_kit")
    exec(compile(ADAPTER, str(file), "exec"), vars(made))
    adapter = made.Adapter(engine_of(ROOMY))
    adapter.others = (adapter.own,)
    mistake = told_of(called(lambda: adapter), "apply")

    assert isinstance(mistake, AdapterMistake)
    assert is_named == ("made.py line " in mistake.remedy)
    assert is_named == ("in Adapter.own" in mistake.remedy)


PLACES: Final = {
    "a/site-packages/numpy/core.py": True,
    "a/site-packages/jax/numpy/core.py": True,
    "a/site-packages/attrs/core.py": True,
    "a/site-packages/numpy.py": False,
    "a/site-packages/engine/numpy/core.py": False,
    "numpy/site-packages/engine/core.py": False,
    "engine/core.py": False,
    "numpy/core.py": False,
}
"""Places of a file, and whether it is a library's, whose exceptions are its caller's."""


@pytest.mark.parametrize("place", PLACES)
def test_a_library_of_arrays_is_known_by_its_folder(
    place: str, module: Callable[..., ModuleType]
) -> None:
    """An exception out of one is its caller's, who is the adapter here."""
    adapter, library = module(ADAPTER), module(RAISING, place)
    made = adapter.Adapter(engine_of(ROOMY), lambda *_: None)
    behind = called(lambda: made)
    made.others = (library.Engine().fail,)

    assert PLACES[place] == isinstance(told_of(behind, "apply"), AdapterMistake)


INSTALLED: Final = {
    "the standard library": sys.modules["json.decoder"].__file__,
    "the kit": conformance.__file__,
    "the specification": sys.modules["spec.view"].__file__,
    "an engine": "/opt/engine/core.py",
    "no file": "<string>",
    "attrs": "<attrs generated methods engine.Core>",
}
OF_NO_FILE: Final = {
    "functools": True,
    "json.decoder": True,
    "numpy.core": True,
    "jaxlib": True,
    "attrs": True,
    "engine.numpy": False,
    "engine": False,
}
"""Modules of code that is in no file, and whether an exception there is its caller's."""


@pytest.mark.parametrize("name", OF_NO_FILE)
@pytest.mark.parametrize("file", [None, *INSTALLED])
def test_code_in_no_file_is_of_its_module(
    file: str | None, name: str, module: Callable[..., ModuleType]
) -> None:
    """Its module, or the file of that, tells whether it is a library's."""
    adapter = module(ADAPTER)
    where = {} if file is None else {"__file__": INSTALLED[file]}
    code = module(RAISING, None, __name__=name, **where)
    made = adapter.Adapter(engine_of(ROOMY), lambda *_: None)
    behind = called(lambda: made)
    made.others = (code.Engine().fail,)

    of_library = OF_NO_FILE[name] or file in {
        "the standard library",
        "the kit",
        "the specification",
    }
    assert of_library == isinstance(told_of(behind, "apply"), AdapterMistake)


@pytest.mark.parametrize("file", INSTALLED)
def test_code_is_of_its_file(file: str, module: Callable[..., ModuleType]) -> None:
    """The file of a function tells whether it is a library's, and its line is read from it."""
    adapter, code = module(ADAPTER), ModuleType("engine")
    exec(compile(RAISING, str(INSTALLED[file]), "exec"), vars(code))
    made = adapter.Adapter(engine_of(ROOMY), lambda *_: None)
    behind = called(lambda: made)
    made.others = (code.Engine().fail,)

    assert (file not in {"an engine", "no file"}) == isinstance(
        told_of(behind, "apply"), AdapterMistake
    )


def test_an_adapter_of_functions_has_the_module_of_the_outermost_one(
    module: Callable[..., ModuleType],
) -> None:
    """Bare functions of that module are the adapter's, and methods are the engine's."""
    source = (
        "def apply(action):\n    return look()\n"
        "def other():\n    raise KeyError('of a function')\n"
        "class Engine:\n    def fail(self):\n        raise KeyError('of the engine')\n"
    )
    made, inner = module(source), engine_of(ROOMY)

    class Functions:
        profile, observe = inner.profile, staticmethod(inner.observe)
        apply = staticmethod(made.apply)

    vars(made)["look"] = made.other
    mistake = told_of(called(Functions), "apply")
    vars(made)["look"] = made.Engine().fail
    failed = told_of(called(Functions), "apply")

    assert isinstance(mistake, AdapterMistake)
    assert "Mend the adapter." == mistake.remedy
    assert isinstance(failed, EngineFailed)


# The factory, and exceptions that are no mistakes.


def test_a_factory_that_raises_is_told_with_its_line(module: Callable[..., ModuleType]) -> None:
    """It is the innermost line in the file of the factory, and the message says what one does."""
    engine = module(RAISING)
    made = module("def make():\n    return deeper()\ndef deeper():\n    return look()\n", look=None)
    for look, said in (
        (engine.Engine().fail, "KeyError: 'of the engine'"),
        (lambda: int("x"), "ValueError: invalid literal for int() with base 10: 'x'"),
        (None, "TypeError: 'NoneType' object is not callable"),
    ):
        vars(made)["look"] = look
        with pytest.raises(AdapterMistake) as told:
            called(made.make)
        mistake = told.value
        assert ("the adapter's factory", said, FACTORY) == (
            mistake.name, mistake.seen, mistake.allowed,
        )  # fmt: skip
        line = f"{Path(str(made.__file__)).name} line 4, in deeper: return look()"
        assert f"Mend the adapter, {line}." == mistake.remedy
        (note,) = notes_of(mistake)
        assert note.startswith("Traceback (most recent call last):\n")
        assert note.endswith(said)


def test_a_factory_of_a_library_has_no_line() -> None:
    """Where no code of the adapter was reached, none is named."""
    with pytest.raises(AdapterMistake) as told:
        called(lambda: None)  # type: ignore[arg-type,return-value]
    assert ("the adapter's profile", "Mend the adapter.") == (told.value.name, told.value.remedy)
    with pytest.raises(AdapterMistake) as told:
        called(int)  # type: ignore[arg-type]
    assert "AttributeError: 'int' object has no attribute 'profile'" == told.value.seen
    with pytest.raises(AdapterMistake) as told:
        called(dict.popitem)  # type: ignore[arg-type]
    assert ("the adapter's factory", "Mend the adapter.") == (told.value.name, told.value.remedy)


@pytest.mark.parametrize(
    "error",
    [
        EngineFailed("its process ended", clause="PROG"),
        AdapterMistake("x", "y", line=None),
        Hung("too slow"),
        KeyboardInterrupt(),
        ModuleNotFoundError("no jax", name="jax.numpy"),
        Violation("RC", "w", action=None, before=None, after=None),  # type: ignore[arg-type]
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("method", ["factory", "profile", *ARGUMENTS])
def test_what_is_no_mistake_is_raised_as_it_is(method: str, error: BaseException) -> None:
    """A failure that the adapter tells, an interrupt, and a missing extra pass every call."""

    def fail(*_: object) -> Any:
        raise error

    class Profiled:
        profile = property(fail)

    makes: dict[str, Any] = {"factory": fail, "profile": Profiled}

    def call() -> None:
        engine = called(makes.get(method, lambda: Whole(method, fail)))
        getattr(engine, method)(*ARGUMENTS[method])

    with pytest.raises(type(error)) as found:
        call()
    assert error is found.value
    assert () == notes_of(error)


@pytest.mark.parametrize("method", ["factory", *ARGUMENTS])
def test_a_refusal_outside_of_actions_is_a_mistake_with_its_line(
    method: str, module: Callable[..., ModuleType]
) -> None:
    """Only an action can be refused, and serving; a refusal says why, and for a reason."""
    made = module(ADAPTER)
    no = refused(Reason.OUT_OF_PAGES)

    def refuse(*_: object) -> Any:
        raise no

    adapter = made.Adapter(engine_of(ROOMY), refuse)

    def make() -> Any:
        return refuse() if method == "factory" else adapter

    if method in {"apply", "serve"}:
        with pytest.raises(Refused) as found:
            getattr(called(make), method)(*ARGUMENTS[method])
        assert no is found.value
        return
    behind = called(make) if method != "factory" else None
    if method == "observe":
        adapter.others = (refuse, "observe")
    with pytest.raises(AdapterMistake) as told:
        called(make) if behind is None else getattr(behind, method)(*ARGUMENTS[method])
    said = "factory" if method == "factory" else SAID[method]
    mistake = told.value
    assert f"the adapter's {said}" == mistake.name
    assert "no refusal: apply alone refuses" == mistake.allowed
    assert f"{type(no).__name__}: {no}" == mistake.seen
    where = "refuse: raise no" if method == "factory" else "Adapter."
    assert where in mistake.remedy
    assert no is mistake.__cause__


def test_a_refusal_for_no_reason_is_a_mistake() -> None:
    """The action is named, and what is allowed."""

    def refuse(_action: object) -> Any:
        raise Refused([])

    with pytest.raises(AdapterMistake) as told:
        called(lambda: Whole("apply", refuse)).apply(act.Free(2))
    mistake = told.value
    assert ("the adapter's apply(Free(slot=2))", "a Reason that holds") == (
        mistake.name, mistake.allowed,
    )  # fmt: skip
    assert ("Refused without a reason", "Mend the adapter.") == (mistake.seen, mistake.remedy)


@pytest.mark.parametrize("noted", [False, True])
def test_bad_input_is_raised_with_the_line_of_the_adapter(
    *, noted: bool, module: Callable[..., ModuleType]
) -> None:
    """The line is noted unless something is noted already, or none of the adapter's is reached."""
    made = module(ADAPTER)
    error = InvalidInput("View.counts", seen=1, allowed="2", remedy="Mend it.")
    if noted:
        error.add_note("a note")

    def fail(*_: object) -> Any:
        raise error

    adapter = made.Adapter(engine_of(ROOMY), fail)
    behind = called(lambda: adapter)
    for method in ("apply", "attend"):
        with pytest.raises(InvalidInput) as found:
            getattr(behind, method)(*ARGUMENTS[method])
        assert error is found.value
        (note,) = notes_of(error)
        if noted:
            assert "a note" == note
        else:
            name = Path(str(made.__file__)).name
            call = f"the adapter's {SAID['apply']}: {name} line "
            assert note.startswith(call)
            assert note.endswith("in Adapter.apply: return self.others[0](action)")
    elsewhere = InvalidInput("x", seen=1, allowed="2", remedy="Mend it.")

    def fails(_action: object) -> Any:
        raise elsewhere

    with pytest.raises(InvalidInput) as found:
        called(lambda: Whole("apply", fails)).apply(act.Free(2))
    assert elsewhere is found.value
    assert () == notes_of(elsewhere)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "Odd"), ("why", "Odd: why"), (None, "Odd: whose text raises ZeroDivisionError")],
)
def test_the_text_of_an_exception_is_told_if_it_has_one(text: str | None, said: str) -> None:
    """Otherwise its class alone is, and a text that raises is told as one."""

    class Odd(Exception):
        def __str__(self) -> str:
            if text is None:
                raise ZeroDivisionError
            return text

    def fail(_action: object) -> Any:
        raise Odd

    error = told_of(called(lambda: Whole("apply", fail)), "apply")

    assert isinstance(error, AdapterMistake)  # a bare function of this module raises it
    assert said == error.seen


# What the calls return.


@pytest.mark.parametrize("kind", RESULTS)
def test_a_result_of_another_type_is_a_mistake(kind: type) -> None:
    """The action is named with what it returns; a result that no action has is dropped."""
    step = next(step for seed in range(9) for step in drawn(ROOMY, seed) if type(step) is kind)
    wanted = RESULTS[kind].type
    right = {
        int: 3, tuple: ((1, 2, 3),), Rounds: Rounds(1, None),
        BatchPlan: BatchPlan(
            order=(0,), slot_ids=(0,), destinations=(0,), kv_lens=(1,), page_indices=((0,),),
            cu_q_lens=(0, 1), num_seqs=1,
        ),
    }  # fmt: skip
    for wrong in ("0", 0.0, False, True, 3, (1,), Rounds(1, None), right[BatchPlan], object):
        engine = called(lambda wrong=wrong: Whole("apply", lambda _: wrong))  # type: ignore[misc]
        if type(wrong) is wanted:
            assert wrong == engine.apply(step)
            continue
        with pytest.raises(AdapterMistake) as told:
            engine.apply(step)
        assert f"the adapter's apply({step})" == told.value.name
        assert str(told.value.seen).endswith(f", which is no {wanted.__name__}")
        whole = (
            wanted.__name__ if wanted in {int, tuple} else f"{wanted.__module__}.{wanted.__name__}"
        )
        assert f"{whole} or None" == told.value.allowed
        other = called(lambda wrong=wrong: Whole("apply", lambda _: wrong))  # type: ignore[misc]
        assert None is other.apply(act.Free(2))
    assert None is called(lambda: Whole("apply", lambda _: None)).apply(step)
    assert right[wanted] == called(lambda: Whole("apply", lambda _: right[wanted])).apply(step)


class Array:
    """What an array of a library looks like."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def tolist(self) -> Any:
        """As lists and numbers."""
        return self._value


def test_lists_and_arrays_in_results_become_tuples() -> None:
    """So do those of the fields of a plan, and of what the engine shows."""
    plan = BatchPlan(
        order=[0, 1], slot_ids=Array([0, 0]), destinations=[4, 5], kv_lens=[2],  # type: ignore[arg-type]
        page_indices=[[2], Array([3])], cu_q_lens=[0, 2], num_seqs=Array(1),  # type: ignore[arg-type]
    )  # fmt: skip
    tidy = BatchPlan(
        order=(0, 1), slot_ids=(0, 0), destinations=(4, 5), kv_lens=(2,),
        page_indices=((2,), (3,)), cu_q_lens=(0, 2), num_seqs=1,
    )  # fmt: skip
    batch = act.Allocate(((0, 0),))
    loose: dict[str, Any] = {"order": [Rounds(1, None)]}

    def result(value: Any, step: Any) -> Any:
        return called(lambda: Whole("apply", lambda _: value)).apply(step)

    def shown(name: str, value: Any) -> Any:
        engine: Any = called(lambda: Whole(name, lambda *_: value))
        return getattr(engine, name)(*ARGUMENTS[name])

    assert tidy == result(plan, batch)
    assert (Rounds(1, None),) == result(evolve(plan, **loose), batch).order
    assert ((1, 0, 2),) == result([[1, 0, 2]], act.Pack()) == result(Array([[1, 0, 2]]), act.Pack())
    assert 3 == result(Array(3), act.Reserve())
    assert (0, (1, 2)) == shown("erased", [0, Array([1, 2])])
    entry = (1, 0, (2,), FinishReason.LIMIT)
    assert (entry,) == shown("serve", [[1, 0, [2], FinishReason.LIMIT]])
    assert [[-0.5, 1.0], []] == shown("logprobs", [(-0.5, 1), ()])
    assert [("stored", (0, 5))] == shown("events", [["stored", Array([0, 5])]])
    assert {0: {5: 1}} == shown("attend", {Number.ZERO: {5: Number.ONE}})
    (slot, read), *_ = shown("attend", {Number.ONE: {1: Number.ONE}}).items()
    assert (int, int) == (type(slot), type(read[1]))


class Number(IntEnum):
    """Integers of another class."""

    ZERO = 0
    ONE = 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (3, 3),
        (Array(3), 3),
        ([2, 1], (2, 1)),
        (Array([2, 1]), (2, 1)),
        ({2, 1, 3}, (1, 2, 3)),
        (frozenset({(2, 0), (1, 1), (1, 0)}), ((1, 0), (1, 1), (2, 0))),
        ([(2, 0), [1, 1]], ((2, 0), (1, 1))),
        ([], ()),
        (set(), ()),
    ],
)
def test_a_statistic_becomes_integers(given: Any, expected: Any) -> None:
    """A set is sorted, and lists keep their order; some or all of them may be shown."""
    for names in (list(NAMED), list(NAMED)[:1], []):
        engine: Any = called(partial(Whole, "statistics", partial(dict.fromkeys, names, given)))
        assert dict.fromkeys(names, expected) == engine.statistics()


WRONG: Final[Mapping[str, tuple[str, list[Any]]]] = {
    "statistics": (
        "integers, lists of them or sets of pairs, under names of " + ", ".join(NAMED),
        [
            3, None, {"pages": 1}, {**dict.fromkeys(NAMED, 1), "pages": 1}, {"active": 0.5},
            {"active": None}, {"active": {0.5}}, {"active": [[0.5]]}, ["active"],
        ],
    ),
    "events": (
        '("stored" or "removed", (context, *tokens)) for each event',
        [3, None, [3], ["stored"], [("stored",)], [("moved", (0, 1))], [("stored", (0, 0.5))]],
    ),
    "logprobs": ("a list of numbers for each output", [3, None, [3], ["x"], [[None]]]),
    "serve": (
        "a list of (request, choice, generated tokens, reason)",
        [3, None, "x", [3], [(1, 0, (), "r"), 3], {(1, 0, (), "r")}],
    ),
    "attend": (
        "{slot: {destination: times}}, all integers",
        [3, None, {0: 3}, {0: {0: 0.5}}, {0: {0.5: 1}}, {0.5: {0: 1}}, {0: [1]}],
    ),
}  # fmt: skip
"""What cannot be compared, and what is allowed, by method."""


@pytest.mark.parametrize("method", WRONG)
def test_what_has_another_form_is_a_mistake(method: str) -> None:
    """The method is named, with what it showed and what it may show."""
    allowed, values = WRONG[method]
    for value in values:
        engine = called(partial(Whole, method, lambda *_, value=value: value))
        with pytest.raises(AdapterMistake) as told:
            getattr(engine, method)(*ARGUMENTS[method])
        mistake = told.value
        assert f"the adapter's {SAID[method]}" == mistake.name
        assert (allowed, "Mend the adapter.") == (mistake.allowed, mistake.remedy)
        assert repr(plain(value) if method == "serve" else value) == mistake.seen


@pytest.mark.parametrize("shown", [None, 3, "view", engine_of(TIGHT).observe()], ids=lambda _: "")
def test_a_view_is_one_of_the_right_sizes(shown: Any) -> None:
    """Something else, and a view of other sizes, is a mistake of observe."""
    with pytest.raises(AdapterMistake) as told:
        called(lambda: Whole("observe", lambda: shown)).observe()
    mistake = told.value
    assert "the adapter's observe()" == mistake.name
    if hasattr(shown, "geometry"):
        told_of_it = (str(TIGHT), f"{ROOMY}, as the kit has given it")
    else:
        told_of_it = (f"{shown!r}, which is no View", "spec.view.View")
    assert told_of_it == (mistake.seen, mistake.allowed)


@pytest.mark.parametrize("profile", [None, 3, "mine"])
def test_a_profile_is_one(profile: object) -> None:
    """Something else is a mistake of the profile."""

    class Odd:
        apply = observe = print

        def __init__(self) -> None:
            self.profile = profile

    with pytest.raises(AdapterMistake) as told:
        called(Odd)  # type: ignore[arg-type]
    mistake = told.value
    assert ("the adapter's profile", "conformance.protocol.Profile") == (
        mistake.name, mistake.allowed,
    )  # fmt: skip
    assert f"{profile!r}, which is no Profile" == mistake.seen


# Contents.


class Ambiguous:
    """A content that raises when it is compared."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")


class NoTruth:
    """What is no truth value."""

    def __bool__(self) -> bool:
        raise ValueError("no truth")


class Arraylike:
    """A content that compares entry by entry, and is an array."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return NoTruth()

    def tolist(self) -> list[int]:
        """As a list."""
        return [1, 2]


class OfWhatCannotBe:
    """A content that equals itself, and is an array of some that cannot be compared."""

    def tolist(self) -> list[Any]:
        """As a list."""
        return [Ambiguous()]


class Stands:
    """A content that equals itself, as an object of the engine does."""


COMPARABLE: Final[tuple[Any, ...]] = (
    0,
    1.5,
    float("nan"),
    True,
    "a",
    b"a",
    None,
    (),
    (1, 2),
    (1, ("a", None)),
    Stands(),
)
INCOMPARABLE: Final[tuple[Any, ...]] = (
    Ambiguous(),
    (1, Ambiguous()),
    (1, (2, Ambiguous())),
    Arraylike(),
)


def shows(kind: Callable[[list[Any]], Any], at: int, content: object, dead: Any = 0) -> Any:
    """An engine of which one cell holds this content."""
    engine = engine_of(ROOMY)
    for step in (
        act.Reserve(0),
        act.Reserve(2),
        act.Assign(2, (1, 2, 3), Params(max_new=1), 1),
    ):
        engine.apply(step)
    batch = tuple((2, position) for position in range(3))
    engine.apply(act.Allocate(batch))
    engine.apply(act.Write(batch))
    view = engine.observe()
    cells = [dead] * len(view.cells or ())
    cells[at] = content
    shown = evolve(view, cells=None)
    object.__setattr__(shown, "cells", kind(cells))
    engine.observe = lambda: shown  # type: ignore[method-assign]
    return called(lambda: engine)


class OneAtATime:
    """Cells that are read one at a time."""

    def __init__(self, cells: list[Any]) -> None:
        self._cells = cells

    def __getitem__(self, cell: int) -> Any:
        return self._cells[cell]


@pytest.mark.parametrize("kind", [list, tuple, OneAtATime])
@pytest.mark.parametrize("at", [0, 1, 2, 3, 4, 5, 22, 23])
def test_a_content_that_cannot_be_compared_is_told_with_its_place(kind: Any, at: int) -> None:
    """Its cell is named with page, offset and slot, or its position where cells are read singly."""
    owner = "slot 2" if at < 4 else "no slot"
    for content in COMPARABLE:
        for dead in (0, Stands()):
            assert shows(kind, at, content, dead).observe().cells[at] is content
    for content in INCOMPARABLE:
        if kind is OneAtATime and at > 2:  # nobody reads it
            shows(kind, at, content).observe()
            continue
        with pytest.raises(AdapterMistake) as told:
            shows(kind, at, content).observe()
        mistake = told.value
        name = f"the adapter's View.cells[{at}] (page {at // 2}, offset {at % 2}, of {owner})"
        if kind is OneAtATime:
            name = f"the adapter's View.cells (slot 2 position {at})"
        assert name == mistake.name
        said = f"a {type(content).__name__}, whose == raises or is no truth value"
        assert (said, "Mend the adapter.") == (mistake.seen, mistake.remedy)
        assert "numbers, text, or lists, tuples or arrays of them" == mistake.allowed


def test_cells_that_are_read_singly_are_not_read_where_lengths_say_nothing() -> None:
    """A view without lengths, or with one past the row, is left to the clauses."""
    engine = engine_of(ROOMY)
    view = engine.observe()
    cells: Any = OneAtATime([Ambiguous()] * 24)
    pages = tuple((at, at + 1, at + 2, at + 3, at + 4) for at in (0, 2, 4, 6))
    for written in (None, (99, 0, 0, 0), (0, 99, 0, 0), (ROOMY.max_len + 1, 0, 0, 0)):
        shown = evolve(view, cells=None, written=written, rows=pages)
        object.__setattr__(shown, "cells", cells)
        show = partial(Whole, "observe", lambda shown=shown: shown)
        assert cells is called(show).observe().cells
    rows = ((0, 1, 2, 3, 4), *view.rows[1:])
    full = evolve(view, cells=None, written=(ROOMY.max_len, 0, 0, 0), rows=rows)
    object.__setattr__(full, "cells", cells)
    engine.observe = lambda: full  # type: ignore[method-assign]
    with pytest.raises(AdapterMistake, match=r"slot 0 position 0"):
        called(lambda: engine).observe()


def test_what_a_view_expects_is_compared_or_is_a_mistake(
    module: Callable[..., ModuleType],
) -> None:
    """Its prefix is named, and so is a lookup of the adapter that fails."""
    made = module(ADAPTER + "\ndef expect(prefix):\n    return {}[prefix]\n")
    view = engine_of(ROOMY).observe()

    def expecting(expected: Any) -> Any:
        shown = evolve(view, expected=expected)
        adapter = made.Adapter(engine_of(ROOMY), lambda: shown, "observe")
        return called(lambda: adapter).observe()

    for content in (*COMPARABLE, Arraylike(), OfWhatCannotBe()):
        assert content is expecting(lambda _, content=content: content).expected((1, 2))
    assert (1, 2) == expecting(lambda prefix: prefix).expected((1, 2))
    for content in INCOMPARABLE[:3]:
        with pytest.raises(AdapterMistake) as told:
            expecting(lambda _, content=content: content).expected((1, 2))
        assert "the adapter's View.expected((1, 2))" == told.value.name
    with pytest.raises(AdapterMistake) as told:
        expecting(made.expect).expected((1, 2))
    assert ("the adapter's View.expected", "KeyError: (1, 2)") == (told.value.name, told.value.seen)

    def breaks(content: Any) -> Any:
        engine = engine_of(ROOMY)
        shown = evolve(view, cells=None)
        object.__setattr__(shown, "cells", content)
        engine.observe = lambda: shown  # type: ignore[method-assign]
        return called(lambda: engine)

    class Broken(list[Any]):
        """Cells that cannot be read."""

        def __iter__(self) -> Any:
            raise RuntimeError("no cells")

    failed = told_of(breaks(Broken([0] * 24)), "observe")
    assert "the engine raised RuntimeError: no cells" in str(failed)

    class Owned(list[Any]):
        """Cells that the adapter reads."""

        __iter__ = made.Adapter.own

    shown = evolve(view, cells=None)
    object.__setattr__(shown, "cells", Owned([0] * 24))
    adapter = made.Adapter(engine_of(ROOMY), lambda: shown, "observe")
    mistake = told_of(called(lambda: adapter), "observe")
    assert isinstance(mistake, AdapterMistake)
    assert "the adapter's View.cells" == mistake.name
    assert 'Adapter.own: raise KeyError("of the adapter")' in mistake.remedy
