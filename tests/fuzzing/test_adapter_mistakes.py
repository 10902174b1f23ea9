"""Mistakes of an adapter before its first step: each is reported by name."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spec_engine
import toy_engine
from attrs import evolve, field, frozen
from counterexample_tools import USUAL
from mistaken_adapters import (
    BUGS,
    MISTAKES,
    Adapter,
    Exits,
    Inherits,
    PoisonsNothing,
    Raises,
    RaisesInside,
    with_bug,
)
from spec_engine import SpecEngine, small
from spec_tools import grown

from conformance.cli.main import main
from conformance.fuzzing import campaign, settings
from conformance.fuzzing.state_machine import Campaign, Session
from conformance.history import PoisonDead
from conformance.lockstep.called import called, notes_of
from conformance.lockstep.lockstep import require_shown
from conformance.lockstep.run import Finding, replay
from conformance.protocol import AdapterMistake, Poison
from conformance.rungs.coverage import POISONED
from spec.machines import actions as act
from spec.view import View, plain
from spec.vocabulary import CleanupMode, InvalidInput, Reason, default_limits, refused

OTHER_SIZES = "; give more seconds, or other sizes if these cannot reach it"
SIZES = small(pages=6, page_size=2, slots=3, pages_per_seq=4)


def toy() -> toy_engine.Adapter:
    """The toy, which has no bug."""
    return toy_engine.Adapter(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)


class Shows:
    """An adapter with the given profile and view."""

    def __init__(self, profile: object, view: object) -> None:
        self.profile, self._view = profile, view

    def observe(self) -> object:
        """The given view."""
        return self._view

    def apply(self, _action: object) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: None, "AttributeError: 'NoneType' object has no attribute 'profile'"),
        (lambda _one: None, r"TypeError: .* missing 1 required positional argument"),
        (sys.exit, "the adapter's factory: saw 'SystemExit"),
        (lambda: Shows("mine", None), "'mine', which is no Profile"),
        (lambda: Shows(toy().profile, None), "None, which is no View"),
    ],
)
def test_a_factory_that_makes_no_engine_is_a_mistake(made: Any, message: str) -> None:
    """A factory that makes no engine is no finding; the error says why."""
    with pytest.raises(AdapterMistake, match=message):
        replay(made, (act.Reserve(),))

    report = campaign.Run()
    with pytest.raises(AdapterMistake, match=message):
        campaign.run(
            lambda *_: made(),
            campaign.Options(geometry=SIZES, seconds=5),
            report=report,
            update=lambda *_: None,
        )
    assert report.finding is None


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda kind: kind.__name__)
def test_a_mistake_of_an_adapter_is_told_as_one(mistake: Any) -> None:
    """It is no finding; the message names the call and what came of it, and a note the line."""
    with pytest.raises(InvalidInput) as told:
        fuzzed(mistake)

    text = "\n".join((str(told.value), *notes_of(told.value)))
    for part in MISTAKES[mistake]:
        assert part in text


class Answers:
    """An adapter with the given results and read sets."""

    def __init__(self, result: object, read: object) -> None:
        self._toy, self._result, self._read = toy(), result, read
        self.profile, self.observe = self._toy.profile, self._toy.observe

    def apply(self, _action: object) -> object:
        """The given result."""
        return self._result

    def attend(self) -> object:
        """The given read sets."""
        return self._read


class Refusing:
    """An adapter that refuses where nothing can be refused."""

    def __init__(self, call: str) -> None:
        self._toy, self._call = toy(), call
        self.profile = self._toy.profile

    def apply(self, action: Any) -> object:
        """Take the action, or refuse it."""
        return self._toy.apply(action)

    def observe(self) -> View:
        """The view, or a refusal."""
        if self._call == "observe()":
            raise refused(Reason.OUT_OF_PAGES)
        return self._toy.observe()

    def attend(self) -> object:
        """A refusal."""
        raise refused(Reason.OUT_OF_PAGES)


@pytest.mark.parametrize("call", ["observe()", "attend()"])
def test_a_refusal_outside_of_apply_is_a_mistake(call: str) -> None:
    """Only an action can be refused; the line that refuses is named."""
    engine = called(lambda: Refusing(call))  # type: ignore[arg-type,return-value]

    with pytest.raises(AdapterMistake, match="apply alone refuses") as told:
        getattr(engine, call.removesuffix("()"))()
    assert call in str(told.value)
    assert "raise refused(Reason.OUT_OF_PAGES)" in str(told.value)


def test_a_factory_that_refuses_is_a_mistake() -> None:
    """A refusal of the factory is told as one, with its line."""

    def refusing() -> Any:
        raise refused(Reason.NO_FREE_SLOT)

    with pytest.raises(AdapterMistake, match="apply alone refuses"):
        called(refusing)


@pytest.mark.parametrize("result", [False, 0.0, "0"])
def test_a_slot_is_an_integer(result: object) -> None:
    """A slot of another type is a mistake of the adapter, also if it equals the right one."""
    engine = called(lambda: Answers(result, {}))  # type: ignore[arg-type,return-value]

    with pytest.raises(AdapterMistake, match=r"Reserve.*which is no int"):
        engine.apply(act.Reserve(None))


@pytest.mark.parametrize("read", [{0: {5: 1.0}}, {0: {5.0: 1}}, {0.0: {5: 1}}, {0: [5]}, None])
def test_read_sets_are_integers(read: object) -> None:
    """Other read sets are a mistake of the adapter; integers of any library will do."""
    wrong = called(lambda: Answers(None, read))  # type: ignore[arg-type,return-value]
    right = called(lambda: Answers(None, {np.int64(0): {5: np.int32(1)}}))  # type: ignore[arg-type,return-value]

    with pytest.raises(AdapterMistake, match=r"attend\(\).*times}}, all integers"):
        wrong._attend()
    assert "{0: {5: 1}}" == str(right._attend())


def test_a_mistake_ends_the_command_with_one_line(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kvspec fuzz` ends with status 2 at a refusal that the adapter does not translate."""
    monkeypatch.chdir(tmp_path)
    words = ("--engine", "mistaken_adapters:Untranslated", "--in-process", "--seconds", "30")

    assert 2 == main(["fuzz", *words, "--quiet"])
    assert "where the specification refuses: OUT_OF_PAGES" in capfd.readouterr().err


