"""The page about mutants: shares, their intervals, and verdicts of three values."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from deep import deep_after

from conformance.mutation import explained, page
from conformance.mutation.fates import Fate, Fates
from conformance.mutation.stamps import stamp
from conformance.mutation.targets import GROUPS, mutants
from conformance.verdict import Verdict

SIZE = 40
PAGES = Path(__file__).parents[2] / "docs" / "mutants"


@pytest.fixture(autouse=True)
def nothing_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fates of these tests are made up: no explanation is of them."""
    monkeypatch.setattr(page, "EQUIVALENT", {})
    monkeypatch.setattr(page, "MISSED", {})


def report(path: Path, survivors: Sequence[int], methods: Sequence[str] = ()) -> page.Report:
    """The report on the first mutants of the metadata, of which these survive all methods."""
    fates = Fates(path / "mutants.jsonl", stamp)
    for method in methods or GROUPS["metadata"].methods:
        for number in range(SIZE):
            fates.add(("metadata", method, number), Fate(None if number in survivors else "DET"))
    return page.report("metadata", {"metadata": range(SIZE)}, fates)


def test_the_interval_is_that_of_wilson() -> None:
    """Of 285 in 300 the interval is 91.9 % to 96.9 %, and of nothing it is everything."""
    assert "285 of 300: 95.0% (91.9% to 96.9%)" == str(page.Share(285, 300))
    assert (0.0, 1.0) == page.Share(0, 0).interval


def test_targets_hold_or_fail(tmp_path: Path) -> None:
    """A target holds if enough mutants are killed, and fails with one survivor too many."""
    (tmp_path / "few").mkdir()
    (tmp_path / "many").mkdir()
    few, many = report(tmp_path / "few", [3, 4]), report(tmp_path / "many", [3, 4, 5])

    assert few.is_met
    assert "killed by some method: 38 of 40: 95.0%" in few.text
    assert not many.is_met
    assert "killed by some method: 37 of 40: 92.5% (80.1% to 97.4%); target 95%: fails" in many.text
    assert f"- `{mutants('metadata')[3].id}`: **not explained**" in many.text


def test_a_method_that_was_not_run_leaves_the_target_undecided(tmp_path: Path) -> None:
    """Without fuzzing nothing is said of fuzzing, and the target is not met."""
    found = report(tmp_path, [], methods=["refine"])

    assert not found.is_met
    assert f"target 80%: {Verdict.UNDECIDED.value}" in found.text


def test_unit_tests_stand_apart(tmp_path: Path) -> None:
    """What they alone kill survives the kit, and a target does not wait for them."""
    methods = page.of_kit(GROUPS["metadata"].methods)
    (tmp_path / "without").mkdir()
    without = report(tmp_path / "without", [3, 4, 5], methods=methods)
    fates = Fates(tmp_path / "without" / "mutants.jsonl", stamp)
    for number in range(SIZE):
        fates.add(("metadata", "unit tests", number), Fate("test_state"))
    beside = page.report("metadata", {"metadata": range(SIZE)}, fates)

    for found in (without, beside):
        assert "killed by some method: 37 of 40: 92.5% (80.1% to 97.4%); target 95%" in found.text
    assert "| any | unit tests |" in beside.text
    assert "| all | 40 | 37 (92%) | 37 (92%) | 37 (92%) | 37 (92%) | 37 (92%) | 40 (100%) |" in (
        beside.text
    )


def test_a_late_method_is_asked_about_survivors_alone(tmp_path: Path) -> None:
    """It is judged as soon as it was asked about those, and its column counts what it killed."""
    fates, numbers = Fates(tmp_path / "mutants.jsonl", stamp), range(4)
    for number in numbers:
        fates.add(("kernel", "kernel tpu", number), Fate(None if number > 1 else "finding"))

    assert [2, 3] == page.asked("kernel", "gates", numbers, fates)
    assert [*numbers] == page.asked("kernel", "kernel tpu", numbers, fates)
    for number, killed in ((2, "worse"), (3, None)):
        before = page.report("kernel", {"contents": (), "kernel": numbers}, fates).text
        fates.add(("kernel", "gates", number), Fate(killed))
        assert "| gates |" not in before
        assert "The method gates" not in before
    found = page.report("kernel", {"contents": (), "kernel": numbers}, fates).text
    assert "asked only about mutants that no other method kills" in found
    assert "| all | 4 | 2 (50%) | 1 (25%) | 3 (75%) |" in found


