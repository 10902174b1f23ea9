"""What a recording says is kept by the recorder, by traces, and by the files of the command."""

import io
import json
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from attrs import evolve
from spec_engine import SpecEngine, small

from conformance.cli.main import main
from conformance.protocol import Action, Result
from conformance.recordings import itf
from conformance.recordings.fields import fields_of
from conformance.recordings.format import (
    Header,
    Line,
    header_from_data,
    line_from_data,
    profile_of,
    write,
)
from conformance.recordings.recorder import Recorder
from conformance.recordings.slots import slots_of
from spec.machines.actions import Evict, FreeFinished, Publish, Reserve, Reset
from spec.view import View
from spec.vocabulary import (
    CleanupMode,
    InvalidInput,
    Reason,
    Refusal,
    Refused,
    default_limits,
    refused,
)

SIZES = small(pages=3, page_size=2, slots=3, pages_per_seq=2)
BLANK = Header(geometry=SIZES, limits=default_limits(SIZES))
OTHER: dict[str, Any] = {
    "geometry": evolve(SIZES, pages=5, window=2),
    "limits": evolve(BLANK.limits, rounds=BLANK.limits.rounds + 1),
    "engine": "another",
    "cleanup": CleanupMode.END,
    "policy": "lowest",
    "refuses": "may_refuse_more",
    "copy": "lazy",
    "lookahead": 1,
    "reserve": "request",
    "ring": 4,
    "unasked": frozenset({Publish, Evict}),
    "shows": ("rows", "indexed"),
}
"""A value of each field of a header that is not its default."""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ran(path: Path, *words: str) -> dict[str, Any]:
    """The result of `kvspec validate`, with its exit status."""
    status = main(["validate", str(path), "--require", "nothing", *words, "--json", "result.json"])
    found: dict[str, Any] = json.loads(Path("result.json").read_text(encoding="utf-8"))
    return {**found, "status": status}


def another(name: str, **changed: Any) -> Header:
    """A header in which this field has its other value; `unasked` asks for one of `shows`."""
    needed = {"shows": OTHER["shows"]} if name == "unasked" else {}
    return evolve(BLANK, **{**changed, **needed, name: OTHER[name]})


def reserved(count: int, **last: Any) -> list[Line]:
    """The lines of so many legal actions, and of one more if it is given."""
    named = [
        {"step": "Reserve", "slot": at} if at < 3 else {"step": "Reset"} for at in range(count)
    ]
    return [line_from_data(dict(line)) for line in (*named, *[last] * bool(last))]


def test_another_value_is_known_for_every_field_of_a_header() -> None:
    """A field that is added to the header must be added to these tests."""
    assert {one.name for one in attrs.fields(Header)} == set(OTHER)
    assert [] == [name for name, value in OTHER.items() if value == getattr(BLANK, name)]


@pytest.mark.parametrize("name", sorted(OTHER))
def test_every_field_of_a_header_survives_a_trace(name: str) -> None:
    """A trace gives back the header that it was written for."""
    header = another(name, **{"engine": "e"} if name != "engine" else {})
    trace = itf.to_itf(header, reserved(2))
    Path("t.itf.json").write_text(json.dumps(trace), encoding="utf-8")

    back, lines = itf.from_itf(Path("t.itf.json"))

    assert header == back
    assert reserved(2) == lines


@pytest.mark.parametrize("name", sorted(set(OTHER) - {"shows", "engine"}))
def test_every_field_of_a_header_is_part_of_the_profile(name: str) -> None:
    """What a header says of an engine is what its profile says."""
    profile = profile_of(another(name), actions=frozenset())

    assert OTHER[name] == getattr(profile, name)


