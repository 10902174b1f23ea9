"""The benchmark of long recordings: its figures, and its failure if the validator is wrong."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from attrs import evolve
from deep import deep_after

from conformance.benchmarks import soak
from conformance.recordings.answers import Found
from conformance.recordings.validate import Outcome, validate

EVENTS = 450
SMALL = soak.GEOMETRIES["the sizes of kvspec fuzz"]


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file repeat its events after about 200."""
    monkeypatch.setattr(soak, "PART", 200)


def test_a_long_recording_holds_and_the_altered_line_is_named(tmp_path: Path) -> None:
    """A recording of this many events holds, and one with an altered line fails at that line."""
    found = soak.measure(SMALL, EVENTS, seed=0, folder=tmp_path)
    part, same, other = (
        (tmp_path / name).read_text(encoding="utf-8").splitlines()
        for name in ("part.jsonl", "long.jsonl", "altered.jsonl")
    )

    assert found.holds
    assert found.events == EVENTS == len(same) - 1
    assert "Reset" == json.loads(part[-1])["step"]
    assert len(part) < EVENTS
    assert same == [part[0], *(part[1:] * EVENTS)[:EVENTS]]
    assert EVENTS // 2 < found.altered <= EVENTS
    pairs = enumerate(zip(same, other, strict=True), start=1)
    assert [found.altered] == [number for number, (one, two) in pairs if one != two]


WRONG = Found(3, "RC", "counts[0]", seen=2, expected=1)
BLIND: dict[str, Callable[[Outcome], Outcome]] = {
    "sees nothing": lambda outcome: evolve(outcome, found=None),
    "finds what is legal": lambda outcome: evolve(outcome, found=outcome.found or WRONG),
    "names another line": lambda outcome: evolve(outcome, found=outcome.found and WRONG),
}


@pytest.mark.parametrize("blind", deep_after(1, BLIND))
def test_a_validator_that_is_wrong_fails(
    blind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the validator is wrong about either file, the verdict is `fails` and the status 1."""
    result = tmp_path / "long.json"
    argv = ["--events", str(EVENTS), "--json", str(result)]
    monkeypatch.setattr(soak, "GEOMETRIES", {"small": SMALL})
    assert 0 == soak.main(argv)
    assert "holds" == json.loads(result.read_text(encoding="utf-8"))["verdict"]

    monkeypatch.setattr(soak, "validate", lambda path: BLIND[blind](validate(path)))
    assert 1 == soak.main(argv)
    assert "fails" == json.loads(result.read_text(encoding="utf-8"))["verdict"]
    assert "small: fails" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", list(product([True, False], repeat=3)))
def test_any_geometry_that_fails_fails_the_run(
    wrong: tuple[bool, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run holds only if every geometry does, whichever comes last."""
    result, ends = tmp_path / "long.json", dict(zip("abc", wrong, strict=True))
    monkeypatch.setattr(soak, "GEOMETRIES", {name: name for name in ends})

    def measure(name: str, events: int, **_: object) -> soak.Measured:
        named = None if ends[name] else 7
        return soak.Measured(events, 99, 1.0, 2.0, found=None, altered=7, named=named)

    monkeypatch.setattr(soak, "measure", measure)

    assert int(any(wrong)) == soak.main(["--json", str(result)])
    content = json.loads(result.read_text(encoding="utf-8"))
    assert ("fails" if any(wrong) else "holds") == content["verdict"]
    assert {name: None if bad else 7 for name, bad in ends.items()} == {
        name: content[name]["named"] for name in ends
    }
