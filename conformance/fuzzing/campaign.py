"""The fuzzing campaign: turns at the levels until the time is up, a step fails, or Ctrl-C.

The time is wall time without compilation, see `clock`. When it is up, the turn ends after the
current step: with the same seed a longer run begins with the same histories. The rate is compared
with that of the same rules and draws with empty bodies, measured in the same run.
"""

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, takewhile
from typing import Final, Never

from attrs import define, field, frozen
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from conformance.files.geometries import geometry_to_text
from conformance.fuzzing.settings import Setting, fullest, further_of, is_large, make, settings_of
from conformance.fuzzing.state_machine import AdapterStops, Campaign, Over, machine
from conformance.fuzzing.warmup import warmup
from conformance.lockstep.lockstep import Oracle, Violation
from conformance.lockstep.not_checked import not_checked
from conformance.lockstep.run import Finding, finding_of, opened, replay, violated_by
from conformance.lockstep.watchdog import Patience, Watchdog
from conformance.protocol import (
    Compiles,
    Copies,
    Engine,
    EngineFailed,
    Factory,
    Poisonable,
    Profile,
)
from conformance.rungs.coverage import POISONED, RARE_STEPS, Coverage, conditions, offered_by
from conformance.rungs.possible import Outcome, Pair, as_item, asked, outcomes, pairs
from conformance.rungs.registry import LEVELS
from conformance.runtime import compiled_code, mappings
from conformance.runtime.clock import Clock
from conformance.runtime.draws_by_seed import by_seed_alone
from conformance.runtime.stopwatch import Stopwatch
from spec import ladder
from spec.vocabulary import Geometry

EXAMPLES: Final = 7
"""The examples of a turn: so few that a short run comes to each level at each usual setting."""
FEWER: Final = 4
"""The examples of a turn at a large setting."""
STEPS: Final = 40
HOME: Final = ".kvspec/hypothesis"
"""The folder of the files that Hypothesis keeps."""
IDLE_EVERY: Final = 4
"""One turn in this many is repeated at once with empty bodies, under the same load."""
TURNS: Final = ("lifecycle", "scheduling", "flights", "admission", "scheduling", "lifecycle")
"""The levels of successive turns; each turn is at the next usual setting."""
LARGE_EVERY: Final = 4
"""One return in this many may be to a large setting, at which a step takes long."""
FURTHER_TURNS: Final = 5
"""One turn in this many is at a further setting: another one each time, until it has had them all.

A minute comes to a few of them with our engine, since it is compiled for each.
"""
MOST_MAPPED: Final = 0.6
"""With a larger share of the mapped areas in use no further setting is compiled beside the others.

XLA maps some 4,000 areas for the programs of our engine at one setting.
"""
PATIENCE: Final = Patience()
NEEDS: Final = {kit.rung: kit.needs for kit in LEVELS}
"""The actions that an engine must offer for turns at each level."""


@frozen(kw_only=True)
class Options:
    """The options of a run.

    geometry: see `settings.usual`. alone: take this geometry and no other. seed: the seed of the
    first turn; each further turn has the next one. seconds: the length of the run, warm-ups
    excluded. steps: no turn begins after this many. ceiling: take turns with empty bodies as well.
    programs: judge in the end what the engine has compiled. oracle: see `Lockstep`. patience: how
    long a step may take. known: clauses whose violation ends the history but not the run.
    """

    geometry: Geometry
    alone: bool = False
    seed: int = 0
    seconds: float = math.inf
    steps: float = math.inf
    ceiling: bool = True
    programs: bool = True
    oracle: Oracle | None = None
    patience: Patience = PATIENCE
    known: frozenset[str] = frozenset()