def test_unit_tests_take_no_mutant_from_a_late_method(tmp_path: Path) -> None:
    """It is asked about all that the kit's other methods leave, since it is of the kit itself."""
    fates = Fates(tmp_path / "mutants.jsonl", stamp)
    fates.add(("contents", "unit tests", 0), Fate("test_llama"))
    fates.add(("contents", "replay", 1), Fate("DET"))
    assert [0, 2] == page.asked("contents", "served", range(3), fates)


def test_a_page_names_the_digests_of_its_fates(tmp_path: Path) -> None:
    """Fates of other sources are told apart from those of today, with their numbers."""
    path, numbers = tmp_path / "fates", range(4)
    before = Fates(path, lambda _group, _method: "0123")
    for number in numbers:
        before.add(("guards", "fuzz", number), Fate("DET" if number else None))
    one = page.report("guards", {"guards": numbers}, Fates(path, stamp, kept=["0123"]))
    today = Fates(path, stamp, kept=["0123"])
    today.add(("guards", "fuzz", 0), Fate("CONS"))
    two = page.report("guards", {"guards": numbers}, today)

    assert "\nfuzz `0123`.\n" in one.text
    assert "later code" not in one.text
    assert f"\nfuzz `0123` for 3 and `{stamp('guards', 'fuzz')}` for 1.\n" in two.text
    assert "asked about some mutants again, with later code" in two.text
    assert "killed by fuzz: 4 of 4" in two.text


def test_equivalent_mutants_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An explained survivor does not count, but with more than a tenth the result is undecided."""
    names = [one.id for one in mutants("metadata")]
    monkeypatch.setattr(page, "EQUIVALENT", {names[at]: "the same program" for at in range(4)})
    (tmp_path / "few").mkdir()
    (tmp_path / "many").mkdir()
    few = report(tmp_path / "few", range(4))
    monkeypatch.setattr(page, "EQUIVALENT", {names[at]: "the same program" for at in range(5)})
    many = report(tmp_path / "many", range(5))

    assert few.is_met
    assert "killed by some method: 36 of 36: 100.0%" in few.text
    assert "equivalent: the same program" in few.text
    assert not many.is_met


def test_explained_mutants_are_asked_about_to_refute_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that they are not judged, and told so; one that is killed fails the run."""
    every, numbers = mutants("guards"), range(SIZE)
    fates, samples = Fates(tmp_path / "fates", stamp), {"guards": numbers}
    monkeypatch.setattr(page, "EQUIVALENT", {every[3].id: "the same program"})
    for number in page.asked("guards", "fuzz", numbers, fates):
        fates.add(("guards", "fuzz", number), Fate("DET"))
    unjudged = page.report("guards", samples, fates)
    left = fates.left("guards", "fuzz", page.asked("guards", "fuzz", numbers, fates))
    every_one = page.asked("guards", "fuzz", numbers, fates, explained=True)
    tried = fates.left("guards", "fuzz", every_one)
    fates.add(("guards", "fuzz", 3), Fate(None))
    survives = page.report("guards", samples, fates)
    fates.add(("guards", "fuzz", 3), Fate("DET"))
    refuted = page.report("guards", samples, fates)

    assert ([], [3]) == (left, tried)
    assert [True, True, False] == [one.is_met for one in (unjudged, survives, refuted)]
    assert f"- `{every[3].id}`: equivalent, not judged: the same program" in unjudged.text
    assert f"- `{every[3].id}`: equivalent: the same program" in survives.text
    assert "## Refuted explanations\n\nExplained as equivalent" in refuted.text
    assert refuted.text.count(every[3].id) == 1
    assert "Refuted" not in unjudged.text + survives.text


