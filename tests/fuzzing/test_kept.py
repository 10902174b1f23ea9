"""What is kept of a finding, and which engine runs it again: over every field and every option."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import toy_engine
from attrs import evolve, fields
from counterexample_tools import GROW, OURS, SIZES, recorded

from conformance.cli import fuzz, rerun
from conformance.cli.contract import Report
from conformance.engines.registry import OUR_ENGINE
from conformance.files.histories import STEPS, Recorded
from conformance.fuzzing import campaign, counterexamples
from conformance.fuzzing.warmup import warmup
from conformance.lockstep import run as lockstep
from conformance.protocol import CALLS, Poison
from spec.machines import actions as act
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    InvalidInput,
    Limits,
    Params,
    Request,
    ResetMode,
)

TOY = "toy_engine:make"
CHANGES: dict[str, tuple[Any, ...]] = {
    "engine": ("another",),
    "geometry": (evolve(SIZES, pages=SIZES.pages + 1),),
    "limits": (evolve(OURS.limits, rounds=OURS.limits.rounds + 1),),
    "cleanup": tuple(CleanupMode),
    "history": (GROW[:1], (), (*GROW, act.Free(0))),
    "plant": ("RC2",),
    "clause": ("RC", "ATOMIC", "no clause", None),
    "message": ("another", "", None),
    "python": ("another",),
    "in_process": (False, True),
    "spec_version": ("0.0", None),
}
ELSEWHERE = {"engine", "geometry", "limits", "python"}
"""What makes a kept history one of another engine or other sizes."""


def toys(bug: str, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> toy_engine.Adapter:
    """A toy engine with one of its bugs, at any sizes."""
    engine = toy_engine.make(geometry, limits, cleanup)
    engine.allocator.bug = bug
    return engine


@pytest.mark.parametrize("bug", ["leak", ""])
@pytest.mark.parametrize("name", [one.name for one in fields(Recorded)])
def test_a_kept_history_is_a_failure_exactly_if_this_engine_still_fails_on_it(
    name: str, bug: str, tmp_path: Path
) -> None:
    """Only engine, Python and sizes say whether it is replayed, and only the engine what of it."""
    kept = recorded("leak", GROW)
    for number, value in enumerate(CHANGES[name]):
        folder, report = tmp_path / str(number), Report(command="fuzz", seed=0)
        changed = evolve(kept, **{name: value})
        path, _ = counterexamples.write(changed, folder)
        arguments = Namespace(engine=TOY, python=None, in_process=True, plant=None)
        options = campaign.Options(geometry=SIZES, alone=True)

        fuzz._replay_corpus(folder, partial(toys, bug), options, arguments, report)

        is_here = name not in ELSEWHERE
        fails = is_here and bool(bug) and len(changed.history) >= 3
        text = f"{path}: {kept.clause}: {kept.message}"
        assert {"corpus_replayed": int(is_here)} == report.counts
        assert [text] * fails == report.failures
        why = f"{path.name}: recorded with another engine or sizes; use kvspec rerun"
        assert [why] * (not is_here) == report.not_checked


def test_every_kept_history_is_replayed_whatever_the_others_say(tmp_path: Path) -> None:
    """Several that fail, hold or are of another engine are each told by their own file."""
    kept, paths = recorded("leak", GROW), dict[str, Path]()
    changes: dict[str, Any] = {"clause": "RC", "engine": "another", "history": (), "message": ""}
    for name, value in changes.items():
        paths[name] = counterexamples.write(evolve(kept, **{name: value}), tmp_path)[0]
    report = Report(command="fuzz", seed=0)
    arguments = Namespace(engine=TOY, python=None, in_process=True, plant=None)
    options = campaign.Options(geometry=SIZES, alone=True)

    fuzz._replay_corpus(tmp_path, partial(toys, "leak"), options, arguments, report)

    assert {"corpus_replayed": 3} == report.counts
    failing = sorted(str(paths[name]) for name in ("clause", "message"))
    assert failing == [text.partition(":")[0] for text in report.failures]
    assert 1 == len(report.not_checked)


VALUES: tuple[Any, ...] = (
    *(None, 0, 1, -1, False, True, (), (0,), (1, 0), ((0, 0),), (None, (0, 1)), ((0,), (1, 0))),
    *(0.0, 0.5, (Request(id=0, prompt=(0,), params=Params(max_new=1)),), *Poison, *ResetMode),
)
LEAST: dict[type, Any] = {
    **{type(step): step for step in warmup(CALLS - {act.Append})},
    act.Append: act.Append(0, (1,)),
    Params: Params(max_new=1),
    Request: Request(id=1, prompt=(1,), params=Params(max_new=1)),
}


def forms(kind: type) -> Iterator[Any]:
    """Each form of this class that differs from a usual one in one field."""
    yield LEAST[kind]
    for one, value in product(fields(kind), VALUES):
        with suppress(InvalidInput, TypeError, AttributeError, ValueError):  # not its type
            yield evolve(LEAST[kind], **{one.name: value})


def as_python(kept: Recorded) -> Recorded:
    """The counterexample that its test file makes."""
    found: dict[str, Any] = {"__name__": "written"}
    exec(compile(counterexamples.test_source(kept), "written", "exec"), found)
    made: Recorded = found["RECORDED"]
    return made


@pytest.mark.parametrize(
    "kind",
    [*sorted(STEPS.values(), key=lambda one: one.__name__), Params, Request],
    ids=lambda one: one.__name__,
)
def test_the_test_of_a_counterexample_has_every_value_of_every_field(kind: type) -> None:
    """A step in the test file equals that of the history, also where a field is 0 or empty."""
    made: list[Any] = [*forms(kind)]
    if kind is Params:
        made = [act.Assign(0, (1,), params, 0) for params in made]
    if kind is Request:
        made = [act.Submit(request) for request in made]
    kept = evolve(OURS, history=tuple(made))

    seen = as_python(kept)

    assert len(fields(kind)) <= len(made)
    assert kept == seen


@pytest.mark.parametrize("name", [one.name for one in fields(Recorded)])
def test_the_test_of_a_counterexample_has_every_field_of_it(name: str) -> None:
    """What the file of the history says, that of the test says too."""
    if name == "spec_version":  # a test runs with the sources beside it
        assert as_python(OURS) == OURS
        return
    for value in (*CHANGES[name], *("", None) * (name in {"plant", "clause", "message"})):
        kept = evolve(OURS, **{name: value})

        assert kept == as_python(kept)


@pytest.mark.parametrize("plant", [None, "RC2"])
@pytest.mark.parametrize(("variable", "told"), [(None, "plant"), ("", None), ("CW5", "CW5")])
def test_the_variable_has_the_last_word_about_the_planted_bug(
    plant: str | None, variable: str | None, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug is that of the variable, none if it is empty, and else that of the file."""
    seen = list[str | None]()

    @contextmanager
    def planted(name: str | None) -> Iterator[None]:
        seen.append(name)
        yield

    monkeypatch.setattr(counterexamples, "planted", planted)
    if variable is None:
        monkeypatch.delenv(counterexamples.PLANT_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(counterexamples.PLANT_VARIABLE, variable)

    counterexamples.check(evolve(OURS, engine=TOY, in_process=True, plant=plant))

    assert [plant if told == "plant" else told] == seen


CHOICES: list[dict[str, Any]] = [
    dict(zip(("engine", "python", "in_process"), one, strict=True))
    for one in product((OUR_ENGINE, "foreign:make", None), (None, "theirs", "mine"), (False, True))
]


def chosen(kept: Recorded, given: dict[str, Any], *, trust: bool) -> Recorded | None:
    """The engine to run by the words of `kvspec rerun --help`; None if only the file names it."""
    if given["engine"] is not None:  # as the command line says, and the file says nothing
        return evolve(kept, **given)
    ran = evolve(
        kept,
        python=kept.python if given["python"] is None else given["python"],
        in_process=kept.in_process or given["in_process"],
    )
    named_here = kept.engine == OUR_ENGINE and (kept.python is None or given["python"] is not None)
    return ran if trust or named_here else None


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("given", CHOICES, ids=str)
def test_what_is_rerun_is_what_the_command_line_and_a_trusted_file_name(
    given: dict[str, Any], *, trust: bool
) -> None:
    """Each engine, Python and place of a file, with each of the command line and --trust."""
    for named in CHOICES:
        if named["engine"] is None:
            continue
        kept = evolve(OURS, **named)
        arguments = Namespace(file="h.jsonl", trust=trust, **given)
        expected = chosen(kept, given, trust=trust)

        try:
            seen: Recorded | None = rerun._engine_chosen(kept, arguments)
        except InvalidInput:
            seen = None

        assert expected == seen


@pytest.mark.parametrize("wrong", [True, False])
@pytest.mark.parametrize("plant", [None, "RC2"])
@pytest.mark.parametrize("without", [True, False])
@pytest.mark.parametrize("version", [None, "0.0", OURS.spec_version])
def test_a_rerun_says_what_it_ran_and_what_of_it_is_not_the_same(
    version: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    wrong: bool,
    plant: str | None,
    without: bool,
) -> None:
    """The bug, the steps, the place of the failure and the specification are told as they are."""
    seen, limits = list[str | None](), list[float]()
    right = lockstep.replay

    @contextmanager
    def planted(name: str | None) -> Iterator[None]:
        seen.append(name)
        yield

    def replayed(*given: Any, seconds: float = 0.0, **named: Any) -> Any:
        limits.append(seconds)
        return right(*given, seconds=seconds, **named)

    monkeypatch.setattr(counterexamples, "planted", planted)
    monkeypatch.setattr(lockstep, "replay", replayed)
    monkeypatch.setenv("TOY_BUG", "leak" if wrong else "")
    kept = evolve(recorded("leak", GROW), plant=plant, spec_version=version, in_process=True)
    path, _ = counterexamples.write(evolve(kept, history=GROW), tmp_path)
    report = Report(command="rerun", seed=0, quiet=True)
    options = {"engine": None, "python": None, "in_process": False, "trust": True}

    verdict = rerun.run(
        Namespace(file=path, without_plant=without, hang_seconds=30.0, **options), report
    )

    told = None if without else plant
    assert ([told], [30.0]) == (seen, limits)
    assert {"steps": len(GROW), "plant": told} == report.counts
    assert int(wrong) == verdict.exit_status
    assert [f"{kept.clause}: {kept.message} (at step {len(kept.history)})"] * wrong == (
        report.failures
    )
    assert (version == "0.0") == any("specification 0.0" in one for one in report.not_checked)


@pytest.mark.parametrize("plant", [None, "RC2"])
@pytest.mark.parametrize("without", [True, False])
@pytest.mark.parametrize("given", [None, "mine"])
@pytest.mark.parametrize("kept", [None, "theirs"])
def test_no_planted_bug_is_left_out_unasked(
    kept: str | None,
    given: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    without: bool,
    plant: str | None,
) -> None:
    """A bug is planted in this process, so a history of one does not run in another Python."""
    ran = list[str | None]()

    def maker(recorded: Recorded) -> Any:
        ran.append(recorded.python)
        return partial(toys, "", recorded.geometry, recorded.limits, recorded.cleanup)

    monkeypatch.setattr(counterexamples, "maker", maker)
    monkeypatch.setattr(counterexamples, "planted", lambda _: nullcontext())
    path, _ = counterexamples.write(evolve(OURS, plant=plant, python=kept), tmp_path)
    options = {"engine": None, "python": given, "in_process": False, "trust": True}
    arguments = Namespace(file=path, without_plant=without, hang_seconds=30.0, **options)

    with suppress(InvalidInput):
        rerun.run(arguments, Report(command="rerun", seed=0, quiet=True))

    python = given or kept
    assert ([] if plant and python and not without else [python]) == ran