@define
class Run:
    """The results of a fuzzing run so far; kept current while it runs.

    steps: the number of steps drawn. warmup_steps: the steps of warm-ups that ended in a finding;
    their time is not counted. warm_up_seconds: the time of the longest warm-up.
    active_seconds: the time of bodies and draws. left_out_seconds: the time of warm-ups,
    which does not count. idle: a run of the same rules and draws with empty bodies,
    taken in between; its rate is the ceiling. in_steps, in_engine: the part of active_seconds
    between the draws, and the engine's part of that. known: the first finding that violated each
    known clause. compilations: of each entry point, by the name of a setting. named: the settings
    by these names. programs: what is wrong with compiled entry points, which violates JIT.
    not_checked: what no step can show of this engine, and why. setting: that of the current turn,
    or of the finding. usual: the settings with which the run begins, which say what it must reach.
    further: those to which it has come since.
    """

    coverage: Coverage = field(factory=Coverage)
    steps: int = 0
    warmup_steps: int = 0
    warm_up_seconds: float = 0.0
    active_seconds: float = 0.0
    left_out_seconds: float = 0.0
    in_steps: Stopwatch = field(factory=Stopwatch)
    in_engine: Stopwatch = field(factory=Stopwatch)
    finding: Finding | None = None
    known: dict[str, Finding] = field(factory=dict)
    setting: Setting | None = None
    compilations: dict[str, Mapping[str, int]] = field(factory=dict)
    named: dict[str, Setting] = field(factory=dict)
    programs: list[str] = field(factory=list)
    idle: "Run | None" = None
    not_checked: tuple[tuple[str, str], ...] = ()
    usual: tuple[Setting, ...] = ()
    further: tuple[Setting, ...] = ()

    @property
    def fullest(self) -> Setting:
        """The usual setting at which the engine offers most."""
        return fullest(self.usual)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings of the turns so far."""
        return self.usual + self.further

    def coverable(self, engine: Engine) -> list[str]:
        """The outcomes and corner states that this run must reach, and the pairs of steps.

        The rare outcomes if it is long enough, and the pairs that would have come by chance. The
        further settings come too late to count.
        """
        words = offered_by(
            engine.profile,
            [one.geometry for one in self.usual],
            poisonable=isinstance(engine, Poisonable),
            cleanups=[one.cleanup for one in self.usual],
            limits={one.geometry: one.limits for one in self.usual}.__getitem__,
            rare=self.steps >= RARE_STEPS,
        )
        pairs = self.coverage.expected(self.pairs(engine), words)
        return self.coverage.coverable(words) + sorted(map(as_item, pairs))

    def outcomes(self, engine: Engine) -> dict[Outcome, str | None]:
        """Every outcome of this engine's actions, with what it needs; None if it is possible."""
        return outcomes(engine.profile, self._conditions(engine))

    def pairs(self, engine: Engine) -> frozenset[Pair]:
        """The pairs of steps that are possible for this engine at these settings."""
        words = self._conditions(engine)
        return pairs(asked(engine.profile, words), words)

    def _conditions(self, engine: Engine) -> frozenset[str]:
        return conditions(
            engine.profile,
            [one.geometry for one in self.usual],
            poisonable=False,
            cleanups=[one.cleanup for one in self.usual],
            limits={one.geometry: one.limits for one in self.usual}.__getitem__,
        )

    def advice(self, missing: Collection[str], engine: Engine, *, given: bool) -> str:
        """How what is missing may be reached. given: whether the geometry was given."""
        vain, advice = self.coverage.poisoned_nothing, []
        is_idle = vain > 0 and POISONED in missing
        if is_idle:
            advice.append(
                f"{vain} calls of the adapter's poison changed no dead cell that the view shows: "
                "mend it or leave it out"
            )
        withheld = self.coverage.mostly_withheld
        if withheld:
            advice.append(
                f"the engine refuses nearly every legal call ({', '.join(withheld)}): see whether "
                "its check is right"
            )
        elif len(missing) > is_idle:
            fixed = given or engine.profile.sizes
            advice.append(
                "give more seconds" + ", or other sizes if these cannot reach it" * bool(fixed)
            )
        return "; ".join(advice)

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / self.active_seconds if self.active_seconds else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """The shares of active_seconds: Hypothesis' draws, the engine, and the kit itself."""
        whole = self.active_seconds
        steps, engine = self.in_steps.seconds / whole, self.in_engine.seconds / whole
        return {"draws": 1 - steps, "engine": engine, "kit": steps - engine}


