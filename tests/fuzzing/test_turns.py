"""The turns of a run and the words of its job: none is lost on the way, whatever came before."""

from functools import partial
from itertools import product
from typing import Any

import pytest
from attrs import asdict, evolve, fields
from deep import deep_after
from spec_engine import SpecEngine, small

from conformance.cli import fuzz
from conformance.cli.contract import Report
from conformance.fuzzing import campaign, suite, suite_process
from conformance.fuzzing.counterexamples import describe
from conformance.fuzzing.settings import Setting, chooses, further, settings_of, usual
from conformance.fuzzing.state_machine import (
    LEVELS,
    AdapterStops,
    Campaign,
    _ending_at_a_mistake,
)
from conformance.fuzzing.suite_process import Job
from conformance.isolation import placement
from conformance.lockstep.run import Finding
from conformance.lockstep.watchdog import patience_of
from conformance.protocol import Action, Result
from spec.machines import actions as act
from spec.vocabulary import (
    CleanupMode,
    InvalidInput,
    Limits,
    Reason,
    Refusal,
    default_limits,
    refused,
)

SIZES = small(pages=4, page_size=2, slots=2, pages_per_seq=2)


@pytest.mark.parametrize("levels", range(1, len(campaign.TURNS) + 1))
def test_every_level_meets_every_usual_setting(levels: int) -> None:
    """However many levels an engine has, each of them comes at each setting, equally often."""
    relatives = usual(SIZES)
    turns = range(levels * len(relatives))

    met = [(turn % levels, campaign._relative(relatives, turn, levels)) for turn in turns]

    assert set(product(range(levels), relatives)) == set(met)


@pytest.mark.parametrize("level", deep_after(1, LEVELS))
@pytest.mark.parametrize("before", [None, Finding((), "RC", "of an earlier turn")])
def test_a_turn_takes_steps_and_finds_what_is_there_whatever_was_found_before(
    before: Finding | None, level: str
) -> None:
    """A finding that was set aside ends no later turn, and none is taken for that of another."""
    for right in (True, False):
        make = partial(SpecEngine if right else Refuses, SIZES, default_limits(SIZES))
        target = Campaign(make=partial(make, CleanupMode.NONE), finding=before)
        report = campaign.Run(setting=usual(SIZES)[0])

        campaign._take_turn(target, level, 1, report)

        assert report.finding is target.finding
        assert right == (report.finding is None)
        assert before is None or before is not report.finding
        assert report.steps == target.steps
        assert right <= (0 < report.steps)  # the step that goes wrong is not counted


class Refuses(SpecEngine):
    """The specification, which refuses every action."""

    def apply(self, action: Action) -> Result:
        """Refuse it."""
        raise refused([Refusal(Reason.OUT_OF_PAGES, action, None)])


EVERY = (
    *usual(small(), windows=True),
    *(Setting(one, mode, make(one)) for one, mode, make in further(small(), windows=True)),
)


@pytest.mark.parametrize("alone", [True, False])
def test_a_run_may_come_to_its_own_settings_and_to_no_others(*, alone: bool) -> None:
    """Sizes go with the limits that they have in the run, or the default ones, and no others."""
    is_chosen = chooses(SpecEngine, small(), alone=alone)
    own = settings_of(SpecEngine, small(), alone=True) if alone else EVERY
    geometries = {one.geometry for one in EVERY} | {small(pages=15), small(window=3)}
    pairs = {(one.geometry, one.limits) for one in own}
    pairs |= {(one.geometry, default_limits(one.geometry)) for one in own}

    for sizes in geometries:
        limits: set[Limits] = {one.limits for one in EVERY} | {default_limits(sizes)}
        for one in (*limits, evolve(default_limits(sizes), rounds=77)):
            assert ((sizes, one) in pairs) == is_chosen(sizes, one)


JOB = Job(
    where=suite.Where(engine="spec_engine:make", python=None, in_process=True),
    geometry=small(),
    alone=False,
    seconds=60.0,
    seed=0,
    known=(),
    hang_seconds=15.0,
    path=(),
)
OTHER: dict[str, tuple[Any, ...]] = {
    "where": (suite.Where(engine="another", python="mine", in_process=False),),
    "geometry": (small(pages=5),),
    "alone": (True,),
    "seconds": (0.001, 1e9),
    "seed": (1, 2**31 - 1),
    "known": (("RC",), ("CONS", "RC", suite.COVERAGE)),
    "hang_seconds": (0.1, 500.0),
    "path": (("/nowhere",),),
}


