"""What the command says that it does not check, read a second time off the lines of a file."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from second_judge import ORDER, initial, judged, line_of
from spec_engine import small

from conformance.cli.main import main
from conformance.history import Step
from conformance.recordings.fields import PLAIN_RESULTS
from conformance.recordings.format import FIELDS, Header, Line, write
from conformance.recordings.required import NOTHING
from spec import ladder
from spec.fields import BY_NAME
from spec.machines import actions as act
from spec.vocabulary import Params, default_limits

SIZES = small(pages=3, page_size=2, slots=2, pages_per_seq=2)
CELLS = ((0, 0), (0, 1))
BEGUN = (act.Reserve(0), act.Assign(0, (1, 2), Params(max_new=1), 1))
STORIES: dict[str, tuple[Step, ...]] = {
    "no clone": (*BEGUN, act.Allocate(CELLS), act.Write(CELLS), act.Free(0)),
    "a refused clone": (*BEGUN, act.Free(1), act.Clone(1), act.Free(0)),
    "a clone": (*BEGUN, act.Allocate(CELLS), act.Write(CELLS), act.Clone(0, 1, 1), act.Reset()),
    "rounds": (*BEGUN, act.Pack(), act.Purge(0), act.TakeOutputs(), act.Free(0)),
}
WORDS = ((), (NOTHING,), (NOTHING, "Reserve: done"), ("Reserve: done",))


def recording(story: str, draws: Random) -> tuple[Header, list[Line]]:
    """A legal one that promises some fields, shows some of the others, and has more results."""
    shows = tuple(name for name in FIELDS if draws.randrange(2))
    header = Header(geometry=SIZES, limits=default_limits(SIZES), policy="lowest", shows=shows)
    machine = ladder.whole()
    state, lines = initial(header, machine), list[Line]()
    for step in STORIES[story]:
        line = line_of(machine, state, step, shows=ORDER)
        state = judged(header, machine, state, line).after
        kept = {name: at for name, at in line.saw.items() if name in shows or draws.randrange(2)}
        told = type(step) not in PLAIN_RESULTS and line.refused is None and draws.randrange(2)
        lines.append(line._replace(saw=kept, result=[1] if told else line.result))
    return header, lines


@pytest.mark.parametrize("words", WORDS, ids=str)
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_not_checked_is_what_the_lines_do_not_show(
    story: str, words: tuple[str, ...], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fields that are not promised, results without a meaning and what nobody asks for are told."""
    monkeypatch.chdir(tmp_path)
    header, lines = recording(story, Random(f"{seed} {story}"))
    write(Path("r.jsonl"), header, lines)
    asked = [part for word in words for part in ("--require", word)]

    status = main(["validate", "r.jsonl", *asked, "--json", "v.json"])

    result: dict[str, Any] = json.loads(Path("v.json").read_text(encoding="utf-8"))
    assert None is result["first_illegal"]
    assert (0 if words else 3) == status
    open_ = [name for name in FIELDS if name not in header.shows]
    partly = [name for name in open_ if any(name in line.saw for line in lines)]
    never = [name for name in open_ if name not in partly]
    clauses = ", ".join(sorted({BY_NAME[name].clause for name in never}))
    meaningless = {type(line.step).__name__ for line in lines if line.result == [1]}
    cloned = any(isinstance(line.step, act.Clone) for line in lines)
    told = [entry.partition(": ")[0] for entry in result["not_checked"]]
    assert [
        *[f"all of {', '.join(partly)}"] * bool(partly),
        *[", ".join(never)] * bool(never),
        *(f"results of {name}" for name in sorted(meaningless)),
        *["pages that are shared"] * (not words and not cloned),
        *["what the recording reaches"] * (words == (NOTHING,)),
        *("CONTENT, READ, ATT", "STAT"),
        *["coverage that the recording does not reach"] * (not words),
    ] == told
    assert never == [] or f"(clauses {clauses})" in result["not_checked"][bool(partly)]