@pytest.mark.parametrize("bug", BUGS, ids=lambda kind: kind.__name__)
def test_a_bug_of_an_engine_is_told_as_one(bug: Any) -> None:
    """It is a finding of its clause; an exception of the engine comes with its traceback."""
    found = fuzzed(with_bug(bug))

    assert found is not None
    assert BUGS[bug] == found.clause
    raised = bug in {Raises, RaisesInside, Exits}
    assert raised == ("mistaken_adapters.py" in found.trace)
    assert raised == ("the engine raised" in found.message)


def test_an_engine_that_its_adapter_inherits_from_is_no_adapter() -> None:
    """A base class without `apply` and `observe` is the engine."""
    found = fuzzed(Inherits)

    assert found is not None
    assert "the engine raised KeyError: 100" in found.message


SOURCE = """
def look(lengths):
    return lengths[100]

class Lengths:
    def look(self, lengths):
        return lengths[100]
"""


@frozen
class Number:
    """A class with methods that attrs makes."""

    value: int = field(converter=int)


def executed(**names: Any) -> dict[str, Any]:
    """The names of code that is in no file, with these globals."""
    exec(SOURCE, names)
    return names


class Calls(Adapter):
    """An adapter whose release calls something that raises."""

    look: Any = None

    def apply(self, action: Any) -> Any:
        """Call it."""
        return self.look({}) if isinstance(action, act.Free) else super().apply(action)


@pytest.mark.parametrize(
    ("look", "is_engines"),
    [
        (executed()["look"], True),
        (executed(__name__="engine.made")["look"], True),
        (executed(__name__=__name__)["Lengths"]().look, True),
        (executed(__name__=__name__)["look"], False),
        (executed(__name__="numpy.made")["look"], False),
        (executed(__name__="functools")["look"], False),
        (executed(__name__="kit", __file__=campaign.__file__)["look"], False),
        (lambda _: Number("text"), False),
        (lambda _: import_module("no_such_module"), False),
    ],
)
def test_code_in_no_file_is_of_the_module_of_its_globals(
    look: Callable[[object], object], *, is_engines: bool
) -> None:
    """So is what it raises: the engine's, or of the library or the adapter that has the module."""
    made = type("Calls", (Calls,), {"look": staticmethod(look), "__module__": __name__})
    if is_engines:
        found = fuzzed(made)
        assert found is not None
        assert "the engine raised KeyError: 100 (<string> line" in found.message
    else:
        with pytest.raises(AdapterMistake, match=r"in Calls\.apply"):
            fuzzed(made)


@pytest.mark.deep
def test_an_adapter_without_mistakes_of_an_engine_without_bugs_holds() -> None:
    """Neither is told of anything, and everything that is required is reached."""
    for steps in (3000, 9000, 27_000):  # what is drawn depends on the modules that are imported
        report = campaign.Run()
        options = campaign.Options(geometry=USUAL, steps=steps, ceiling=False)
        campaign.run(Adapter, options, report=report, update=lambda *_: None)
        coverable = report.coverable(Adapter(USUAL, default_limits(USUAL), CleanupMode.NONE))
        if report.finding or coverable == report.coverage.covered(coverable):
            break

    assert report.finding is None
    assert coverable == report.coverage.covered(coverable)
    assert "Allocate: OUT_OF_PAGES" in coverable
    assert not [item for item in coverable if "SLOT" in item]