@pytest.mark.parametrize("name", [one.name for one in fields(Job)])
def test_every_word_of_a_job_reaches_the_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the options of pytest say is what the suite is judged with, and else nothing."""
    made, judged = list[dict[str, Any]](), list[dict[str, Any]]()

    def factory_of(**given: Any) -> object:
        made.append(given)
        return SpecEngine

    def judge(where: object, **given: Any) -> dict[str, suite.Answer]:
        judged.append({"where": where, **given})
        return {"RC": suite.Answer(holds=None, why="x")}

    monkeypatch.setattr(placement, "factory_of", factory_of)
    monkeypatch.setattr(suite, "judge", judge)
    for value in OTHER[name]:
        made.clear()
        judged.clear()
        job = evolve(JOB, **{name: value})

        plain = suite_process._judged(job, 0)

        (given,) = judged
        given.pop("watchdog")
        assert [asdict(job.where)] == made
        assert {
            "where": job.where,
            "geometry": job.geometry,
            "alone": job.alone,
            "seconds": job.seconds,
            "seed": job.seed,
            "known": frozenset(job.known),
            "patience": patience_of(job.hang_seconds),
            "factory": SpecEngine,
        } == given
        assert {"RC": {"holds": None, "why": "x"}} == plain


@pytest.mark.parametrize(("steps", "warm_up"), list(product((0, 1, 7), repeat=2)))
def test_the_counts_of_a_run_are_those_that_it_has_taken(steps: int, warm_up: int) -> None:
    """Steps of the warm-up that found something count, and a rate without a ceiling is no share."""
    state = campaign.Run(
        steps=steps, warmup_steps=warm_up, active_seconds=2.0 * (steps > 0), usual=usual(SIZES)
    )
    report = Report(command="fuzz", seed=0)

    fuzz.count(state, report)

    counts = report.counts
    assert (steps + warm_up, steps / 2) == (counts["steps"], counts["steps_per_second"])
    assert (0.0, 0.0) == (counts["ceiling_steps_per_second"], counts["of_ceiling"])
    assert (steps > 0) == ("share_of_draws" in counts)
    assert 3 == len(set(counts["geometries"]))  # type: ignore[call-overload]


@pytest.mark.parametrize("fails_at", range(1, 5))
def test_a_finding_of_the_warm_up_has_its_steps(fails_at: int) -> None:
    """A run that ends in its warm-up has taken the steps up to the one that went wrong."""
    taken = list[Action]()

    class Late(SpecEngine):
        def apply(self, action: Action) -> Result:
            taken.append(action)
            if len(taken) == fails_at:
                raise refused([Refusal(Reason.OUT_OF_PAGES, action, None)])
            return super().apply(action)

    state, report = campaign.Run(), Report(command="fuzz", seed=0)
    options = campaign.Options(geometry=SIZES, alone=True, steps=50, ceiling=False)
    campaign.run(Late, options, report=state, update=lambda *_: None)

    fuzz.count(state, report)

    assert state.finding is not None
    assert len(state.finding.history) == report.counts["steps"]


@pytest.mark.parametrize("count", range(4))
def test_the_steps_to_a_mistake_are_numbered_as_those_of_a_finding(count: int) -> None:
    """What is noted on a mistake has each step by the number that a finding gives it, from 1."""
    history = tuple(act.Free(10 + number) for number in range(count))
    mistake = InvalidInput("apply", seen=1, allowed="2", remedy="Mend it.")

    with pytest.raises(AdapterStops) as stopped, _ending_at_a_mistake(history):
        raise mistake

    steps = describe(Finding(history, "RC", "")).splitlines()[1:]
    noted = "\n".join(getattr(mistake, "__notes__", ())).splitlines()
    assert mistake is stopped.value.error
    assert (["after these steps:", *steps] if count else []) == noted
    assert all(f"  {number}. {history[number - 1]}" in noted for number in range(1, count + 1))
