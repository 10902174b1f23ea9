"""The parts of a run beside second readings: what one leaves to the next, and what counts."""

import re
from collections.abc import Collection, Mapping
from functools import partial
from itertools import chain, combinations, permutations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from attrs import evolve
from deep import deep_after
from spec_engine import SpecEngine, small

from conformance.files import histories
from conformance.fuzzing import campaign, suite
from conformance.fuzzing.adapter_check import Checked, check
from conformance.fuzzing.settings import Setting, further, further_of, usual
from conformance.fuzzing.state_machine import LEVELS, Campaign
from conformance.lockstep.run import Finding
from conformance.lockstep.watchdog import Patience, Watchdog
from conformance.protocol import Action, Result, Unsupported
from conformance.runtime import compiled_code, mappings
from spec.clauses import CLAUSES
from spec.machines import actions as act
from spec.vocabulary import CleanupMode, Geometry, Limits, default_limits

SIZES = small(pages=4, page_size=2, slots=2, pages_per_seq=2)
SETTINGS = usual(SIZES)


class Compiled(SpecEngine):
    """The specification as an engine with compiled entry points, some of them badly."""

    bad: frozenset[Setting] = frozenset()

    def compilations(self) -> Mapping[str, int]:
        """Of two entry points, the second may have been compiled twice."""
        profile = self.profile
        here = Setting(profile.geometry, profile.cleanup, profile.limits)
        return {"round": 1, "clone": 1 + (here in self.bad)}


