"""Starting processes again until every mutant has its fate, and never for ever."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from attrs import define
from deep import deep_after

from conformance.mutation import page, run, targets
from conformance.mutation.fates import Fate, Fates
from conformance.mutation.judges.kernel import RAISED
from conformance.mutation.stamps import stamp
from conformance.mutation.targets import TRACE
from conformance.mutation.worker import Job
from conformance.runtime import processes


@define
class Ends:
    """Processes that end with these statuses, and a fate that each keeps before it ends.

    begins: whether they come so far as to judge a mutant.
    """

    fates: Fates
    statuses: list[int]
    kept: list[int]
    begins: bool

    def start(self, _module: str, _job: str, *, environment: object) -> SimpleNamespace:
        """Keep a fate if one is left, and end."""
        assert environment is None
        self.fates.refresh()
        left = self.fates.left("metadata", "fuzz", (4, 5, 6))
        if self.begins:
            self.fates.suspect(("metadata", "fuzz", left[0]))
        if self.kept:
            self.fates.add(("metadata", "fuzz", self.kept.pop(0)), Fate("CONS"))
        status = self.statuses.pop(0)
        return SimpleNamespace(wait=lambda: status)


def judged(
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    statuses: list[int],
    kept: list[int],
    *,
    begins: bool = True,
) -> dict[int, str | None]:
    """What is kept of three mutants whose processes end so."""
    fates = Fates(path, stamp)
    monkeypatch.setattr(processes, "start", Ends(fates, statuses, kept, begins).start)
    monkeypatch.setattr(processes, "end", lambda _process: None)
    job = Job(group="metadata", method="fuzz", numbers=(4, 5, 6), results=str(path))
    run._judge(job)
    fates.refresh()
    return {number: fate.killed for (_, _, number), fate in fates.known.items()}


def test_a_mutant_that_crashes_the_process_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A signal counts for the first mutant without a fate, if it ends a second process too."""
    found = judged(monkeypatch, tmp_path / "fates", [-11, -11, -11, -6, -6], [4])

    assert found == {
        4: "CONS",
        5: "ends the process with signal 11",
        6: "ends the process with signal 6",
    }


@pytest.mark.parametrize("status", [0, 1, -6, -11])
def test_a_process_that_judges_nothing_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int
) -> None:
    """A failure or a crash without a mutant kills none, and the process is not started again."""
    with pytest.raises(RuntimeError, match=f"the process ended with {status}"):
        judged(monkeypatch, tmp_path / "fates", [status], [], begins=False)

    assert {} == Fates(tmp_path / "fates", stamp).known


@pytest.mark.parametrize("status", [-9, -15])
def test_a_process_that_is_killed_from_outside_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int
) -> None:
    """It may be for lack of memory, or somebody: no mutant is to blame."""
    with pytest.raises(RuntimeError, match=f"signal {-status} ended the process"):
        judged(monkeypatch, tmp_path / "fates", [-11, status], [])

    assert {} == Fates(tmp_path / "fates", stamp).known


@pytest.mark.parametrize(
    "group", deep_after(3, [name for name, one in targets.GROUPS.items() if one.tests])
)
def test_every_mutant_that_tests_judge_has_tests_of_its_part(group: str) -> None:
    """Each module has files or folders of tests, and they exist."""
    judged = {one.module: targets.own_tests(group, one.number) for one in targets.mutants(group)}

    assert judged.keys() <= {*targets.GROUPS[group].modules, *targets.GROUPS[group].checked}
    assert all((processes.HOME / path).exists() for paths in judged.values() for path in paths)
    tests = targets.GROUPS[group].tests
    for module, paths in judged.items():
        assert [paths] == [held for begins, held in tests.items() if module.startswith(begins)]


def test_a_kernel_that_raises_is_replaced_by_another_mutant(tmp_path: Path) -> None:
    """One that raises in a kernel or a Llama is in no sample, and the next one takes its place."""
    fates, every = Fates(tmp_path / "fates", stamp), targets.sample("contents", 6)
    for number in every:
        fates.add(("contents", TRACE, number), Fate(None))

    before = run.alive("contents", 4, fates)
    fates.add(("contents", "kernel reference", every[1]), Fate(RAISED))
    fates.add(("contents", "served", every[2]), Fate(RAISED))
    fates.add(("kernel", "kernel tpu", every[3]), Fate(RAISED))

    assert every[:4] == before
    assert (every[0], *every[2:5]) == run.alive("contents", 4, fates)
    fates.add(("contents", "served", every[4]), Fate("raises TypeError"))
    fates.add(("contents", "fuzz", every[0]), Fate("raises TypeError"))
    assert (every[0], *every[2:4], every[5]) == run.alive("contents", 4, fates)


