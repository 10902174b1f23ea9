"""Recordings of engines that publish, merge and evict unasked: what they did is read off the lines.

The toys hold; each of their planted bugs, recorded with nothing beside it, is illegal on the line
on which lockstep finds it.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from deep import deep_after
from prefix_toys import BUGS, POLICIES, PrefixToy, make
from recording_tools import lines, recorded, recorded_alone, rewrite
from spec_engine import small

from conformance.cli.main import main
from conformance.files.histories import step_to_data
from conformance.history import Attend, PoisonDead
from conformance.recordings.format import FIELDS, VERSION
from conformance.recordings.shrinking import shortest
from conformance.recordings.validate import Outcome, lines_of, validate
from spec.machines import actions as act
from spec.vocabulary import CleanupMode, InvalidInput, Params, default_limits

SIZES = small(pages=6, page_size=2, slots=3, pages_per_seq=4)
NEEDS = {
    "merges pages of other texts": "as transformers",
    "merges without letting go": "as transformers",
}
"""The bugs that a policy of their own shows."""
STEPS = 400


def toy(policy: str = "as vLLM", bug: str = "") -> PrefixToy:
    """A toy of the sizes of these tests."""
    return make(policy, bug, SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_cache_does_unasked_is_legal(tmp_path: Path, policy: str) -> None:
    """Whatever it decides; what it did is counted as in lockstep."""
    path = recorded(tmp_path / "r.jsonl", toy(policy), "lifecycle", 1, STEPS)
    outcome = validate(path)

    assert outcome.found is None
    assert ("any", POLICIES[policy].unasked) == (outcome.header.policy, outcome.header.unasked)
    assert {"rows", "indexed", "contexts"} <= {*outcome.header.shows}
    assert {"Publish: done", "Hit: done"} <= outcome.coverage.outcomes.keys()
    merges = "Merge: done" in outcome.coverage.outcomes
    assert (policy == "as transformers") == merges
    assert outcome.coverage.corners["Allocate takes an idle page"]


@pytest.mark.parametrize("bug", deep_after(8, BUGS))
def test_each_bug_of_a_cache_is_illegal_on_its_line(tmp_path: Path, bug: str) -> None:
    """The line is the one on which lockstep finds it, and the shortest part has the same cause."""
    policy = NEEDS.get(bug, "as vLLM")
    sent = lines(recorded(tmp_path / "r.jsonl", toy(policy, bug), "lifecycle", 1, 2000))
    actions = [line.step for line in sent if not isinstance(line.step, PoisonDead | Attend)]

    alone = recorded_alone(tmp_path / "alone.jsonl", toy(policy, bug), actions)
    outcome = validate(alone)

    assert outcome.found is not None
    assert len(sent) + 1 == outcome.found.line
    past = lines_of(alone, outcome.part, outcome.found.line)
    least = shortest(
        outcome.header, past, first=outcome.part.first_line, machine=outcome.machine, seconds=5
    )
    assert least is not None
    assert len(least.lines) < len(sent)
    assert outcome.found.line == least.numbers[-1]


def test_the_text_of_a_key_is_part_of_the_cause(tmp_path: Path) -> None:
    """Of a page that is published too early, the tokens of its slot and what it wrote are kept."""
    bug = "publishes what is not written"
    path = recorded(tmp_path / "r.jsonl", toy(bug=bug), "lifecycle", 1, 2000)
    outcome = validate(path)
    assert outcome.found is not None
    past = lines_of(path, outcome.part, outcome.found.line)
    least = shortest(outcome.header, past, first=2, machine=outcome.machine, seconds=20)

    assert least is not None
    *before, last = least.lines
    assert isinstance(last.step, act.Allocate)
    assert any(isinstance(line.step, act.Assign | act.Append) for line in before)


def written(slot: int, text: tuple[int, ...]) -> tuple[Any, ...]:
    """A sequence with all of its cells."""
    cells = tuple((slot, position) for position in range(len(text)))
    begun = act.Assign(slot, text, Params(max_new=1), request=slot)
    return (act.Reserve(slot), begun, act.Allocate(cells), act.Write(cells))


def outcome_of(tmp_path: Path, *actions: Any, policy: str = "as vLLM", pages: int = 4) -> Outcome:
    """The outcome of a recording of a toy with pages of two cells."""
    sizes = small(pages=pages, page_size=2, slots=3, pages_per_seq=3)
    engine = make(policy, "", sizes, default_limits(sizes), CleanupMode.INCREMENTAL)
    return validate(recorded_alone(tmp_path / "run.jsonl", engine, actions))


@pytest.mark.parametrize("kept", [True, False])
def test_a_key_moves_to_another_page(tmp_path: Path, *, kept: bool) -> None:
    """Whether that one is in a row (kept), or idle as the one that was evicted."""
    ends = (act.Free(0),) if kept else (act.Free(0), act.Free(1))
    third = (act.Reserve(2), act.Allocate(((2, 0), (2, 1), (2, 2), (2, 3), (2, 4))))
    twins = (*written(0, (1, 1)), *written(1, (1, 1)), *ends, *third)
    assert outcome_of(tmp_path, *twins).found is None
    path = tmp_path / "run.jsonl"
    *_, last = lines(path)
    old, new = last.saw["indexed"]
    assert {(), (0, 1, 1)} == {*last.saw["indexed"].values()}

    def swapped(data: dict[str, Any]) -> None:
        other = next(page for page in range(4) if page not in (old, new))
        seen = data["saw"]["indexed"]
        seen[str(other)] = seen.pop(str(new if seen[str(new)] else old))

    rewrite(path, len(lines(path)) + 1, swapped)
    assert "indexed[" in str(validate(path).found)


def test_a_key_that_moves_as_its_page_is_freed_is_no_merge(tmp_path: Path) -> None:
    """It is followed as one, in the numbers that the engine shows, and not counted."""
    actions = (*written(0, (1, 1)), *written(1, (1, 1)), act.Free(0))
    text = [step_to_data(action) for action in actions]
    text[2]["saw"] = {"rows": {"0": [0]}}
    text[3]["saw"] = {"indexed": {"0": [0, 1, 1]}}
    text[6]["saw"] = {"rows": {"1": [1]}}
    text[8]["saw"] = {"rows": {"0": []}, "indexed": {"0": [], "1": [0, 1, 1]}}
    sizes = {"pages": 4, "page_size": 2, "slots": 3, "pages_per_seq": 3}
    head = {"kvspec": "recording", "version": VERSION, "geometry": sizes}
    head |= {"unasked": ["Publish", "Evict"], "shows": ["rows", "indexed"]}
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (head, *text)), encoding="utf-8")
    outcome = validate(path)

    assert outcome.found is None
    assert "Publish: done" in outcome.coverage.outcomes
    assert "Merge: done" not in outcome.coverage.outcomes


def test_the_key_of_a_page_in_a_row_does_not_move(tmp_path: Path) -> None:
    """Not even to a free page."""
    assert outcome_of(tmp_path, *written(0, (1, 1)), act.Reserve(1)).found is None
    path = tmp_path / "run.jsonl"
    (page,) = lines(path)[-2].saw["indexed"]
    moved = {str(page): [], str((page + 1) % 4): [0, 1, 1]}
    rewrite(path, 6, lambda line: line["saw"].update(indexed=moved))

    assert str(validate(path).found).startswith("line 6: PC: indexed[")


def test_an_eviction_of_the_engines_own_choice_is_legal(tmp_path: Path) -> None:
    """The idle page that became idle last is evicted, where the rules take the first."""
    begun = (*written(0, (1, 1)), *written(1, (2, 2)), act.Free(0), act.Free(1))
    taken = (act.Reserve(2), act.Allocate(((2, 0),)))
    assert outcome_of(tmp_path, *begun, *taken, policy="newest", pages=2).found is None
    path = tmp_path / "run.jsonl"
    rewrite(path, 1, lambda header: header.update(unasked=["Publish"]))

    assert "EVICT: rows[2] is" in str(validate(path).found)


def test_a_refused_call_may_publish(tmp_path: Path) -> None:
    """What comes unasked with a refusal is taken too, and nothing else is."""
    path = tmp_path / "run.jsonl"
    assert outcome_of(tmp_path, *written(0, (1, 1)), act.Reserve(1), pages=1).found is None
    last = lines(path)[-2]
    (page,) = last.saw["indexed"]
    rewrite(path, 5, lambda line: line["saw"].pop("indexed"))
    refused = {"step": "Allocate", "batch": [[1, 0]], "refused": ["OUT_OF_PAGES"]}
    shown = {**refused, "saw": {"indexed": {str(page): [0, 1, 1]}}}
    text = path.read_text(encoding="utf-8")

    path.write_text(text + json.dumps(shown) + "\n", encoding="utf-8")
    outcome = validate(path)
    assert outcome.found is None
    assert outcome.coverage.outcomes["Publish: done"]
    wrong = {**refused, "saw": {"indexed": {str(page): [0, 1, 2]}}}
    path.write_text(text + json.dumps(wrong) + "\n", encoding="utf-8")
    assert "should be (); a refused call changes nothing" in str(validate(path).found)


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({"unasked": ["Drop"]}, "unasked: ['Drop']', allowed: Evict, Merge, Publish"),
        ({"unasked": "Merge"}, "unasked: 'Merge'', allowed: a list"),
        ({"unasked": ["Merge"], "shows": ["rows"]}, "shows: no indexed', allowed: rows and"),
        ({"unasked": ["Merge"], "shows": []}, "shows: no indexed, no rows'"),
    ],
)
def test_a_header_that_cannot_be_followed_is_refused(
    tmp_path: Path, header: dict[str, Any], told: str
) -> None:
    """What is done unasked is read from rows and keys, so that both must be promised."""
    sizes = {"pages": 2, "page_size": 2, "slots": 2, "pages_per_seq": 2}
    head = {"kvspec": "recording", "version": VERSION, "geometry": sizes, "shows": list(FIELDS)}
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps({**head, **header}) + "\n", encoding="utf-8")

    with pytest.raises(InvalidInput) as refused:
        validate(path)
    assert told in str(refused.value).replace('"', "'")


def test_what_happens_unasked_has_no_line(tmp_path: Path) -> None:
    """An action has one way to come about."""
    outcome_of(tmp_path, *written(0, (1, 1)))
    path = tmp_path / "run.jsonl"
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps({"step": "Publish", "slot": 0, "length": 2}) + "\n")

    with pytest.raises(InvalidInput, match="line 6: saw 'Publish, which the engine does unasked'"):
        validate(path)


def test_the_command_says_what_is_left_to_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which page is taken, and when pages are published and evicted; and what nobody can see."""
    monkeypatch.chdir(tmp_path)
    again = (*written(0, (1, 1)), *written(1, (1, 1, 2))[:2], act.Hit(1, 2))
    outcome_of(tmp_path, *again)

    assert 0 == main(["validate", "run.jsonl", "--require", "Hit: done", "--json", "v.json"])

    told = json.loads(Path("v.json").read_text(encoding="utf-8"))["not_checked"]
    for part in (
        "DET, which free page is taken: the engine promises no policy",
        "when Evict, Publish happens: the engine decides: it is unasked",
        "PC, contexts: every sequence of the recording has context 0",
        "PC, what the pages of the index hold: a recording has no K and V in it",
        "EVT: a recording has no events",
    ):
        assert part in told


def test_the_command_keeps_the_shortest_part_of_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is illegal for the same cause when it is judged again."""
    monkeypatch.chdir(tmp_path)
    outcome_of(tmp_path, *written(0, (1, 1)), *written(2, (3, 3)), act.Free(2))
    (page,) = lines(Path("run.jsonl"))[2].saw["rows"][0]
    rewrite(Path("run.jsonl"), 10, lambda line: line["saw"].update(indexed={str(page): []}))

    assert 1 == main(["validate", "run.jsonl", "--json", "v.json"])
    first = json.loads(Path("v.json").read_text(encoding="utf-8"))
    assert 1 == main(["validate", first["shortest"], "--json", "w.json"])
    second = json.loads(Path("w.json").read_text(encoding="utf-8"))

    assert first["shortest_events"] < first["events"]
    assert (first["clause"], first["what"]) == (second["clause"], second["what"])