def fuzzed(factory: Any) -> Finding | None:
    """The finding of a short run at the usual sizes."""
    report = campaign.Run()
    options = campaign.Options(geometry=USUAL, steps=9000, ceiling=False)
    campaign.run(factory, options, report=report, update=lambda *_: None)
    return report.finding


@pytest.mark.parametrize("kind", [None, "leaves out"])
def test_a_poison_that_overwrites_nothing_is_not_counted(kind: str | None) -> None:
    """Where cells are shown, a dead one must change before poisoned cells were read past."""
    report = campaign.Run()
    factory = PoisonsNothing if kind else spec_engine.make
    options = campaign.Options(geometry=USUAL, steps=300, ceiling=False, seed=3)
    campaign.run(factory, options, report=report, update=lambda *_: None)

    assert report.finding is None
    assert (kind is None) == (report.coverage.corners["poisoned dead cells read past"] > 0)


class Ambiguous:
    """A content that raises when it is compared."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")


class OneAtATime(Sequence[object]):
    """Contents that are read one at a time."""

    def __init__(self, content: object) -> None:
        self._content = content

    def __len__(self) -> int:
        return SIZES.pages * SIZES.page_size

    def __getitem__(self, _cell: Any) -> Any:
        return self._content


CONTENTS: dict[str, tuple[dict[str, Any], str]] = {
    "a live cell": (
        {"cells": [0] * 2 + [Ambiguous()] * 10},
        "View.cells[2] (page 1, offset 0, of slot 2)",
    ),
    "a dead cell": (
        {"cells": [0] * 4 + [Ambiguous()] * 8},
        "View.cells[4] (page 2, offset 0, of no slot)",
    ),
    "an array inside": ({"cells": [(0, np.zeros(2))] * 12}, "View.cells[0] (page 0"),
    "one at a time": ({"cells": OneAtATime(Ambiguous())}, "View.cells (slot 1 position 0)"),
    "what is expected": ({"expected": lambda _: Ambiguous()}, "View.expected((1,))"),
    "a lookup": ({"expected": lambda prefix: {}[prefix]}, "View.expected: saw 'KeyError: (1,)'"),
}


@pytest.mark.parametrize("which", CONTENTS)
def test_contents_that_cannot_be_compared_are_a_mistake(which: str) -> None:
    """The field, the cell and its slot are named, before a clause compares them."""
    shown, message = CONTENTS[which]
    inner = SpecEngine(SIZES, default_limits(SIZES), CleanupMode.NONE)
    for step in (*grown(1, 1), *grown(2, 1)):
        inner.apply(step)
    wrong = called(lambda: Shows(inner.profile, evolve(inner.observe(), **shown)))  # type: ignore[arg-type,return-value]

    with pytest.raises(AdapterMistake) as told:
        wrong.observe().expected((1,))
    assert f"the adapter's {message}" in str(told.value)


@pytest.mark.parametrize(
    "cells", [np.zeros((12, 2)), [object()] * 12, [float("nan")] * 12, ["a"] * 12]
)
def test_contents_of_any_type_that_compares_will_do(cells: Any) -> None:
    """Arrays become tuples; an object of the engine, NaN and a text are compared as they are."""
    inner = SpecEngine(SIZES, default_limits(SIZES), CleanupMode.NONE)
    view = evolve(inner.observe(), cells=cells, expected=lambda _: np.zeros(2))
    right = called(lambda: Shows(inner.profile, view))  # type: ignore[arg-type,return-value]

    assert right.observe().cells == view.cells
    assert (0.0, 0.0) == plain(right.observe().expected((1,)))


@pytest.mark.parametrize(
    ("others", "given", "sizes", "advice"),
    [
        ([], False, {}, ""),
        (["Clone: done"], False, {}, "; give more seconds"),
        (["Clone: done"], True, {}, OTHER_SIZES),
        (["Clone: done"], False, {"slots": (3,)}, OTHER_SIZES),
    ],
)
def test_the_advice_fits_what_was_not_reached(
    *, others: list[str], given: bool, sizes: dict[str, tuple[int, ...]], advice: str
) -> None:
    """Seconds mend no poison; they may not help where the sizes are given or few."""
    report, engine = campaign.Run(), toy()
    engine.profile = evolve(engine.profile, sizes=sizes)
    options = campaign.Options(geometry=USUAL, steps=300, ceiling=False)
    campaign.run(PoisonsNothing, options, report=report, update=lambda *_: None)
    times = report.coverage.poisoned_nothing

    assert times > 0
    assert (
        f"{times} calls of the adapter's poison changed no dead cell that the view shows: "
        f"mend it or leave it out{advice}"
    ) == report.advice([*others, POISONED], engine, given=given)
    assert advice.removeprefix("; ") == report.advice(others, engine, given=given)


@pytest.mark.parametrize(
    ("made", "kind", "times"),
    [
        (PoisonsNothing, Poison.NAN, 1),
        (PoisonsNothing, Poison.STALE, 0),
        (spec_engine.make, Poison.NAN, 0),
        (Adapter, Poison.NAN, 0),
    ],
)
def test_a_poison_is_blamed_if_it_should_overwrite(made: Any, kind: Poison, times: int) -> None:
    """STALE leaves the cells as they are, and an adapter may have no poison."""
    target = Campaign(make=partial(settings.make, made, USUAL, CleanupMode.NONE))
    Session(target, "lifecycle").take(PoisonDead(kind))

    assert times == target.coverage.poisoned_nothing
    report = campaign.Run(coverage=target.coverage)
    advice = report.advice([POISONED], toy(), given=False)
    assert (times > 0) == ("poison" in advice)
    assert (times > 0) == ("give more seconds" not in advice)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("policy", "lowets", "'lowest' or 'any'"),
        ("refuses", "sometimes", "'exact' or 'may_refuse_more'"),
        ("actions", frozenset({"Reserve"}), "classes of spec.machines.actions"),
        ("actions", 3, "a set of classes"),
        ("guarded", {"SLOT_RANGE"}, "a set of Reasons"),
        ("guarded", {(act.Reserve, "SLOT_RANGE")}, "or of pairs"),
        ("batches", "one", "'several slots' or 'one slot' or 'one position'"),
        ("sizes", {"blocks": (1, 2)}, "fields of Geometry"),
    ],
)
def test_a_profile_has_known_words_alone(field: str, value: Any, allowed: str) -> None:
    """A misspelt word, which would silently switch comparisons off, is refused."""
    with pytest.raises(InvalidInput, match=f"Profile.{field}.*{allowed}"):
        evolve(toy().profile, **{field: value})


def test_a_view_shows_all_slots_pages_and_cells() -> None:
    """A field with an entry too few is refused by its name."""
    engine = SpecEngine(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)
    view = engine.observe()
    for name in ("counts", "used", "rows", "allocated", "written", "tokens", "finished", "cells"):
        with pytest.raises(InvalidInput, match=f"View.{name}: saw '.* entries'"):
            evolve(view, **{name: getattr(view, name)[1:]})


@pytest.mark.deep
def test_a_length_without_tokens_is_a_finding_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CL8: every clause is judged on the view that ends the run, however wrong that view is."""
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "f.json"

    assert 1 == main(["fuzz", "--plant", "CL8", "--seconds", "60", "--json", str(target)])
    assert "LEN" in json.loads(target.read_text(encoding="utf-8"))["failures"][0]


