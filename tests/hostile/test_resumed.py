"""Campaigns that are resumed: each part is done once, whatever was done before."""

import json
from collections import Counter
from itertools import combinations, product
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve
from deep import deep_after

from conformance.hostile import calls, contract, inputs, interrupts, run, running
from conformance.hostile.calls import Call
from conformance.hostile.interrupts import Subject, Tried
from conformance.hostile.running import Outcome

CALL: Final = Call(about="part", words=())
DONE: Final = Outcome(
    status=0,
    out="",
    err="",
    seconds=1.0,
    after=None,
    listening=True,
    timed_out=False,
    left=(),
    before={},
    files={},
)
PARTS: Final = list(product(("one", "two"), range(2)))
SOME: Final = [part for size in range(len(PARTS) + 1) for part in combinations(PARTS, size)]
FORMS: Final = {"singles": (), "a chain": ("one",), "chains": ("one", "two")}


def tried(name: str, number: int) -> Tried:
    """The result of one moment of a command."""
    return Tried(
        command=name, number=number, moment="", seconds=1.0, status=0, after=None, early=False
    )


@pytest.mark.parametrize("before", deep_after(8, [(one,) for one in SOME]), ids=str)
@pytest.mark.parametrize("chained", [*FORMS.values()], ids=[*FORMS])
def test_every_moment_of_every_command_is_tried_once(
    before: tuple[tuple[str, int], ...],
    chained: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A resumed campaign tries the moments that are left of each command, and no others."""
    made = list[tuple[str, int]]()

    def one(name: str, _subject: object, number: int, *_: object, keep: Any, **__: object) -> None:
        made.append((name, number))
        keep(tried(name, number), CALL, DONE)

    def chain(
        name: str, subject: Subject, moments: Any, *rest: object, keep: Any, **_: Any
    ) -> None:
        for number in moments:
            one(name, subject, number, *rest, keep=keep)

    monkeypatch.setattr(interrupts, "try_one", one)
    monkeypatch.setattr(interrupts, "try_chain", chain)
    kept = run.Kept(tmp_path / "interrupts.jsonl", seed=1)
    for name, number in before:
        kept.add({"command": name, "number": number, "early": False, "violations": []})
    subjects = {name: Subject(call=CALL, chained=name in chained) for name in ("one", "two")}

    lines = run.interrupted(subjects, moments=2, seed=1, home=tmp_path)

    assert sorted(set(PARTS) - set(before)) == sorted(made)
    assert sorted(PARTS) == sorted((line["command"], line["number"]) for line in lines)
    for name, subject in subjects.items():
        alone = run.interrupted({name: subject}, moments=2, seed=1, home=tmp_path)
        assert [name] * 2 == [line["command"] for line in alone]
    assert len(PARTS) - len(before) == len(made)


@pytest.mark.parametrize("before", [(), (0,), (2,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("wrong", [[], ["trace: one", "trace: two", "late: three"]])
def test_every_input_is_tried_once(
    before: tuple[int, ...], wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed campaign of inputs tries those that are left, and keeps each with its number."""
    made = Counter[str]()

    def counted(call: Call, *_: object, **__: object) -> Outcome:
        made[call.about] += 1
        return DONE

    every = [evolve(CALL, about=str(number)) for number in range(3)]
    monkeypatch.setattr(inputs, "draw", lambda *_, **__: every)
    monkeypatch.setattr(running, "run", counted)
    monkeypatch.setattr(contract, "violations", lambda *_, **__: wrong)
    kept = run.Kept(tmp_path / "inputs.jsonl", seed=1, inputs=3)
    for number in before:
        kept.add({"number": number, "about": str(number), "violations": []})

    lines = run.hostile_inputs(number=3, seed=1, home=tmp_path, program=calls.KVSPEC)

    assert {str(one): 1 for one in range(3) if one not in before} == made
    assert [(at, str(at)) for at in range(3)] == sorted(
        (line["number"], line["about"]) for line in lines
    )
    left = 3 - len(before)
    right = {"trace": 2 * left, "late": left} if wrong and left else {}
    assert right == run.classes(lines)
    assert (left if wrong else 0) == len(list((tmp_path / "inputs").glob("*/again.sh")))


@pytest.mark.parametrize(
    ("changed", "used"), [({}, True), ({"seed": 2}, False), ({"inputs": 4}, False)]
)
@pytest.mark.parametrize("end", ["", "\n", '{"number": '])
def test_results_of_other_draws_are_not_used(
    changed: dict[str, int], *, used: bool, end: str, tmp_path: Path
) -> None:
    """Lines count only with the same draws and sources, and an incomplete one never does."""
    path = tmp_path / "inputs.jsonl"
    run.Kept(path, **{"seed": 1, "inputs": 3, **changed}).add({"number": 7})
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "source": "other"}) + "\n" + path.read_text() + end)

    found = run.Kept(path, seed=1, inputs=3).lines

    assert ([line] if used else []) == found


@pytest.mark.parametrize("wrong", [*product((False, True), repeat=2)], ids=str)
def test_the_end_tells_the_violations_of_both_campaigns(
    wrong: tuple[bool, bool],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each command that shows one is printed, and its class; the status is 1 if there is one."""

    def lines(name: str, *, are_wrong: bool) -> list[run.Line]:
        found = [f"{name}: what was seen"] if are_wrong else []
        again = f"again-{name}" if are_wrong else ""
        every = {"early": False, "status": 0, "after": 1.0, "again": again, "violations": found}
        return [{"command": "fuzz", "number": 0, "about": "fuzz", **every}]

    ran = list[str]()

    def campaign(name: str, *, are_wrong: bool) -> Any:
        def one(*_: object, **__: object) -> list[run.Line]:
            ran.append(name)
            return lines(name, are_wrong=are_wrong)

        return one

    monkeypatch.setattr(run, "hostile_inputs", campaign("trace", are_wrong=wrong[0]))
    monkeypatch.setattr(run, "interrupted", campaign("late", are_wrong=wrong[1]))
    told = {name for name, there in zip(("trace", "late"), wrong, strict=True) if there}

    status = run.main(["all", "--folder", str(tmp_path)])
    shown = capsys.readouterr().out

    assert int(any(wrong)) == status
    assert ["trace", "late"] == ran
    assert told == {name for name in ("trace", "late") if f"again-{name}" in shown}
    assert told == {name for name in ("trace", "late") if f"1 {name}" in shown}
    for name, there in zip(("inputs", "interrupts"), wrong, strict=True):
        assert int(there) == run.main([name, "--folder", str(tmp_path)])
    assert ["trace", "late"] * 2 == ran
