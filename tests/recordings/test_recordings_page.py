"""What docs/recordings.md says of engines whose calls do several things, and of limits."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conformance.recordings.format import VERSION
from conformance.recordings.validate import validate
from spec.vocabulary import Geometry, default_limits

PAGE = Path(__file__).parents[2] / "docs" / "recordings.md"
SIZES = {"pages": 2, "page_size": 2, "slots": 2, "pages_per_seq": 2}
BEGIN: dict[str, Any] = {"step": "Reserve", "slot": 0, "saw": {"used": {"0": True}}}
PROMPT: dict[str, Any] = {
    "step": "Assign",
    "slot": 0,
    "prompt": [5],
    "params": {"max_new": 1},
    "request": 1,
}
SHOWS = ["used", "rows", "counts", "allocated", "written", "committed", "tokens", "free"]


def told(path: Path, *lines: dict[str, Any], shows: list[str], **header: Any) -> str | None:
    """The first illegal line of a recording; None if it is legal."""
    head = {"kvspec": "recording", "version": VERSION, "geometry": SIZES, "shows": shows, **header}
    text = "".join(json.dumps(line) + "\n" for line in (head, *lines))
    (path / "r.jsonl").write_text(text, encoding="utf-8")
    found = validate(path / "r.jsonl").found
    return None if found is None else str(found)


def on(*positions: int) -> list[list[int]]:
    """The batch of some positions of slot 0."""
    return [[0, at] for at in positions]


def admitted() -> list[dict[str, Any]]:
    """An admission, whose lines show what the engine has at its end."""
    rows = {"rows": {"0": [1]}, "counts": {"1": 1}, "allocated": {"0": 1}, "free": 1}
    cells = {"written": {"0": 1}, "committed": {"0": 1}}
    return [
        BEGIN,
        {**PROMPT, "saw": {"tokens": {"0": [5]}}},
        {"step": "Allocate", "batch": on(0), "saw": rows},
        {"step": "Write", "batch": on(0), "saw": cells},
    ]


def test_an_admission_and_an_append_are_lines_that_show_the_state_at_their_end(
    tmp_path: Path,
) -> None:
    """Each field stands on the line whose action changes it."""
    more: list[dict[str, Any]] = [
        {"step": "Allocate", "batch": on(1), "saw": {"allocated": {"0": 2}}},
        {"step": "Append", "slot": 0, "tokens": [6], "saw": {"tokens": {"0": [5, 6]}}},
        {"step": "Write", "batch": on(1), "saw": {"written": {"0": 2}, "committed": {"0": 2}}},
    ]

    assert told(tmp_path, *admitted(), *more, shows=SHOWS) is None


@pytest.mark.parametrize("promised", [True, False])
def test_all_changes_on_the_last_line_break_the_promise(tmp_path: Path, *, promised: bool) -> None:
    """They are legal for fields that are not in `shows`, and compared."""
    lines = admitted()
    last = {name: value for line in lines for name, value in line["saw"].items()}
    late: list[dict[str, Any]] = [
        {key: value for key, value in line.items() if key != "saw"} for line in lines
    ]
    late[-1]["saw"] = last
    shows = SHOWS if promised else []

    assert promised == (told(tmp_path, *late, shows=shows) is not None)
    late[-1]["saw"] = {**last, "free": 2}
    assert told(tmp_path, *late, shows=shows) is not None


def test_a_refused_admission_is_taken_back(tmp_path: Path) -> None:
    """Reserve, Assign, a refused Allocate, and Free."""
    other = {"step": "Reserve", "slot": 1, "saw": {"used": {"1": True}}}
    full = {"step": "Allocate", "batch": [[1, at] for at in range(4)]}
    lines: list[dict[str, Any]] = [
        other,
        full,
        BEGIN,
        PROMPT,
        {"step": "Allocate", "batch": on(0), "refused": ["OUT_OF_PAGES"]},
        {"step": "Free", "slot": 0, "saw": {"used": {"0": False}}},
    ]

    assert told(tmp_path, *lines, shows=["used"]) is None
    assert told(tmp_path, *lines[:4], lines[-1], lines[-2], shows=["used"]) is not None


def test_after_a_refused_append_no_token_is_known(tmp_path: Path) -> None:
    """With Append first, the token of a refused call would be known, and shown by nobody."""
    wide = [*on(1, 2, 3), [0, 4]]
    refused = {"step": "Allocate", "batch": wide, "refused": ["TOO_LONG"]}
    after = {"step": "Append", "slot": 0, "tokens": [], "saw": {"tokens": {"0": [5]}}}

    limits = {"prefill_tokens": 8}
    assert told(tmp_path, *admitted(), refused, after, shows=SHOWS, limits=limits) is None
    append = {"step": "Append", "slot": 0, "tokens": [6]}
    lines = (*admitted(), append, refused, after)
    assert told(tmp_path, *lines, shows=[], limits=limits) is not None


def test_a_prompt_that_fills_a_row_is_appended(tmp_path: Path) -> None:
    """Prompt and max_new fit a row together; appended tokens do not count against max_new."""
    whole = {**PROMPT, "prompt": [5] * 4}
    rest = {"step": "Append", "slot": 0, "tokens": [5] * 3}

    assert "TOO_LONG" in str(told(tmp_path, BEGIN, whole, shows=[]))
    assert told(tmp_path, BEGIN, PROMPT, rest, shows=[]) is None


def test_an_empty_sequence_is_not_cloned(tmp_path: Path) -> None:
    """Its fork is a Reserve."""
    clone = {"step": "Clone", "parent": 0, "child": 1, "choice": 1}

    assert "SLOT_EMPTY" in str(told(tmp_path, BEGIN, clone, shows=[]))
    assert told(tmp_path, BEGIN, {"step": "Reserve", "slot": 1}, shows=[]) is None


@pytest.mark.parametrize(
    ("limits", "reason"), [({}, "BATCH_WIDTH"), ({"prefill_tokens": 5}, "TOO_LONG")]
)
def test_a_batch_that_is_too_long_meets_its_width_first(
    tmp_path: Path, limits: dict[str, int], reason: str
) -> None:
    """A batch above prefill_tokens is refused for its width, whatever its positions."""
    long = {"step": "Allocate", "batch": on(0, 1, 2, 3, 4), "refused": [reason]}

    assert told(tmp_path, BEGIN, long, shows=[], limits=limits) is None


def test_the_table_of_limits_has_the_defaults() -> None:
    """The page lists every limit, with the default for two geometries."""
    table = PAGE.read_text(encoding="utf-8").partition("| of `limits` |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1:-1] for row in table.splitlines() if row.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    for slots in (2, 9):
        geometry = Geometry(**{**SIZES, "slots": slots})
        limits = default_limits(geometry)
        assert listed == {field.name for field in type(limits).__attrs_attrs__}
        assert max(4, 2 * slots) == limits.prefill_tokens
        assert (2, 4, 8) == (limits.stops, limits.stop_len, limits.rounds)
        assert (2 * slots, 2 * slots) == (limits.queue, limits.outputs)
        assert (slots, slots) == (limits.prefill_seqs, limits.round_tokens)


def test_the_example_of_a_server_is_legal(tmp_path: Path) -> None:
    """The example on the page is judged as it stands there."""
    text = PAGE.read_text(encoding="utf-8").partition("A server that generates two tokens")[2]
    example = text.partition("```json\n")[2].partition("```")[0]
    path = tmp_path / "r.jsonl"
    path.write_text(example, encoding="utf-8")

    outcome = validate(path)

    assert (None, 11) == (outcome.found, outcome.events)