def test_a_finding_before_the_first_draw_is_told_with_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of the warm-up count, unchecked items are listed, and no time has no shares."""
    target = tmp_path / "f.json"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOY_BUG", "leak")
    words = ["fuzz", "--engine", "toy_engine:make", "--seconds", "5", "--json", str(target)]
    assert 1 == main(words)
    result = json.loads(target.read_text(encoding="utf-8"))

    assert 0 < result["shrunk_steps"] <= result["steps"]
    assert result["not_checked"]
    assert not [key for key in result if key.startswith("share_of_")]


def test_append_beside_a_queue_is_refused() -> None:
    """A profile with Append and an action of the queue names both; so does a view with a queue."""
    profile = evolve(toy().profile, actions=frozenset({act.Reserve, act.Append}))
    with pytest.raises(InvalidInput, match="Append beside Enqueue, Round"):
        evolve(profile, actions=frozenset({act.Append, act.Round, act.Enqueue}))

    shown = evolve(toy().observe(), queue=())
    with pytest.raises(InvalidInput, match=r"View\.queue.*the caller has it"):
        require_shown(profile, shown)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("used", [2, 0, 0], "booleans"),
        ("used", [-1, 0, 0], "booleans"),
        ("finished", [0, 0, 7], "booleans"),
        ("queue", [(1, 2)], "(token, slot, position)"),
        ("queue", [(1, 2, 3), (1, 2, 3, 4)], "(token, slot, position)"),
    ],
)
def test_a_value_of_another_form_is_told_with_its_field(
    field: str, value: object, allowed: str
) -> None:
    """A number that is no truth value, and an entry of another length, are bad input."""
    with pytest.raises(InvalidInput) as told:
        evolve(toy().observe(), **{field: value})  # type: ignore[arg-type]

    assert f"View.{field}" in str(told.value)
    assert allowed in told.value.allowed