@pytest.mark.parametrize(
    "bad", [*chain.from_iterable(combinations(SETTINGS, count) for count in range(4))]
)
def test_each_setting_whose_programs_are_wrong_is_told(
    bad: Collection[Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong at any of the settings is told of it, and of no other, in the run's order."""
    monkeypatch.setattr(Compiled, "bad", frozenset(bad))
    report = campaign.Run(usual=SETTINGS)
    campaigns = {
        one: Campaign(make=partial(Compiled, one.geometry, one.limits, one.cleanup))
        for one in SETTINGS
    }

    campaign._judge_programs(campaigns, report)

    told = [text.partition(" at ")[2].partition(", should")[0] for text in report.programs]
    assert [name for name in report.compilations if report.compilations[name]["clone"] > 1] == told
    assert len(bad) == len(told)
    assert len(SETTINGS) == len(report.compilations)


def test_settings_that_differ_in_their_limits_are_told_apart() -> None:
    """An engine with few sizes has the same sizes twice, and each has its own compilations."""
    other = evolve(SETTINGS[0].limits, rounds=1)
    settings = [SETTINGS[0], SETTINGS[0]._replace(limits=other)]
    report = campaign.Run(usual=SETTINGS)
    campaigns = {
        one: Campaign(make=partial(Compiled, one.geometry, one.limits, one.cleanup))
        for one in settings
    }

    campaign._judge_programs(campaigns, report)

    assert len(settings) == len(report.compilations)


@pytest.mark.parametrize("used", [0.0, 1.0])
def test_programs_are_let_go_of_before_the_system_ends_the_process(
    used: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few mapped areas left each setting is judged and let go of before the next one."""
    released = list[int]()
    monkeypatch.setattr(mappings, "share", lambda: used)
    monkeypatch.setattr(compiled_code, "release", lambda: released.append(1))
    monkeypatch.setattr(Compiled, "bad", frozenset(SETTINGS[:1]))
    held = {one: Campaign(make=partial(Compiled, *_given(one))) for one in SETTINGS}
    compiled, report = dict[Setting, Campaign](), campaign.Run(usual=SETTINGS)
    options = campaign.Options(geometry=SETTINGS[0].geometry)

    for setting in (*SETTINGS, *SETTINGS):
        if setting not in compiled:
            campaign._make_room(compiled, options, report)
            compiled[setting] = held[setting]
    campaign._judge_programs(compiled, report)

    assert (2 * len(SETTINGS) if used else 0) == len(released)
    assert len(SETTINGS) == len(report.compilations)
    assert {1, 2} == {found["clone"] for found in report.compilations.values()}
    assert 1 == len(report.programs)


def _given(setting: Setting) -> tuple[Geometry, Limits, CleanupMode]:
    return setting.geometry, setting.limits, setting.cleanup


NAMES = ("RC", "CONS", "ATOMIC")
SUBSETS = [*chain.from_iterable(combinations(NAMES, count) for count in range(4))]


@pytest.mark.parametrize("violated", SUBSETS[1:])
@pytest.mark.parametrize("known", SUBSETS)
def test_a_finding_is_set_aside_exactly_if_all_that_it_violates_is_known(
    violated: tuple[str, ...], known: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any clause that is not known keeps it, and the first finding of a known one stays."""
    monkeypatch.setattr(campaign, "violated_by", lambda _: dict.fromkeys(violated, ""))
    found, before = Finding((act.Reserve(),), violated[0], ""), Finding((), violated[0], "")
    report = campaign.Run(finding=found, known={violated[0]: before})

    campaign._set_aside(report, frozenset(known))

    goes = set(violated) <= set(known)
    assert (None if goes else found) is report.finding
    later = dict.fromkeys(violated[1:], found) if goes else {}
    assert {violated[0]: before, **later} == report.known


@pytest.mark.parametrize("times", [*permutations((5.0, 1.0, 3.0))])
def test_the_time_of_a_warm_up_is_that_of_the_longest(
    times: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the settings takes longest to warm up, a step of a new engine may take that."""
    ends = iter(chain.from_iterable((0.0, one) for one in times))
    monkeypatch.setattr(campaign, "time", SimpleNamespace(perf_counter=lambda: next(ends)))
    monkeypatch.setattr(campaign, "replay", lambda *_, **__: None)
    idle, report = Campaign(make=campaign._no_engine), campaign.Run()
    profile = SpecEngine(SIZES, default_limits(SIZES), CleanupMode.NONE).profile

    for _ in times:
        campaign._warm_up(idle, profile, 1.0, report)

    assert max(times) == report.warm_up_seconds


def nearest(
    sizes: Collection[Geometry], geometry: Geometry, limits: Limits, cleanup: CleanupMode
) -> SpecEngine:
    """An engine that has these sizes alone; of any other the nearest is one of them."""
    if geometry in sizes:
        return SpecEngine(geometry, limits, cleanup)
    there = min(sizes, key=lambda one: (abs(one.page_size - geometry.page_size), one.pages))
    raise Unsupported("geometry", seen=geometry, allowed="others", nearest=there)


HAS = (small(), small(slots=2), small(page_size=1, pages=8, slots=3), small(pages=5, page_size=7))


@pytest.mark.parametrize("count", range(1, len(HAS) + 1))
@pytest.mark.parametrize("seed", range(3))
def test_no_further_setting_comes_twice_to_an_engine_with_few_sizes(count: int, seed: int) -> None:
    """Of the candidates whose nearest sizes are the same, one is taken, and no usual one."""
    known = tuple(
        Setting(HAS[0], mode, limits)
        for mode, limits in product(CleanupMode, (default_limits(HAS[0]),))
    )

    found = [
        *further_of(
            partial(nearest, HAS[:count]),
            small(),
            known=known,
            seed=seed,
            leave_out=lambda *_: None,
        )
    ]

    assert {one.geometry for one in found} <= set(HAS[:count])
    assert len(set(found)) == len(found)
    assert not set(found) & set(known)
    limits = {
        (cleanup, narrow(there)) for _, cleanup, narrow in further(small()) for there in HAS[:count]
    }
    assert {(one.cleanup, one.limits) for one in found} <= limits


class Answers(SpecEngine):
    """The specification; one of the engines that are made returns what its actions result in."""

    made: ClassVar[list["Answers"]] = []
    answers: ClassVar[int | None] = None
    told: ClassVar[set[type]] = set()

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.made.append(self)

    def apply(self, action: Action) -> Result:
        """Take the action; its result, or None, which is not compared."""
        result = super().apply(action)
        if self.answers is None or self in self.made[self.answers : self.answers + 1]:
            self.told.update({type(action)} if result is not None else ())
            return result
        return None


@pytest.mark.parametrize("answers", deep_after(2, [None, 1, 3, 5]))
def test_the_results_that_were_compared_are_those_of_every_level(
    answers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of an adapter names each action that returned something at any one level."""
    monkeypatch.setattr(Answers, "made", [])
    monkeypatch.setattr(Answers, "told", set())
    monkeypatch.setattr(Answers, "answers", answers)
    monkeypatch.setattr("conformance.fuzzing.adapter_check.LEAST", 100)
    monkeypatch.setattr("conformance.fuzzing.adapter_check.MOST", 100)
    found = Checked()

    check(Answers, Setting(SIZES, CleanupMode.NONE, default_limits(SIZES)), found=found)

    assert None is found.finding
    assert Answers.told == found.compared
    assert 2 < len(found.compared)
    assert 1 + 2 * len(LEVELS) == len(Answers.made)


def violating(history: tuple[Any, ...], *clauses: str) -> Finding:
    """A finding whose last step violates these clauses, each with a message of its own."""
    name = f"{len(history)} steps"
    return Finding(history, clauses[0], f"{name}: {clauses[0]}", trace=" ".join(clauses[1:]))


@pytest.mark.parametrize("short", [one for one in SUBSETS if one[:1] == ("RC",)])
@pytest.mark.parametrize("long", [one for one in SUBSETS if one[:1] == ("RC",)])
def test_a_clause_is_described_by_the_shortest_history_that_violates_it(
    long: tuple[str, ...], short: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shrunk history stands for what it violates, and the longer one for the rest alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        suite,
        "violated_by",
        lambda one: {
            name: f"{len(one.history)} steps: {name}" for name in (one.clause, *one.trace.split())
        },
    )
    found = violating((act.Reserve(0), act.Reserve(1)), *long)
    least = (SETTINGS[0], violating((act.Reserve(),), *short))
    monkeypatch.setattr(suite, "shrink_at", lambda *_, **__: least)
    where = suite.Where(engine="toy_engine:make", python=None, in_process=True)

    with Watchdog(lambda *_: None) as watchdog:
        texts = suite._kept(
            campaign.Run(setting=SETTINGS[0]),
            found,
            SpecEngine,
            where,
            watchdog,
            Patience(),
            "chosen by the kit",
        )

    expected = {name: f"{name}: {1 if name in short else 2} steps: {name}" for name in long + short}
    assert expected == {name: text.splitlines()[0] for name, text in texts.items()}
    kept = 2 if set(long) - set(short) else 1
    assert kept == len([*tmp_path.glob(".kvspec/corpus/*.jsonl")])
    for name, text in texts.items():
        (named,) = re.findall(r"rerun --trust (\S+)", text)
        assert (1 if name in short else 2) == len(histories.load(tmp_path / named).history)


@pytest.mark.parametrize("given", SUBSETS)
@pytest.mark.parametrize("unjudged", SUBSETS)
@pytest.mark.parametrize("undecided", [(), (*CLAUSES,), (*CLAUSES, suite.COVERAGE)])
def test_every_clause_has_the_strongest_of_its_answers(
    given: tuple[str, ...], unjudged: tuple[str, ...], undecided: tuple[str, ...]
) -> None:
    """A failure hides what is not judged, which hides what is undecided; all else holds."""
    answers = suite._answers(
        dict.fromkeys(given, "it fails"),
        dict.fromkeys(unjudged, "it is hidden"),
        dict.fromkeys(undecided, "the run ended"),
    )

    assert [*CLAUSES, suite.COVERAGE] == [*answers]
    for name, answer in answers.items():
        if name in given:
            expected = suite.Answer(holds=False, why="it fails")
        elif name in unjudged:
            expected = suite.Answer(holds=None, why="not checked: it is hidden")
        elif name in undecided:
            expected = suite.Answer(holds=None, why="the run ended")
        else:
            expected = suite.Answer(holds=True)
        assert expected == answer
