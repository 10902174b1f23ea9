"""Files of histories: reading restores what was written, and no malformed file is read."""

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, fields

from conformance.files import histories
from conformance.files.histories import Recorded
from conformance.files.jsonl import MAX_LINE
from conformance.history import Attend, History, PoisonDead
from conformance.protocol import Poison
from spec.machines import actions as act
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    InvalidInput,
    Params,
    Request,
    ResetMode,
    default_limits,
)

SIZES = Geometry(pages=8, page_size=2, slots=3, pages_per_seq=4)
PARAMS = Params(max_new=3, stops=((1, 2), (3,)), temperature=0.5, seed=7)
EVERYTHING: History = (
    act.Reserve(),
    act.Reserve(2),
    act.Assign(2, (1, 2, 3), PARAMS, 5, 1),
    act.Append(2, (4,)),
    act.Allocate(((2, 0), None, (2, 1))),
    act.Write(((2, 1), (2, 0), None)),
    act.Clone(2, None, 2),
    act.Clone(2, 0),
    act.Free(1),
    act.Propose(2, (4, 5)),
    act.Commit(2, 4),
    act.Truncate(2, 4),
    act.Release(2, 4),
    act.Hit(2, 4),
    act.Share(0, 2, 4),
    act.Publish(2, 4),
    act.Merge(2, 1),
    act.Evict((1, 2), 3),
    act.Drop(),
    act.FreeFinished(),
    act.Reset(ResetMode.PHYSICAL),
    act.TakeOutputs(),
    act.Enqueue(0, 4),
    act.Pack(),
    act.Purge(0),
    act.Prefill((Request(id=9, prompt=(1,), params=PARAMS, n_generations=2),)),
    act.Round(),
    act.MixedRound(((0, 2), (1, 1))),
    act.Preempt(3),
    act.Replay(1, (1, 2)),
    act.Generate(),
    act.Submit(Request(id=10, prompt=(2**31 - 1,), params=Params(max_new=1))),
    act.Admit(),
    act.Dispatch(((0, 2), (1, 1))),
    act.Retire(),
    act.Deliver(),
    *(PoisonDead(kind) for kind in Poison),
    Attend(),
)
RECORDED = Recorded(
    engine="mymodule:make",
    geometry=SIZES,
    limits=default_limits(SIZES),
    cleanup=CleanupMode.END,
    history=EVERYTHING,
    plant="CW5",
    clause="CONTENT",
    message='slot 0 holds "x",\nshould hold é',
)
NOT_A_NUMBER = (
    '{"step": "Assign", "slot": 0, "prompt": [1], "request": 1, '
    '"params": {"max_new": 1, "temperature": NaN}}'
)
HEADER = histories.dump(RECORDED).splitlines()[0]


