"""The settings that a run comes to: which, when, and what a finding there keeps of them."""

import json
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve, fields
from spec_engine import ACTIONS, SpecEngine, small

from conformance.cli.main import main
from conformance.files import histories
from conformance.fuzzing import campaign, settings
from conformance.fuzzing.settings import Setting
from conformance.fuzzing.state_machine import Campaign
from conformance.protocol import Factory, Unsupported
from spec.machines.actions import Release
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, Limits, default_limits

CANDIDATES = tuple(
    Setting(sizes, cleanup, limits(sizes))
    for sizes, cleanup, limits in settings.further(small(), windows=True)
)
USUAL = settings.usual(small(), windows=True)


class Narrow(SpecEngine):
    """The specification, with written lengths that are kept in so many bits."""

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, bits: int, signed: bool
    ) -> None:
        super().__init__(geometry, limits, cleanup)
        self._most = 2 ** (bits - signed)

    def observe(self) -> View:
        """The lengths wrap around."""
        seen = super().observe()
        return evolve(seen, written=tuple(count % self._most for count in seen.written or ()))


class Short(SpecEngine):
    """The specification, with an error where batches are narrower than rows."""

    def observe(self) -> View:
        """A slot too many is used."""
        seen, limits = super().observe(), self.profile.limits
        if limits.prefill_seqs > 1 or self.profile.geometry.slots < 2:
            return seen
        return evolve(seen, allocated=tuple(count + count // 5 for count in seen.allocated or ()))


def run(
    factory: Factory,
    *,
    turns: int = 10**9,
    seed: int = 0,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[campaign.Run, list[tuple[str, Setting]]]:
    """A run of so many turns, and the level and setting of each. Its turns are only named."""
    taken, report = list[tuple[str, Setting]](), campaign.Run()

    def take(_target: object, level: str, _seed: int, report: campaign.Run) -> None:
        assert report.setting is not None
        taken.append((level, report.setting))
        report.steps += 1

    monkeypatch.setattr(campaign, "_take_turn", take)
    campaign.run(
        factory,
        campaign.Options(geometry=small(), seed=seed, steps=turns, ceiling=False),
        report=report,
        update=lambda *_: None,
    )
    assert None is report.finding
    return report, taken


LEVELS = tuple(dict.fromkeys(campaign.TURNS))
TURNS = [
    pytest.param(
        setting,
        level,
        marks=() if at % 48 == 0 and LEVELS[at // 48 % len(LEVELS)] == level else pytest.mark.deep,
    )
    for at, setting in enumerate((*USUAL, *CANDIDATES))
    for level in LEVELS
]
"""Every setting at every level; one level of every 48th setting is not deep."""


@pytest.mark.parametrize(("setting", "level"), TURNS)
def test_each_setting_is_legal_and_can_be_warmed_up(setting: Setting, level: str) -> None:
    """The limits of every setting can serve its sizes, and a turn finds nothing."""
    setting.limits.check(setting.geometry)
    made = partial(settings.make, SpecEngine, *setting)
    target = Campaign(make=made, names=made().profile.machine.names)
    report = campaign.Run(setting=setting)
    campaign._take_turn(target, level, LEVELS.index(level), report)
    assert None is report.finding, report.finding


COUNTED = {
    "queue": "slots",
    "outputs": "slots",
    "round_tokens": "slots",
    "prefill_seqs": "slots",
    "prefill_tokens": "max_len",
}
"""What bounds the useful width of a limit."""


@pytest.mark.parametrize("size", ["slots", "max_len", "page_size"])
@pytest.mark.parametrize("limit", [one.name for one in fields(Limits)])
def test_every_limit_is_below_at_and_above_every_size(limit: str, size: str) -> None:
    """No limit is tied to a size: it is less and more than each, and as much as those it counts."""
    found = [
        (getattr(one.limits, limit), getattr(one.geometry, size)) for one in (*USUAL, *CANDIDATES)
    ]
    never_less = limit in {"queue", "outputs"} and size == "slots"  # such cannot serve the slots

    assert never_less != any(wide < most for wide, most in found)
    assert any(wide == most for wide, most in found) or COUNTED.get(limit) != size
    assert any(wide > most for wide, most in found)


def test_what_bugs_need_is_among_the_settings() -> None:
    """Sizes and limits at which something cannot happen elsewhere, or only there."""
    found = (*USUAL, *CANDIDATES)
    sizes = [one.geometry for one in found]

    assert {1, 2, 3, 4, 5, 9} <= {one.slots for one in sizes}
    assert {None, 1, 4} == {one.window for one in sizes}
    assert {0, 1} == {one.window % one.page_size for one in sizes if one.window}
    assert {1, 2, 3, 4, 12, 20} <= {one.page_size for one in sizes}
    assert 1 in {one.pages_per_seq for one in sizes} & {one.pages for one in sizes}
    assert [one for one in sizes if min(one.pages, one.max_len) > 256]
    assert [one for one in sizes if 4 == len({*(one.pages, one.page_size, one.slots), one.max_len})]
    for wanted in (
        lambda one: one.limits.queue == one.limits.outputs == one.geometry.slots,
        lambda one: one.limits.prefill_seqs == 1 < one.geometry.slots,
        lambda one: one.limits.prefill_tokens == one.geometry.max_len,
        lambda one: one.limits.prefill_tokens < one.geometry.max_len,
        lambda one: one.limits.round_tokens < one.geometry.slots,
        lambda one: one.limits.stop_len == 3,
        lambda one: {1} == {one.limits.stops, one.limits.stop_len, one.limits.rounds},
    ):
        assert [one for one in found if wanted(one)]


def test_further_settings_come_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual settings are alone at first. No setting goes."""
    every = campaign.FURTHER_TURNS
    report, taken = run(SpecEngine, turns=4 * every, monkeypatch=monkeypatch)

    first = [setting for _, setting in taken[:every]]
    assert set(report.usual) == set(first)
    assert taken[every][1] == report.further[0]
    assert taken[2 * every][1] == report.further[1]
    assert 3 == len(set(report.further)) == len(report.further)
    assert set(report.settings) == {setting for _, setting in taken}
    assert {*campaign.TURNS} == {level for level, setting in taken if setting in report.usual}


def test_every_further_setting_comes_and_the_seed_says_when(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long run comes to all of them; the turns depend on the seed and on nothing else."""
    turns = campaign.FURTHER_TURNS * (len(CANDIDATES) + 2)
    report, taken = run(SpecEngine, turns=turns, monkeypatch=monkeypatch)
    _, again = run(SpecEngine, turns=turns, monkeypatch=monkeypatch)
    _, other = run(SpecEngine, turns=turns, seed=1, monkeypatch=monkeypatch)

    assert set(CANDIDATES) == set(report.further)
    assert taken == again
    assert taken != other


def test_an_engine_gets_only_sizes_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that its profile lacks become the nearest; where it cannot be made, the run says so."""

    def made(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> SpecEngine:
        if limits.prefill_tokens == 1:
            raise InvalidInput("limits", seen=1, allowed="2 or more", remedy="Raise it.")
        if geometry.page_size not in {1, 4}:
            near = evolve(geometry, page_size=4)
            raise Unsupported("page_size", seen=geometry.page_size, allowed="1, 4", nearest=near)
        return SpecEngine(geometry, limits, cleanup)

    report, taken = run(made, turns=campaign.FURTHER_TURNS * 14, monkeypatch=monkeypatch)

    assert {1, 4} == {setting.geometry.page_size for _, setting in taken}
    assert 1 < min(setting.limits.prefill_tokens for _, setting in taken)
    assert len(set(report.further)) == len(report.further)
    told = [(what, why) for what, why in report.not_checked if what.startswith("an engine at")]
    assert [("an engine at pages=6,page_size=3,slots=3,pages_per_seq=3", "limits: saw 1")] == [
        (what, why.partition(",")[0]) for what, why in told
    ]


def test_a_window_comes_to_an_engine_that_releases_behind_one() -> None:
    """One that never releases may take a window and not attend through it: it is given none."""
    never = partial(SpecEngine, actions=ACTIONS - {Release})
    found = {factory: settings.settings_of(factory, small()) for factory in (SpecEngine, never)}

    assert [None, None, 4] == [one.geometry.window for one in found[SpecEngine]]
    assert settings.fullest(found[SpecEngine]) == found[SpecEngine][2]
    assert {None} == {one.geometry.window for one in found[never]}
    assert settings.fullest(found[never]) == found[never][0]


@pytest.mark.deep
def test_sizes_that_are_given_are_the_only_ones() -> None:
    """With a geometry of its own a run comes to no further setting."""
    report = campaign.Run()
    options = campaign.Options(geometry=small(slots=3), alone=True, steps=5_000, ceiling=False)
    campaign.run(SpecEngine, options, report=report, update=lambda *_: None)

    assert {small(slots=3)} == {setting.geometry for setting in report.settings}
    assert {default_limits(small(slots=3))} == {setting.limits for setting in report.settings}


@pytest.mark.parametrize(("bits", "signed"), [(8, True), (8, False)])
def test_a_count_of_8_bits_is_found(bits: int, signed: bool) -> None:  # noqa: FBT001
    """A few turns with rows of more cells than it can count show the wrap."""
    (long,) = (one for one in CANDIDATES if one.geometry.max_len > 256)
    made = partial(settings.make, partial(Narrow, bits=bits, signed=signed), *long)
    target, report = Campaign(make=made), campaign.Run(setting=long)
    for number, level in enumerate(campaign.TURNS * 2):
        if report.finding is None:
            campaign._take_turn(target, level, number, report)

    assert report.finding is not None


@pytest.mark.deep
def test_a_finding_keeps_the_limits_under_which_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file names them, and so do its test, a rerun and the next run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("conformance.fuzzing.campaign.FURTHER_TURNS", 1)
    name = "test_settings:Short"
    options = ["--engine", name, "--in-process"]

    status = main(["fuzz", *options, "--seconds", "60", "--json", "r.json"])

    found = json.loads(Path("r.json").read_text(encoding="utf-8"))
    recorded = histories.load(Path(found["counterexample"]))
    assert (1, 1) == (status, recorded.limits.prefill_seqs)
    assert default_limits(recorded.geometry) != recorded.limits
    assert 1 == main(["rerun", "--trust", found["counterexample"]])
    again = main(["fuzz", *options, "--seconds", "0.1", "--json", "again.json"])
    assert 1 == again
    assert 1 == json.loads(Path("again.json").read_text(encoding="utf-8"))["corpus_replayed"]
    assert f"prefill_seqs={recorded.limits.prefill_seqs}" in Path(found["test"]).read_text()