@pytest.mark.parametrize("explained", [False, True])
def test_each_method_is_asked_what_it_is_to_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, explained: bool
) -> None:
    """All that do not raise, the gates what the bench leaves; what is explained only if asked."""
    every, asked = targets.mutants("kernel"), dict[str, list[int]]()
    one, *_ = killed = targets.sample("kernel", 12)

    def judge(
        group: str, method: str, numbers: list[int], fates: Fates, _jobs: int, _update: object
    ) -> None:
        asked[method] = [*numbers]
        for number in numbers:
            dies = method == "kernel tpu" and number in killed[6:]
            fates.add((group, method, number), Fate("finding" if dies else None))

    monkeypatch.setattr(page, "EQUIVALENT", {every[one].id: "the same program"})
    monkeypatch.setattr(run, "_judge_all", judge)
    options = ["--group", "kernel", "--size", "8", "--results", str(tmp_path / "fates")]
    run.main([*options, "--explained"] if explained else options)

    bench = [number for number in killed[:8] if explained or number != one]
    others = {"kernel tpu": bench, "gates": bench[:-2], "unit tests": bench}
    assert {TRACE: [*killed], **others} == asked


def test_late_methods_are_asked_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are named before others, and are asked only after those have judged."""
    order = []

    def judge(
        group: str, method: str, numbers: list[int], fates: Fates, _jobs: int, _update: object
    ) -> None:
        order.append(method)
        for number in numbers:
            fates.add((group, method, number), Fate(None))

    monkeypatch.setattr(run, "_judge_all", judge)
    run.main(["--group", "contents", "--size", "2", "--results", str(tmp_path / "fates")])
    assert "served" == order[-1]
    assert "unit tests" in order


def test_nobody_is_asked_before_it_is_known_what_raises(tmp_path: Path) -> None:
    """A sample ends at the first mutant that is not traced."""
    fates, every = Fates(tmp_path / "fates", stamp), targets.sample("contents", 6)
    assert () == run.alive("contents", 4, fates)
    for number in (*every[:2], *every[3:]):
        fates.add(("contents", TRACE, number), Fate(None))

    assert every[:2] == run.alive("contents", 4, fates)


@pytest.mark.parametrize("raising", [0, 1, 3, 8])
def test_mutants_are_traced_until_so_many_are_alive(
    raising: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that raise are replaced, however many they are; no more are traced than it takes."""
    fates, every = Fates(tmp_path / "fates", stamp), targets.sample("contents", 99)

    def judge(group: str, method: str, numbers: Sequence[int], *_: object) -> None:
        for number in fates.left(group, method, numbers):
            found = Fate("raises TypeError") if number in every[:raising] else Fate(None)
            fates.add((group, method, number), found)

    monkeypatch.setattr(run, "_judge_all", judge)
    run._trace("contents", 4, fates, 1, lambda *_: None)

    assert every[raising : raising + 4] == run.alive("contents", 4, fates)
    assert {"contents"} == {group for group, _, _ in fates.known}
    assert 6 <= len(fates.known) <= max(6, raising + 4 + 2)


def test_all_are_traced_where_too_few_are_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the sample is smaller, and the page says how many it has."""
    fates = Fates(tmp_path / "fates", stamp)

    def judge(group: str, method: str, numbers: Sequence[int], *_: object) -> None:
        for number in fates.left(group, method, numbers):
            fates.add((group, method, number), Fate("raises TypeError"))

    monkeypatch.setattr(run, "_judge_all", judge)
    run._trace("contents", 4, fates, 1, lambda *_: None)

    assert () == run.alive("contents", 4, fates)
    assert len(targets.eligible("contents")) == len(fates.known)


@pytest.mark.parametrize("missed", deep_after(2, [None, *targets.GROUPS]))
def test_any_group_that_misses_its_target_fails_the_run(
    missed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails if the target of any one group is missed, and each group has its page."""
    told = tmp_path / "fates"
    monkeypatch.setattr(run, "sample", lambda *_: ())
    monkeypatch.setattr(run, "alive", lambda *_: ())
    monkeypatch.setattr(run, "_judge_all", lambda *_: None)
    monkeypatch.setattr(page, "report", lambda group, *_: page.Report(group, group != missed))

    status = run.main(["--results", str(told), "--write", str(tmp_path)])

    assert int(missed is not None) == status
    assert {name: name for name in targets.GROUPS} == {
        path.stem: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.md")
    }


def test_reasons_are_written_without_judging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages of the folder that is named, and nothing else, are written anew."""
    monkeypatch.setattr(run, "_judge_all", lambda *_: pytest.fail("it judges"))
    monkeypatch.setattr(page, "MISSED", {"a name": "too long"})
    (tmp_path / "kit.md").write_text("# Mutants\n\n- `a name`: **not explained**\n")

    assert 0 == run.main(["--reasons", str(tmp_path), "--results", str(tmp_path / "fates")])
    assert "# Mutants\n\n- `a name`: missed: too long\n" == (tmp_path / "kit.md").read_text()
    assert ["kit.md"] == [one.name for one in tmp_path.iterdir()]


def test_mutants_with_a_kept_fate_are_not_judged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fates of earlier code whose digest is named count as much as those of today."""
    path, given = tmp_path / "fates", list[tuple[int, ...]]()
    Fates(path, lambda _group, _method: "0123").add(("guards", "fuzz", 5), Fate(None))
    monkeypatch.setattr(run, "_judge", lambda job: given.append(job.numbers))

    for kept in ([], ["0123"]):
        fates = Fates(path, stamp, kept=kept)
        run._judge_all("guards", "fuzz", (4, 5, 6), fates, 2, lambda *_: None)

    assert [(4,), (4, 6), (5,), (6,)] == sorted(given)