def written(path: Path, *lines: str) -> Path:
    """Write a file of these lines."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def changed(**fields: object) -> str:
    """The header with these fields changed; a value of Ellipsis removes its field."""
    header = {**json.loads(HEADER), **fields}
    return json.dumps({name: value for name, value in header.items() if value is not ...})


def refused(path: Path) -> str:
    """The message of the error when a malformed file is read."""
    with pytest.raises(InvalidInput) as caught:
        histories.load(path)
    return str(caught.value)


def test_every_step_class_has_a_literal_here() -> None:
    """The history of this file contains each class of step that files can hold."""
    assert set(histories.STEPS) == {type(step).__name__ for step in EVERYTHING}


@pytest.mark.parametrize(
    "recorded",
    [
        RECORDED,
        Recorded(
            engine="e:f",
            geometry=SIZES,
            limits=default_limits(SIZES),
            cleanup=CleanupMode.NONE,
            history=(),
        ),
    ],
    ids=["everything", "nothing"],
)
def test_what_is_written_is_read_back(tmp_path: Path, recorded: Recorded) -> None:
    """Loading what was dumped gives an equal value, with the same types in it."""
    path = tmp_path / "history.jsonl"
    path.write_text(histories.dump(recorded), encoding="utf-8")

    loaded = histories.load(path)

    assert recorded == loaded
    assert repr(recorded) == repr(loaded)
    assert 1 + len(recorded.history) == len(path.read_text(encoding="utf-8").splitlines())


OTHERS: dict[str, list[object]] = {
    "engine": ["e"],
    "geometry": [Geometry(pages=3, page_size=4, slots=1, pages_per_seq=2, window=3)],
    "limits": [evolve(default_limits(SIZES), queue=3, rounds=5)],
    "cleanup": [*CleanupMode],
    "history": [(), (Attend(),)],
    "plant": [None, "", "RC2"],
    "clause": [None, "", "RC"],
    "message": [None, "", "two\nlines"],
    "python": [None, "", "/a/python"],
    "in_process": [False, True],
    "spec_version": [None, "", "0.0.1"],
}
"""Other values of each field: those that a header may leave out, and empty ones, too."""


def test_every_field_has_other_values_here() -> None:
    """Each field of what is kept is varied."""
    assert {one.name for one in fields(Recorded)} == set(OTHERS)


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, vs in OTHERS.items() for v in vs])
@pytest.mark.parametrize("more", [{}, {"python": "/a/python", "in_process": True}])
def test_every_field_is_read_back(name: str, value: object, more: dict[str, object]) -> None:
    """A value of one field is read back with all others, whether or not these are optional."""
    given: dict[str, Any] = {**more, name: value}
    recorded = evolve(RECORDED, **given)

    assert recorded == histories.loads(histories.dump(recorded).encode(), Path("it"))


@pytest.mark.parametrize("name", sorted(histories.OPTIONAL))
def test_what_a_header_leaves_out_is_not_known(name: str) -> None:
    """A field that the header may leave out, and does, has no value."""
    full = evolve(RECORDED, python="/a/python", in_process=True)
    header = json.loads(histories.dump(full).splitlines()[0])
    del header[name]

    read = histories.loads(json.dumps(header).encode() + b"\n", Path("it"))

    assert not getattr(read, name)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('{"step": "Reserve", "sl', "no JSON: invalid control character at character 24"),
        ("", "no JSON: expecting value at character 1"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"slot": 0}', "'step None', allowed: Admit"),
        ('{"step": "Forget", "slot": 0}', "step 'Forget'\", allowed: Admit"),
        ('{"step": ["Free"], "slot": 0}', "step ['Free']\", allowed: Admit"),
        ('{"step": "Free", "slot": 0, "page": 1}', "Free has no field 'page'"),
        ('{"step": "Free"}', "Free lacks the field slot"),
        ('{"step": "Free", "slot": 0, "slot": 0}', "a key occurs twice"),
        ('{"step": "Enqueue", "slot": true, "token": 1}', "'slot: True', allowed: an integer"),
        ('{"step": "Enqueue", "slot": 0.0, "token": 1}', "'slot: 0.0', allowed: an integer"),
        ('{"step": "Enqueue", "slot": "0", "token": 1}', "slot: '0'\", allowed: an integer"),
        ('{"step": "Enqueue", "slot": 0, "token": -1}', "Enqueue.token"),
        ('{"step": "Enqueue", "slot": 0, "token": null}', "'token: None', allowed: an integer"),
        ('{"step": "Allocate", "batch": {"0": 1}}', "allowed: a list"),
        ('{"step": "Allocate", "batch": [[0]]}', "Allocate.batch is ((0,),)', allowed:"),
        ('{"step": "Allocate", "batch": [[0, true]]}', "Allocate.batch is ((0, True),)', all"),
        ('{"step": "Reset", "mode": "thorough"}', "'thorough' is no ResetMode\", allowed: "),
        ('{"step": "PoisonDead", "kind": "zero"}', "'zero' is no Poison\", allowed: "),
        ('{"step": "Submit", "request": 3}', "'request: 3', allowed: an object"),
        ('{"step": "Submit", "request": {"id": 1, "prompt": [], "params": {"max_new": 1}}}',
         "Request.prompt"),
        ('{"step": "Submit", "request": {"id": 1, "prompt": [1], "params": {"max_new": 0}}}',
         "Params.max_new"),
        (NOT_A_NUMBER, "NaN is not a number of JSON"),
    ],
)  # fmt: skip
def test_a_malformed_step_is_told_with_its_line(tmp_path: Path, line: str, part: str) -> None:
    """For each mistake in a line, the message names the line and the value that was seen."""
    free = '{"step": "Free", "slot": 0}'

    message = refused(written(tmp_path / "bad.jsonl", HEADER, free, line, free))

    assert message.startswith(f"{tmp_path / 'bad.jsonl'} line 3: saw ")
    assert part in message


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("{", "no JSON: "),
        ("{}", "not the header of a history"),
        (changed(kvspec="notes"), "not the header of a history"),
        (changed(version=2), "a history of version 2; version 1 is read here"),
        (changed(version=True), "a history of version True; version 1"),
        (changed(engine=...), "lacks the field engine"),
        (changed(limits=...), "lacks the field limits"),
        (changed(clause=...), "lacks the field clause"),
        (changed(version=...), "a history of version None"),
        (changed(engine=3), "'3', allowed: text"),
        (changed(plant=3), "'3', allowed: text"),
        (changed(geometry=[]), "'[]', allowed: an object"),
        (changed(geometry={"pages": 16}), "Geometry lacks the field page_size"),
        (changed(geometry={**json.loads(HEADER)["geometry"], "pages": 0}), "Geometry.pages"),
        (
            changed(geometry={**json.loads(HEADER)["geometry"], "pages": True}),
            "'pages: True', allowed: ",
        ),
        (changed(cleanup="sometimes"), "'sometimes' is no CleanupMode"),
        (changed(extra=1), "no field 'extra'"),
    ],
)
def test_a_malformed_header_is_told_as_line_1(tmp_path: Path, header: str, part: str) -> None:
    """The header is read as strictly as the steps."""
    message = refused(written(tmp_path / "bad.jsonl", header))

    assert message.startswith(f"{tmp_path / 'bad.jsonl'} line 1: saw ")
    assert part in message


def test_a_file_that_is_no_text_or_too_long_is_told(tmp_path: Path) -> None:
    """Another encoding, an empty file, an absent file and a huge line are InvalidInput."""
    path = tmp_path / "bad.jsonl"

    path.write_bytes(HEADER.encode() + b'\n{"step": "\xff"}\n')
    assert "bad.jsonl line 2: saw " in refused(path)
    path.write_bytes(b"")
    assert "an empty file" in refused(path)
    assert "No such file" in refused(tmp_path / "absent.jsonl")
    assert "Is a directory" in refused(tmp_path)
    huge = refused(written(path, HEADER, "1" * (MAX_LINE + 1)))
    assert "bad.jsonl line 2: saw 'more than 1048576 bytes'" in huge


def test_a_file_that_was_cut_is_told(tmp_path: Path) -> None:
    """A line that is cut short is named, and a file cut after a whole line is a shorter history."""
    whole = histories.dump(RECORDED)
    last = len(whole.splitlines())
    path = tmp_path / "cut.jsonl"

    path.write_text(whole[:-3], encoding="utf-8")
    assert f"cut.jsonl line {last}: saw " in refused(path)
    path.write_text("".join(whole.splitlines(keepends=True)[:-1]), encoding="utf-8")
    assert EVERYTHING[:-1] == histories.load(path).history