def run(
    factory: Factory,
    options: Options,
    *,
    report: Run,
    update: Callable[[float, str], None],
    watchdog: Watchdog | None = None,
    clock: Clock | None = None,
) -> None:
    """Fuzz until a bound of the options is reached or a step fails; `report` is kept current.

    clock: one that has run since the command began; None for one that starts now.
    """
    clock = clock or Clock()

    def is_up() -> bool:
        return clock.seconds >= options.seconds

    def tell(note: str) -> None:
        report.left_out_seconds = clock.left_out
        update(min(clock.seconds, options.seconds), note)

    campaigns: dict[Setting, Campaign] = {}
    compiled: dict[Setting, Campaign] = {}
    report.idle = Run()
    report.usual = settings_of(factory, options.geometry, alone=options.alone)
    report.setting = report.fullest
    try:
        engine = _at_fullest(factory, report)
    except EngineFailed as error:
        report.finding = finding_of((), error)
        return
    refuses = engine.profile.refuses
    empty = partial(Campaign, make=_no_engine, refuses=refuses, idle=True, is_up=is_up)
    begun = partial(
        Campaign,
        refuses=refuses,
        coverage=report.coverage,
        watchdog=watchdog,
        step_seconds=options.patience.step,
        oracle=options.oracle,
        in_steps=report.in_steps,
        in_engine=report.in_engine,
        is_up=is_up,
    )
    for turn, (level, setting) in enumerate(_turns(engine, factory, options, report)):
        if is_up() or report.steps >= options.steps or report.finding is not None:
            break
        report.setting = setting
        if setting not in report.settings:
            report.further += (setting,)
        campaigns.setdefault(setting, begun(make=partial(make, factory, *setting)))
        if setting not in compiled:
            tell("compiling")
            with clock.warming_up():
                _make_room(compiled, options, report)
                compiled[setting] = campaigns[setting]
                profile = _profile_at(setting, factory, engine.profile)
                _warm_up(campaigns[setting], profile, options.patience.first, report)
            _set_aside(report, options.known)
        if report.finding is None:
            _take_turn(campaigns[setting], level, options.seed + turn, report)
            _set_aside(report, options.known)
        if options.ceiling and turn % IDLE_EVERY == 0:
            idle = empty(names=campaigns[setting].names)
            _take_turn(idle, level, options.seed + turn, report.idle)
        tell(f"{report.steps} steps")
    _judge_programs(compiled if options.programs else {}, report)


def _at_fullest(factory: Factory, report: Run) -> Engine:
    """The engine at its fullest setting. The report gets what is checked neither there nor at the
    first one.

    An engine may be alone in its process, so that of the first setting is made before, and asked.
    """
    first = opened(partial(make, factory, *report.usual[0]))
    report.not_checked = tuple(not_checked(first))
    if report.setting == report.usual[0]:
        return first
    engine, before = opened(partial(make, factory, *report.fullest)), dict(report.not_checked)
    report.not_checked = tuple(part for part in not_checked(engine) if part[0] in before)
    return engine


def _profile_at(setting: Setting, factory: Factory, otherwise: Profile) -> Profile:
    """The profile of the engine at a setting. It may offer less without a window than with one.

    otherwise: that of the fullest setting. It stands for one at which no engine can be made, which
    the turn there reports.
    """
    if setting.geometry.window == otherwise.geometry.window:
        return otherwise
    try:
        return make(factory, *setting).profile
    except (Exception, SystemExit):
        return otherwise


def _warm_up(campaign: Campaign, profile: Profile, seconds: float, report: Run) -> None:
    """Call every entry point once. When the time is up, the rest is skipped: no turn follows."""
    campaign.names = profile.machine.names
    history = takewhile(lambda _: not campaign.is_up(), warmup(profile.actions))
    began = time.perf_counter()
    report.finding = replay(
        campaign.make,
        history,
        seconds=seconds,
        watchdog=campaign.watchdog,
        oracle=campaign.oracle,
        serve=False,
    )
    report.warm_up_seconds = max(report.warm_up_seconds, time.perf_counter() - began)
    if report.finding is not None:
        report.warmup_steps += len(report.finding.history)


def _make_room(compiled: dict[Setting, Campaign], options: Options, report: Run) -> None:
    """Judge the programs of the settings that are compiled, and let go of them, if need be."""
    if mappings.share() <= MOST_MAPPED:
        return
    if options.programs:
        _judge_programs(compiled, report)
    compiled.clear()
    compiled_code.release()


def _judge_programs(compiled: Mapping[Setting, Campaign], report: Run) -> None:
    """Count the compilations of each entry point; if nothing else was found, judge the programs.

    A setting may be judged again, after its programs were let go of.
    """
    for setting, campaign in compiled.items():
        name = _unused_name(setting, report)
        report.named[name] = setting
        try:
            engine = campaign.make()
            if isinstance(engine, Compiles):
                counts = Counter(report.compilations.get(name, {}))
                report.compilations[name] = dict(counts | Counter(engine.compilations()))
            wrong = [] if report.finding else list(wrong_programs(engine, name))
        except EngineFailed as error:  # the report is kept even if a new engine fails
            wrong = [f"a new engine at {name} does not say what it has compiled: {error}"]
        if report.finding is None:
            report.programs += [one for one in wrong if one not in report.programs]


