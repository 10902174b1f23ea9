"""The process that judges mutants: what it runs, and what it keeps of each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deep import deep_after

from conformance.lockstep.watchdog import Watchdog
from conformance.mutation import schemata, tested, worker
from conformance.mutation.fates import Fate, Fates
from conformance.mutation.stamps import stamp
from conformance.mutation.targets import GROUPS, TESTS, UNIT_TESTS, mutants
from conformance.mutation.worker import Job, Work


def begun(path: Path, *, group: str = "metadata", method: str = "fuzz") -> Work:
    """The work on four mutants, of which nothing is known."""
    job = Job(group=group, method=method, numbers=(3, 4, 5, 6), results=str(path / "fates"))
    return Work(job, Fates(path / "fates", stamp), Watchdog(lambda *_: None))


@pytest.fixture
def choice(monkeypatch: pytest.MonkeyPatch) -> schemata.Choice:
    """A choice for this test alone."""
    made = schemata.Choice()
    monkeypatch.setattr(schemata, "CHOICE", made)
    return made


def test_what_is_called_or_traced_is_judged(tmp_path: Path, choice: schemata.Choice) -> None:
    """What neither was is not run; an exception kills, and the first one may be to blame."""
    work, chosen = begun(tmp_path), list[object]()

    def judge(_watchdog: Watchdog) -> str | None:
        if not work.batch:
            choice.called |= {3, 6}
            choice.traced.add(4)
            return None
        chosen.append(work.batch)
        if work.batch == [6]:
            raise ValueError
        return "CONS" if work.batch == [4] else None

    worker._run_each(work, judge)

    assert [[3], [4], [6]] == chosen
    assert [("metadata", "fuzz", 3)] == [*work.fates.suspects]
    fates = (Fate(None), Fate("CONS"), Fate(None, run=False), Fate("raises ValueError"))
    assert dict(zip((3, 4, 5, 6), fates, strict=True)) == {
        number: fate for (*_, number), fate in work.fates.known.items()
    }


def test_an_engine_that_fails_without_a_mutant_kills_none(
    tmp_path: Path, choice: schemata.Choice
) -> None:
    """The process ends before any mutant is judged, and none is to blame."""
    work = begun(tmp_path)
    choice.called.add(3)

    with pytest.raises(RuntimeError, match="without a mutant: CONS"):
        worker._run_each(work, lambda _watchdog: "CONS")

    assert not work.fates.known
    assert not work.fates.suspects


@pytest.mark.parametrize(
    ("group", "method"), deep_after(1, [("metadata", UNIT_TESTS), ("specification", TESTS)])
)
def test_tests_of_compiled_code_are_run_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, method: str
) -> None:
    """The tests are those of the mutant's part, and only those of the engine share what is made."""
    asked = list[Any]()

    def judge(
        tests: Sequence[str], numbers: Sequence[int], _keep: tested.Keep, *, by_file: bool
    ) -> None:
        asked.append((tests, numbers, by_file))

    monkeypatch.setattr(tested, "judge", judge)
    worker._test(begun(tmp_path, group=group, method=method))

    (tests, numbers, by_file) = asked[0]
    module = mutants(group)[3].module
    assert tests == next(
        paths for begins, paths in GROUPS[group].tests.items() if module.startswith(begins)
    )
    assert 3 in numbers
    assert by_file == (method == UNIT_TESTS)
