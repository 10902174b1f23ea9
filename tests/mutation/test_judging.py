"""Judging mutants: what is in the sample, what is kept, and what each method finds."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance.kernels.interpret import unoptimised
from conformance.kernels.kernel_under_test import Subject
from conformance.lockstep.watchdog import Watchdog
from conformance.mutation import schemata, targets, transitions
from conformance.mutation.engine_with_mutants import mutated, selected
from conformance.mutation.fates import HANGS, Fate, Fates
from conformance.mutation.judges import replay
from conformance.mutation.planting import planted
from conformance.mutation.rewriting import rewrite
from conformance.mutation.stamps import stamp
from conformance.mutation.targets import GROUPS, mutants, rewritten, sample
from conformance.runtime.processes import HOME
from conformance.seeded_bugs.scoring import methods
from spec.vocabulary import CleanupMode, Geometry

TINY = ("scheduling", Geometry(pages=1, slots=1, page_size=2, pages_per_seq=2), CleanupMode.END)
"""A graph of 31 states."""


def number_of(place: str, after: str) -> int:
    """The number of the first mutant of a function that becomes this."""
    return next(
        one.number
        for one in mutants("metadata")
        if f"{one.module}.{one.place}" == place and after in one.after
    )


def test_every_module_of_the_engine_is_in_one_group() -> None:
    """No module of engine or specification with mutants is left out, and none counts twice."""
    every = [
        ".".join(path.relative_to(HOME).with_suffix("").parts).removesuffix(".__init__")
        for package in ("impl", "spec")
        for path in (HOME / package).rglob("*.py")
    ]
    groups = [group for name, group in GROUPS.items() if name != "kit" and not group.kinds]
    grouped = [module for group in groups for module in group.modules]

    assert sorted(grouped) == sorted(one for one in every if rewrite(one).mutants)


def test_a_sample_keeps_its_order_when_mutants_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a module comes in the same order, whatever else has mutants."""
    every = mutants("metadata")
    left = tuple(one for one in every if one.number % 3)
    before = sample("metadata", len(every))
    monkeypatch.setattr(targets, "eligible", lambda _group: left)

    after = sample("metadata", len(every))

    for module in GROUPS["metadata"].modules:
        own = {one.number for one in left if one.module == module}
        assert [one for one in before if one in own] == [one for one in after if one in own]
    assert {one.number for one in left} == {*after}


def test_a_sample_has_each_module_in_proportion() -> None:
    """A larger sample begins with a smaller one, and every tenth mutant is a tenth of a module."""
    every = mutants("metadata")
    tenth = sample("metadata", len(every) // 10)

    assert tenth == sample("metadata", len(every))[: len(tenth)]
    for module in GROUPS["metadata"].modules:
        whole = sum(one.module == module for one in every)
        part = sum(every[number].module == module for number in tenth)
        assert abs(part - whole / 10) <= 1


def test_the_sample_of_guards_has_every_guard_and_nothing_else() -> None:
    """Those that the entry points ask, and those for which the driver or the host refuses."""
    every, numbers = mutants("guards"), sample("guards", GROUPS["guards"].size)

    assert {"guard"} == {every[number].kind for number in numbers}
    assert sorted(numbers) == [one.number for one in every if one.kind == "guard"]
    assert {"impl.arguments", "impl.host", "impl.plan", "impl.steps.sequences"} <= {
        every[number].module for number in numbers
    }


def test_fates_are_kept_with_the_sources(tmp_path: Path) -> None:
    """What was judged is not judged again, unless the sources changed or the line is cut off."""
    path = tmp_path / "mutants.jsonl"
    fates = Fates(path, stamp)
    fates.add(("metadata", "fuzz", 3), Fate("CONS"))
    fates.add(("metadata", "fuzz", 4), Fate(None, run=False))
    fates.hung("metadata", "refine", [5, 6])
    fates.hung("metadata", "refine", [7])
    path.write_text(path.read_text() + path.read_text()[:20])
    again = Fates(path, stamp)

    assert fates.known == again.known
    assert Fate(HANGS) == again.known["metadata", "refine", 7]
    assert {("metadata", "refine", 5), ("metadata", "refine", 6)} == again.suspects
    assert [5, 6] == again.left("metadata", "refine", [5, 6, 7])
    assert [3] == Fates(path, lambda group, method: f"later {group} {method}").left(
        "metadata", "fuzz", [3]
    )


@pytest.fixture(scope="module")
def chosen() -> dict[str, int]:
    """A comparison that is turned round, and a field that is left out."""
    return {
        "comparison": number_of("impl.state.pages.is_free", "counts != 0"),
        "field": number_of("impl.commit.release", "without"),
    }


@pytest.mark.deep
def test_refinement_kills_many_mutants_at_once(chosen: dict[str, int]) -> None:
    """In one batch wrong mutants are killed, and a number that is no mutant survives."""
    numbers, killed = [*chosen.values(), 10**6], dict[int, str]()
    begun: list[Sequence[int]] = []
    with Watchdog(lambda *_: None) as watchdog, planted(rewritten("metadata", frozenset(numbers))):
        batches = transitions.Batches(watchdog=watchdog, begin=begun.append, width=2)
        transitions.judge(numbers, batches, keep=killed.__setitem__, graphs=[TINY])

    assert set(chosen.values()) == set(killed)
    assert all(text.startswith("scheduling ") for text in killed.values())
    assert all(len(batch) <= 2 for batch in begun)


@pytest.mark.deep
def test_one_compilation_serves_every_mutant(
    chosen: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traffic without a mutant finds nothing, and then with each selected one finds it."""
    monkeypatch.setattr(replay, "TRAFFIC", {methods.GEOMETRY: 30})
    with (
        Watchdog(lambda *_: None) as watchdog,
        mutated(rewritten("metadata", frozenset(chosen.values()))),
    ):
        assert replay.judge(watchdog) is None
        for number in chosen.values():
            with selected(number):
                assert replay.judge(watchdog) is not None
        assert replay.judge(watchdog) is None
    assert schemata.CHOICE.number is None


def test_a_kernel_is_traced_again_for_each_mutant() -> None:
    """What jax has compiled for a function has the mutant of that time, and is not used again."""
    mutant = [0]

    def function(number: int) -> int:
        return number + mutant[0]

    subject = Subject("kernel", function, {})
    first = unoptimised(subject)
    assert 5 == first.call(5, options={})
    mutant[0] = 1
    again = unoptimised(subject)
    assert (5, 6) == (first.call(5, options={}), again.call(5, options={}))