@pytest.mark.parametrize("way", ["unit tests", "vectors"])
def test_any_kill_refutes_an_explanation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Also one by unit tests, or by a method that has not judged the whole sample."""
    every = mutants("metadata")
    monkeypatch.setattr(page, "EQUIVALENT", {every[3].id: "the same program"})
    holds = report(tmp_path, [3])
    fates = Fates(tmp_path / "mutants.jsonl", stamp)
    fates.add(("metadata", way, 3), Fate("test_state"))
    fates.known.pop(("metadata", way, 4))
    found = page.report("metadata", {"metadata": range(SIZE)}, fates)

    assert holds.is_met
    assert "equivalent: the same program" in holds.text
    assert not found.is_met
    assert "## Refuted explanations" in found.text
    assert "equivalent: the same program" not in found.text


def test_a_refuted_explanation_fails_both_groups_of_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The common target stands on it, so that it is told on both pages."""
    fates, groups = Fates(tmp_path / "fates", stamp), ("contents", "kernel")
    samples = dict.fromkeys(groups, range(SIZE))
    monkeypatch.setattr(page, "EQUIVALENT", {mutants("kernel")[3].id: "the same program"})
    for group in groups:
        for method in page.of_kit(GROUPS[group].methods):
            for number in range(SIZE):
                fates.add((group, method, number), Fate("DET"))

    found = [page.report(group, samples, fates) for group in groups]

    assert [False, False] == [one.is_met for one in found]
    assert all(mutants("kernel")[3].id in one.text for one in found)


def test_what_no_method_has_judged_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any fate no method is done, and nothing was tried on an explained mutant."""
    one = mutants("driver")[3]
    monkeypatch.setattr(page, "EQUIVALENT", {one.id: "the same program"})
    found = page.report("driver", {"driver": range(SIZE)}, Fates(tmp_path / "fates", stamp))

    assert f"- `{one.id}`: equivalent, not judged: the same program" in found.text


@pytest.mark.parametrize(
    ("survivors", "explained_of", "verdict"),
    deep_after(
        3,
        [
            (0, 0, "80 of 80: 100.0% (95.4% to 100.0%); target 95%: holds"),
            (4, 0, "76 of 80: 95.0% (87.8% to 98.0%); target 95%: holds"),
            (5, 0, "75 of 80: 93.8% (86.2% to 97.3%); target 95%: fails"),
            (8, 8, "72 of 72: 100.0% (94.9% to 100.0%); target 95%: holds"),
            (9, 9, "71 of 71: 100.0% (94.9% to 100.0%); target 95%: undecided"),
        ],
    ),
)
def test_samples_of_two_groups_have_one_target(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    survivors: int,
    explained_of: int,
    verdict: str,
) -> None:
    """Their mutants, and those of them that are equivalent, are counted together on both pages."""
    groups = ("contents", "kernel")
    fates, samples = Fates(tmp_path / "fates", stamp), dict.fromkeys(groups, range(SIZE))
    names = [one.id for one in mutants("contents")]
    monkeypatch.setattr(page, "EQUIVALENT", dict.fromkeys(names[:explained_of], "the same"))
    for group in groups:
        for method in page.of_kit(GROUPS[group].methods):
            for number in range(SIZE):
                survives = group == "contents" and number < survivors
                fates.add((group, method, number), Fate(None if survives else "DET"))

    texts = {group: page.report(group, samples, fates).text for group in groups}

    assert all({*groups} == {*page.beside(group)} for group in groups)
    line = f"- contents and kernel, killed by some method: {verdict}"
    assert [[line], [line]] == [
        [one for one in text.splitlines() if one.startswith("- contents and")]
        for text in texts.values()
    ]


@pytest.mark.parametrize(
    ("missing", "lacking"),
    deep_after(1, [("kernel tpu", "kernel"), ("fuzz", "contents"), ("a sample", "kernel")]),
)
def test_a_group_that_was_not_judged_leaves_both_undecided(
    tmp_path: Path, missing: str, lacking: str
) -> None:
    """Both lines say which group lacks a method or its sample, and the other has its own share."""
    groups = ("contents", "kernel")
    fates, samples = Fates(tmp_path / "fates", stamp), dict.fromkeys(groups, range(SIZE))
    for group in groups:
        for method in {*GROUPS[group].methods} - {missing}:
            for number in range(SIZE):
                fates.add((group, method, number), Fate("DET"))
    if missing == "a sample":
        samples["kernel"] = range(0)

    found = [page.report(group, samples, fates) for group in groups]

    line = (
        f"- contents and kernel, killed by some method: {lacking} not judged whole; "
        f"target 95%: {Verdict.UNDECIDED.value}\n"
    )
    assert [False, False] == [one.is_met for one in found]
    assert all(line in one.text for one in found)
    assert [name != lacking for name in groups] == [
        f"- {name} alone: 40 of 40: 100.0%" in one.text
        for name, one in zip(groups, found, strict=True)
    ]


def test_what_is_missed_has_its_reason_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three survivors of forty fail the target, whether the kit knows why it misses them or not."""
    monkeypatch.setattr(page, "MISSED", {mutants("metadata")[3].id: "too long"})
    found = report(tmp_path, [3, 4, 5])

    assert not found.is_met
    assert "killed by some method: 37 of 40" in found.text
    assert f"- `{mutants('metadata')[3].id}`: missed: too long\n" in found.text
    assert found.text.count("**not explained**") == 2