def _unused_name(setting: Setting, report: Run) -> str:
    """The sizes of a setting in words, with its limits if another one has the same sizes."""
    sizes, cleanup, limits = setting
    name = f"{geometry_to_text(sizes)} cleanup={cleanup.value}"
    return name if report.named.get(name, setting) == setting else f"{name} {limits}"


def wrong_programs(engine: Engine, where: str) -> Iterator[str]:
    """What is wrong with the compiled entry points of an engine. where: its sizes, in words."""
    if isinstance(engine, Compiles):
        for entry, times in engine.compilations().items():
            if times > 1:
                yield f"{entry} was compiled {times} times at {where}, should be once"
    if isinstance(engine, Copies):
        for entry, wrong in engine.pool_copies().items():
            yield f"{entry} copies a pool at {where}: {'; '.join(wrong)}"


def _set_aside(report: Run, known: frozenset[str]) -> None:
    """Move a finding of known clauses to `report.known`, so that it does not end the run."""
    if known and report.finding is not None and known.issuperset(violated_by(report.finding)):
        for clause in violated_by(report.finding):
            report.known.setdefault(clause, report.finding)
        report.finding = None


def _turns(
    engine: Engine, factory: Factory, options: Options, report: Run
) -> Iterator[tuple[str, Setting]]:
    """The level and the setting of each turn; they depend on the seed, and not on the time."""

    def leave_out(what: str, why: str) -> None:
        report.not_checked += ((what, why),)

    levels = turns_of(engine.profile.actions)
    others = (
        iter(())
        if options.alone
        else further_of(
            factory,
            options.geometry,
            known=report.usual,
            seed=options.seed,
            leave_out=leave_out,
        )
    )
    usual, further = 0, list[Setting]()
    for turn in count():
        is_further = turn and turn % FURTHER_TURNS == 0
        another = next(others, None) if is_further else None
        chosen = random.Random(options.seed + turn)
        if another is not None:
            further.append(another)
            yield chosen.choice(levels), another
        elif is_further and (again := _to_return_to(further, chosen)):
            yield chosen.choice(levels), again
        else:
            yield levels[usual % len(levels)], _relative(report.usual, usual, len(levels))
            usual += 1


def _to_return_to(further: Sequence[Setting], chosen: random.Random) -> Setting | None:
    """One of the further settings, and seldom a large one, which has had its turn; None if none."""
    quick = [one for one in further if not is_large(one.geometry)]
    some = further if chosen.randrange(LARGE_EVERY) == 0 else quick
    return chosen.choice(some) if some else None


def _relative(relatives: Sequence[Setting], turn: int, levels: int) -> Setting:
    """The usual setting of a turn: the next one each time, so that each one meets every level."""
    again = turn // levels if levels % len(relatives) == 0 else 0
    return relatives[(turn + again) % len(relatives)]


def turns_of(offered: frozenset[type]) -> tuple[str, ...]:
    """The turns at levels whose required actions are all offered; every turn if there are none.

    There is no turn at a level of a rung that the engine's machine lacks.
    """
    turns = tuple(level for level in TURNS if level in ladder.machine_for(offered).names)
    return tuple(level for level in turns if NEEDS[level] <= offered) or turns


def _take_turn(campaign: Campaign, level: str, chosen: int, report: Run) -> None:
    before, started = campaign.steps, time.perf_counter()
    campaign.finding = None
    large = report.setting is not None and is_large(report.setting.geometry)
    set_hypothesis_home_dir(HOME)
    quiet = settings(
        max_examples=FEWER if large else EXAMPLES,
        stateful_step_count=STEPS,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    try:
        with by_seed_alone():
            run_state_machine_as_test(seed(chosen)(machine(level, campaign)), settings=quiet)
    except (Violation, EngineFailed, Flaky, Over):  # Flaky: Hypothesis does not see it again
        report.finding = campaign.finding
    except AdapterStops as stopped:
        raise stopped.error from stopped.error.__cause__  # as it was raised first
    finally:
        report.steps += campaign.steps - before
        report.active_seconds += time.perf_counter() - started


def _no_engine() -> Never:
    raise AssertionError("an idle campaign makes no engine")