@pytest.mark.parametrize("count", range(4))
def test_a_trace_of_the_greatest_length_is_whole(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No action of a trace at the limit is left out on the way there or back."""
    monkeypatch.setattr(itf, "MOST", max(1, count))
    trace = itf.to_itf(BLANK, reserved(count))
    Path("t.itf.json").write_text(json.dumps(trace), encoding="utf-8")

    assert reserved(count) == itf.from_itf(Path("t.itf.json"))[1]


def test_a_trace_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of which only the beginning would be judged is bad input."""
    Path("t.itf.json").write_text(json.dumps(itf.to_itf(BLANK, reserved(3))), encoding="utf-8")
    monkeypatch.setattr(itf, "MOST", 2)

    with pytest.raises(InvalidInput, match="3 actions, more than 2"):
        itf.from_itf(Path("t.itf.json"))


@pytest.mark.parametrize("name", sorted(set(OTHER) - {"policy", "shows"}))
def test_shortest_parts_under_different_headers_are_kept_apart(name: str) -> None:
    """The same lines are another recording if one field of the header is another."""
    free = {"step": "Free", "slot": 1}
    for file, header in (("a.jsonl", BLANK), ("b.jsonl", another(name))):
        write(Path(file), header, reserved(1, **free))

    one, two = (Path(ran(Path(file))["shortest"]) for file in ("a.jsonl", "b.jsonl"))

    assert one != two
    first = json.loads(two.read_text(encoding="utf-8").splitlines()[0])
    kept = header_from_data(first)
    assert OTHER[name] == getattr(kept, name)


@pytest.mark.parametrize("shorten", ["0", "10"])
@pytest.mark.parametrize("legal", [True, False])
def test_a_trace_that_is_asked_for_is_written_and_judged_alike(
    shorten: str, *, legal: bool
) -> None:
    """Whether or not it is legal, and whether or not a shorter part is searched for."""
    write(Path("r.jsonl"), BLANK, reserved(2, step="Free", slot=1 if legal else 2))

    first = ran(Path("r.jsonl"), "--itf", "r.itf.json", "--shorten", shorten)
    again = ran(Path("r.itf.json"), "--shorten", "0")

    told = ("status", "verdict", "clause", "what", "observed", "expected")
    assert {name: first.get(name) for name in told} == {name: again.get(name) for name in told}
    assert (0 if legal else 1) == first["status"]


@pytest.mark.parametrize("resets", range(3))
def test_printed_lines_have_their_numbers_in_the_file(
    resets: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line of the shortest part stands at its number, however many resets came before."""
    before = [line_from_data({"step": "Reset"}) for _ in range(resets)]
    lines = [*reserved(2), *before, *reserved(2), *reserved(0, step="Reserve", slot=1)]
    write(Path("r.jsonl"), BLANK, lines)
    file = Path("r.jsonl").read_text(encoding="utf-8").splitlines()

    ran(Path("r.jsonl"))

    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  line ")]
    numbers = [int(line.split(":")[0].removeprefix("  line ")) for line in told]
    parts = [json.loads(line.partition(": ")[2]) for line in told]
    assert parts == [json.loads(file[number - 1]) for number in numbers]
    assert [] != numbers
    assert number_of_first_illegal(lines) == numbers[-1]


@pytest.mark.parametrize("spare", range(3))
@pytest.mark.parametrize("resets", range(3))
def test_it_is_said_whether_a_line_can_be_left_out(resets: int, spare: int) -> None:
    """The lines before the last reset do not count, since they are no part of what is shrunk."""
    steps: list[Action] = [*[Reset()] * resets, *map(Reserve, range(spare)), Reserve(SIZES.slots)]
    write(Path("r.jsonl"), BLANK, [Line(step, None, None, {}) for step in steps])

    result = ran(Path("r.jsonl"))

    assert 1 == result["shortest_events"]
    part = [told for told in result["not_checked"] if told.startswith("a shorter recording")]
    assert (not spare) == bool(part)


class Silent(SpecEngine):
    """An engine that refuses everything for given reasons."""

    reasons: tuple[Reason, ...] = ()

    def apply(self, action: Action) -> Result:
        """Refuse the action."""
        del action
        raise Refused(Refusal(reason) for reason in self.reasons)


@pytest.mark.parametrize("count", range(3))
def test_a_refusal_is_recorded_with_as_many_reasons_as_it_has(count: int) -> None:
    """One without any is no action that was done."""
    engine, out = Silent(SIZES, BLANK.limits, CleanupMode.END), io.StringIO()
    engine.reasons = tuple(Reason)[:count]
    recorder = Recorder(engine, out)

    with pytest.raises(Refused):
        recorder.apply(FreeFinished())

    line = line_from_data(json.loads(out.getvalue().splitlines()[-1]))
    assert frozenset(engine.reasons) == line.refused


def number_of_first_illegal(lines: list[Line]) -> int:
    """The number in the file of the first line that reserves a slot that is in use."""
    used = set[int]()
    for number, line in enumerate(lines, start=2):
        if isinstance(line.step, Reserve):
            assert isinstance(line.step.slot, int)
            if line.step.slot in used:
                return number
            used.add(line.step.slot)
        else:
            used.clear()
    raise AssertionError("every line is legal")


class Drifting(SpecEngine):
    """An engine whose view is another random one after each action, done or refused."""

    draws = Random(0)

    def apply(self, action: Action) -> Result:
        """Refuse the action or not, and do nothing either way."""
        if self.draws.randrange(2):
            assert isinstance(action, FreeFinished)
            raise refused([Refusal(Reason.SLOT_USED, None, None)])
        return None

    def observe(self) -> View:
        """A random view."""
        seen, draws = super().observe(), self.draws
        assert seen.counts is not None
        return evolve(seen, counts=tuple(draws.randrange(2) for _ in seen.counts))


@pytest.mark.parametrize("seed", range(10))
def test_the_lines_of_a_recorder_add_up_to_every_view(seed: int) -> None:
    """After each line the values shown so far are those of the engine, also after a refusal."""
    engine, out = Drifting(SIZES, BLANK.limits, CleanupMode.END), io.StringIO()
    engine.draws = Random(seed)
    recorder = Recorder(engine, out)
    now = fields_of(recorder.observe())
    assert set(now) == set(json.loads(out.getvalue())["shows"])

    for _ in range(20):
        was_refused = True
        with suppress(Refused):
            recorder.apply(FreeFinished())
            was_refused = False
        line = line_from_data(json.loads(out.getvalue().splitlines()[-1]))
        for name, values in line.saw.items():
            now[name].update(values)

        assert fields_of(recorder.observe()) == now
        assert was_refused is (line.refused is not None)


@pytest.mark.parametrize("slot", [None, 0, 1])
@pytest.mark.parametrize("result", [None, 0, 1])
def test_a_slot_that_is_named_comes_before_one_that_is_returned(
    slot: int | None, result: int | None
) -> None:
    """The slot of a Reserve or a Clone is the one in the action, slot 0 as any other."""
    returned = -1 if result is None else result
    clone = {"step": "Clone", "parent": 2, "child": slot, "choice": 1}
    extra = {} if result is None else {"result": result}

    taken = line_from_data({"step": "Reserve", "slot": slot, **extra})
    cloned = line_from_data({**clone, **extra})

    chosen = returned if slot is None else slot
    assert (chosen,) == slots_of(taken)
    assert (2, chosen) == slots_of(cloned)
