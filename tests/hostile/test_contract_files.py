"""The contract for files and times: each role of a file, each change and each exit status."""

import argparse
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve

from conformance.hostile import contract
from conformance.hostile.calls import BAD_INPUT, STATUSES, Call
from conformance.hostile.running import How, Moment, Outcome

ROLES: Final[dict[str, tuple[str, ...]]] = {
    "input": ("work/in.csv",),
    "result": ("work/r.json",),
    "output": (*(f"work/{option[2:]}" for option in contract.OUTPUTS), "work/joined"),
    "other": ("work/notes", "home/notes"),
    "unfinished": tuple(f"work/notes{end}" for end in contract.UNFINISHED),
}
"""The files of a call, by what they are to it."""
NAMES: Final = [(role, name) for role, names in ROLES.items() for name in names]
WORDS: Final = (
    *("validate", "in.csv", "--json", "first.json", "--json=r.json", "--results=joined"),
    *(word for option in contract.OUTPUTS for word in (option, option[2:])),
)
CALL: Final = Call(about="files", words=WORDS, files={"in.csv": b"1\n"})
BEFORE: Final = {name: "old" for _, name in NAMES}


def outcome(status: int, files: dict[str, str]) -> Outcome:
    """A call that has left these files."""
    return Outcome(
        status=status,
        out="",
        err="kvspec: no",
        seconds=1.0,
        after=None,
        listening=True,
        timed_out=False,
        left=(),
        before=BEFORE,
        files=files,
    )


def told(seen: Outcome, folder: Path, *kinds: str, moment: Moment | None = None) -> list[str]:
    """The violations of these kinds."""
    found = contract.violations(CALL, seen, folder, moment=moment)
    return [text for text in found if text.partition(":")[0] in kinds]


def allowed(role: str, *, gone: bool, status: int) -> bool:
    """Whether a file of this role may be gone, or changed, after a call with this status."""
    if role == "unfinished":
        return True
    if role == "result":
        return not gone and status != BAD_INPUT
    return role == "output" and status != BAD_INPUT


@pytest.mark.parametrize(("role", "name"), NAMES)
@pytest.mark.parametrize("status", sorted(STATUSES))
@pytest.mark.parametrize("listening", [True, False])
def test_a_file_may_change_or_go_as_its_role_says(
    role: str, name: str, status: int, *, listening: bool, tmp_path: Path
) -> None:
    """One file is kept, changed or gone, before and after the process handles signals."""
    moment = Moment(1.0, How.TERM, cold=False)
    for change, kind in ((None, "lost file"), ("new", "changed file"), ("old", "")):
        files = {one: state for one, state in BEFORE.items() if one != name}
        seen = outcome(status, files if change is None else {**files, name: change})
        seen = evolve(seen, listening=listening)

        found = told(seen, tmp_path, "lost file", "changed file", moment=moment)

        right = change == "old" or allowed(role, gone=change is None, status=status)
        assert ([] if right else [kind]) == [text.partition(":")[0] for text in found]
        assert all(name in text for text in found)


@pytest.mark.parametrize("status", sorted(STATUSES))
@pytest.mark.parametrize("end", ["", *contract.UNFINISHED])
@pytest.mark.parametrize("folder", ["work", "tmp", "home", "work/corpus"])
def test_a_new_file_is_whole_and_no_temporary_one(
    status: int, end: str, folder: str, tmp_path: Path
) -> None:
    """What is new may be neither unfinished nor in the folder for temporary files."""
    name = f"{folder}/new{end}"

    found = told(outcome(status, {**BEFORE, name: "new"}), tmp_path, "temporary file")

    right = not end and folder != "tmp"
    assert ([] if right else [f"temporary file: {name}, was left"]) == found


@pytest.mark.parametrize(
    ("after", "wrong"),
    [
        (None, False),
        (0.0, False),
        (contract.END_SECONDS, False),
        (contract.END_SECONDS + 0.01, True),
    ],
)
@pytest.mark.parametrize("timed_out", [False, True])
def test_an_end_is_late_after_its_limit_alone(
    after: float | None, *, wrong: bool, timed_out: bool, tmp_path: Path
) -> None:
    """A call that had to be killed hangs, and another is late only past the limit."""
    seen = evolve(outcome(3, BEFORE), after=after, timed_out=timed_out)

    found = told(seen, tmp_path, "late", "hangs")

    assert ["hangs"] * timed_out or ["late"] * wrong == [one.partition(":")[0] for one in found]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_last_result_that_is_named_counts(count: int) -> None:
    """The result of a call is the one that a parser of its words finds, however it is written."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--results")
    forms = [
        ("--json", "a"),
        ("--json=b",),
        ("--json=",),
        ("--results", "c"),
        ("--results=--json",),
    ]
    for chosen in product(forms, repeat=count):
        words = tuple(word for form in chosen for word in form)

        assert parser.parse_args(words).json == Call(about="", words=words).json_path