def test_reasons_are_told_anew_on_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason that is new, or gone, changes the line of its mutant and no other."""
    every = [one.id for one in mutants("metadata")]
    monkeypatch.setattr(page, "EQUIVALENT", dict.fromkeys([every[3], every[6]], "the same program"))
    monkeypatch.setattr(page, "MISSED", {every[4]: "too long"})
    before = report(tmp_path, [3, 4, 5, 6]).text
    monkeypatch.setattr(page, "EQUIVALENT", dict.fromkeys([every[4], every[6]], "equal"))
    monkeypatch.setattr(page, "MISSED", {every[5]: r"too \1 wide"})
    after = page.explained_anew(before)

    lines = zip(before.splitlines(), after.splitlines(), strict=True)
    assert f"- `{every[3]}`: equivalent: the same program" in after
    assert [
        (f"- `{every[4]}`: missed: too long", f"- `{every[4]}`: **not explained**"),
        (f"- `{every[5]}`: **not explained**", f"- `{every[5]}`: missed: too \\1 wide"),
        (f"- `{every[6]}`: equivalent: the same program", f"- `{every[6]}`: equivalent: equal"),
    ] == [pair for pair in lines if pair[0] != pair[1]]
    assert before.endswith("\n\n") == after.endswith("\n\n")


def test_a_group_without_a_target_has_its_share(tmp_path: Path) -> None:
    """It is that of the methods that were run, which the line names."""
    fates = Fates(tmp_path / "fates", stamp)
    lines = []
    for method in ("fuzz", "replay"):
        for number in range(SIZE):
            survives = number < (10 if method == "fuzz" else 20)
            fates.add(("driver", method, number), Fate(None if survives else "DET"))
        found = page.report("driver", {"driver": range(SIZE)}, fates)
        assert found.is_met
        lines += [one for one in found.text.splitlines() if "no target" in one]

    assert [
        "- driver, killed by fuzz: 30 of 40: 75.0% (59.8% to 85.8%); no target",
        "- driver, killed by fuzz or replay: 30 of 40: 75.0% (59.8% to 85.8%); no target",
    ] == lines
    assert "no target" not in report(tmp_path, []).text


def test_every_explanation_is_of_a_mutant() -> None:
    """No explanation is left behind when the code that it is about has changed."""
    names = {one.id for group in GROUPS for one in mutants(group)}

    assert [] == sorted(set(explained.EQUIVALENT) - names)
    assert explained.EQUIVALENT.keys().isdisjoint(explained.MISSED)


def test_every_survivor_on_a_page_that_counts_has_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no reason is of a mutant that is neither on a page nor in the code."""
    monkeypatch.setattr(page, "EQUIVALENT", explained.EQUIVALENT)
    monkeypatch.setattr(page, "MISSED", explained.MISSED)
    pages = "".join(one.read_text() for one in sorted(PAGES.glob("*.md")))
    names = {one.id for group in GROUPS for one in mutants(group)}

    assert page.UNEXPLAINED not in pages
    assert page.explained_anew(pages) == pages
    assert [] == [one for one in explained.MISSED if one not in names and f"`{one}`" not in pages]
    # A page of earlier code keeps the reason of a mutant that is gone.
    left_out = re.findall("^- `(.*)`: equivalent(?:, not judged)?: ", pages, re.MULTILINE)
    assert [] == sorted(set(left_out) & names - set(explained.EQUIVALENT))


@pytest.mark.parametrize("whole", [1, 2, 9, 10, 300])
def test_the_ends_of_an_interval_solve_its_equation(whole: int) -> None:
    """Each end is a share from which the seen one is exactly 1.96 deviations away."""
    for killed in range(whole + 1):
        share = page.Share(killed, whole)

        for end in share.interval:
            away = page.Z * math.sqrt(end * (1 - end) / whole)
            assert abs(share.value - end) == pytest.approx(away, abs=1e-7)
        low, high = share.interval
        assert low - 1e-9 <= share.value <= high + 1e-9
        assert (killed == 0, killed == whole) == (low < 1e-9, high > 1 - 1e-9)
