"""What is told of an illegal line: the entry that says most, and the shortest part with it."""

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from conformance.cli.main import main
from conformance.recordings.answers import Found
from conformance.recordings.format import VERSION, write
from conformance.recordings.shrinking import shortest
from conformance.recordings.validate import lines_of, validate

SHOWS = ["used", "rows", "counts", "allocated", "written", "tokens", "free"]


def recording(path: Path, *lines: dict[str, Any], **header: Any) -> Path:
    """A recording of these lines, at six pages of two cells."""
    sizes = {"pages": 6, "page_size": 2, "slots": 4, "pages_per_seq": 3}
    head = {"kvspec": "recording", "version": VERSION, "geometry": sizes, **header}
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)), encoding="utf-8")
    return path


def told(path: Path, *lines: dict[str, Any], **header: Any) -> Found:
    """The first illegal line, which must be the last one."""
    found = validate(recording(path / "r.jsonl", *lines, **header)).found
    assert found is not None
    assert len(lines) + 1 == found.line
    return found


def reserve(slot: int) -> dict[str, Any]:
    """A sequence begins."""
    return {"step": "Reserve", "slot": slot, "saw": {"used": {str(slot): True}}}


def allocate(slot: int, pages: list[int], *, new: int, free: int, first: int) -> dict[str, Any]:
    """All cells of the last pages of a row. pages: the row. new: how many pages are taken."""
    batch = [[slot, at] for at in range(first, 2 * len(pages))]
    counts = {str(page): 1 for page in pages[-new:]}
    lengths = {str(slot): 2 * len(pages)}
    saw = {"rows": {str(slot): pages}, "counts": counts, "allocated": lengths, "free": free}
    return {"step": "Allocate", "batch": batch, "saw": saw}


def free(slot: int, pages: list[int], **saw: Any) -> dict[str, Any]:
    """A sequence ends. saw: what is shown otherwise, by field; None to leave a field out."""
    shown: dict[str, Any] = {
        "used": {str(slot): False},
        "rows": {str(slot): []},
        "counts": {str(page): 0 for page in pages},
        "allocated": {str(slot): 0},
        "free": 6,
        **saw,
    }
    kept = {name: value for name, value in shown.items() if value is not None}
    return {"step": "Free", "slot": slot, "saw": kept}


TWO = [
    reserve(1),
    allocate(1, [4], new=1, free=5, first=0),
    reserve(0),
    allocate(0, [2, 3], new=2, free=3, first=0),
]
"""Two sequences: slot 0 has the pages 2 and 3, slot 1 the page 4."""


@pytest.mark.parametrize(
    ("left_out", "what"),
    [
        (["rows", "counts", "allocated", "used", "free"], "rows[0]"),
        (["counts", "allocated", "used", "free"], "counts[2]"),
        (["allocated", "used", "free"], "allocated[0]"),
        (["used", "free"], "used[0]"),
        (["free"], "free"),
    ],
)
def test_of_several_wrong_fields_the_one_that_names_most_is_told(
    tmp_path: Path, left_out: list[str], what: str
) -> None:
    """Rows come first, then counts, then lengths, then what is used; the free pages are last."""
    legal = free(0, [2, 3], free=5)
    assert validate(recording(tmp_path / "r.jsonl", *TWO, legal, shows=SHOWS)).found is None

    found = told(tmp_path, *TWO, free(0, [2, 3], **dict.fromkeys(left_out)), shows=SHOWS)

    assert what == found.what
    assert "not shown: unchanged" == found.seen


def test_a_leak_names_its_page(tmp_path: Path) -> None:
    """A page that is not given back is told by its count, not by the number of free pages."""
    found = told(tmp_path, *TWO, free(0, [2, 3], counts={"2": 0}, free=4), shows=SHOWS)

    assert "line 6: RC: counts[3] is not shown: unchanged, should be 0" == str(found)


def test_another_slot_or_page_comes_before_those_of_the_action(tmp_path: Path) -> None:
    """What an action cannot have changed says more than what it changed wrongly."""
    other = free(0, [2, 3], rows={"0": [2]}, counts={"2": 0, "3": 0, "4": 0}, free=5)
    assert "counts[4]" == told(tmp_path, *TWO, other, shows=SHOWS).what

    other["saw"]["rows"]["1"] = []
    assert "rows[1]" == told(tmp_path, *TWO, other, shows=SHOWS).what


def test_a_page_belongs_to_the_row_that_shows_it(tmp_path: Path) -> None:
    """A refused action that took a page is told by the row, before the count of that page."""
    wide = [[1, at] for at in range(2, 7)]
    saw = {"rows": {"1": [4, 5]}, "counts": {"5": 1}}
    refused = {"step": "Allocate", "batch": wide, "refused": ["TOO_LONG"], "saw": saw}

    found = told(tmp_path, *TWO, refused, shows=SHOWS)

    unchanged = "line 6: ROW: rows[1] is (4, 5), should be (4,); a refused call changes nothing"
    assert unchanged == str(found)


@pytest.mark.parametrize("pages", [[4, 3], [4, 2, 3]])
def test_a_forgotten_line_is_told_by_the_slot_that_it_changed(
    tmp_path: Path, pages: list[int]
) -> None:
    """After an unrecorded Free, the next line shows a row that its own action did not empty."""
    takes = allocate(1, pages, new=len(pages) - 1, free=4, first=2)
    takes["saw"]["rows"]["0"] = []

    found = told(tmp_path, *TWO, takes, shows=SHOWS)

    assert "line 6: ROW: rows[0] is (), should be (2, 3)" == str(found)


def test_a_forgotten_line_is_told_before_a_refusal(tmp_path: Path) -> None:
    """An action that should be refused may have been legal after what is not recorded."""
    taken = [reserve(2), allocate(2, [0, 1, 5], new=3, free=0, first=0)]
    takes = allocate(1, [4, 2], new=1, free=1, first=2)
    assert "the action" == told(tmp_path, *TWO, *taken, takes, shows=SHOWS).what

    takes["saw"]["rows"]["0"] = []
    assert "rows[0]" == told(tmp_path, *TWO, *taken, takes, shows=SHOWS).what


@pytest.mark.parametrize(
    ("last", "kept"),
    [
        (free(0, [2, 3], allocated=None, free=5), ["Reserve", "Allocate", "Free"]),
        (free(0, [2, 3], counts={"2": 0}, free=4), ["Reserve", "Allocate", "Free"]),
        (
            free(0, [2, 3], counts={"2": 0, "3": -1, "4": 1}, free=5),
            ["Reserve", "Allocate", "Free"],
        ),
    ],
)
def test_values_that_are_not_the_cause_keep_no_line(
    tmp_path: Path, last: dict[str, Any], kept: list[str]
) -> None:
    """The number of free pages, true after all lines alone, does not keep unrelated lines."""
    path = recording(tmp_path / "r.jsonl", *TWO, last, shows=SHOWS)
    outcome = validate(path)
    assert outcome.found is not None

    past = lines_of(path, outcome.part, outcome.found.line)
    least = shortest(outcome.header, past, first=2, machine=None, seconds=60)

    assert least is not None
    assert kept == [type(line.step).__name__ for line in least.lines]
    assert all("free" not in line.saw for line in least.lines)
    write(tmp_path / "least.jsonl", least.header, least.lines)
    again = validate(tmp_path / "least.jsonl").found
    assert again is not None
    assert str(outcome.found).partition(": ")[2] == str(again).partition(": ")[2]


def test_the_number_of_free_pages_stays_where_it_is_the_cause(tmp_path: Path) -> None:
    """A recording that shows no counts has nothing else to tell a leak by."""
    lines = [dict(line, saw={"free": line["saw"]["free"]}) for line in TWO if "free" in line["saw"]]
    begun = [{"step": "Reserve", "slot": slot} for slot in (0, 1)]
    last = {"step": "Free", "slot": 0, "saw": {"free": 4}}
    path = recording(tmp_path / "r.jsonl", *begun, *lines, last, shows=["free"])
    outcome = validate(path)
    assert outcome.found is not None
    assert "line 6: CONS: free is 4, should be 5" == str(outcome.found)

    past = lines_of(path, outcome.part, outcome.found.line)
    least = shortest(outcome.header, past, first=2, machine=None, seconds=60)

    assert least is not None
    assert {"free": {0: 4}} == least.lines[-1].saw


def filled(*rows: list[int], written: int = 0) -> list[dict[str, Any]]:
    """A sequence for each of these rows. written: how many cells of slot 0 are written."""
    lines: list[dict[str, Any]] = []
    for slot, row in enumerate(rows):
        cells = written if written and not slot else 2 * len(row)
        batch = [[slot, at] for at in range(cells)]
        saw = {"rows": {str(slot): row}}
        lines += {"step": "Reserve", "slot": slot}, {"step": "Allocate", "batch": batch, "saw": saw}
    prompt = {"prompt": [7] * written, "params": {"max_new": 1}, "request": 1}
    if written:
        lines.append({"step": "Assign", "slot": 0, **prompt})
        lines.append({"step": "Write", "batch": [[0, at] for at in range(written)]})
    return lines


BY_SPECIFICATION = {"step": "Pack"}
"""A line that the fast table does not judge."""
NONE_LEFT = "the action is done, should be refused: OUT_OF_PAGES; page 1 is in rows[0]"


@pytest.mark.parametrize("first", [[], [BY_SPECIFICATION]])
def test_a_page_that_is_handed_out_twice_is_named_with_its_row(
    tmp_path: Path, first: list[dict[str, Any]]
) -> None:
    """In a full pool the page that a line shows as new is in a row already."""
    begun = [*first, *filled([0, 1], [2], [3, 4, 5])]
    twice = {"step": "Allocate", "batch": [[1, 2], [1, 3]], "saw": {"rows": {"1": [2, 1]}}}

    assert str(told(tmp_path, *begun, twice, policy="lowest")).endswith(NONE_LEFT)
    own = {**twice, "saw": {"rows": {"1": [2]}}}
    assert str(told(tmp_path, *begun, own, policy="lowest")).endswith("OUT_OF_PAGES")


@pytest.mark.parametrize("first", [[], [BY_SPECIFICATION]])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_page_that_is_handed_out_twice_is_named_whichever_slot_shows_it(
    tmp_path: Path, order: tuple[int, ...], first: list[dict[str, Any]]
) -> None:
    """Of a batch of several slots any one may show it, and the others show the last free pages."""
    rows = [[0, 1], [2], [3]]
    begun = [*first, *filled(*rows)]
    batch = [[slot, 2 * len(rows[slot])] for slot in range(3)]
    shown = {str(slot): [*rows[slot], page] for slot, page in zip(order, (1, 4, 5), strict=True)}
    twice = {"step": "Allocate", "batch": batch, "saw": {"rows": shown}}

    assert str(told(tmp_path, *begun, twice, policy="lowest")).endswith(NONE_LEFT)


def test_a_page_that_a_clone_may_not_share_is_named_in_a_full_pool(tmp_path: Path) -> None:
    """The partial last page of the parent needs a copy; its full pages are no mistake."""
    begun = filled([0, 1], [2], [3, 4, 5], written=3)
    clone = {"step": "Clone", "parent": 0, "child": 3, "choice": 1, "saw": {"rows": {"3": [0, 1]}}}

    assert str(told(tmp_path, *begun, clone)).endswith(NONE_LEFT)


@pytest.mark.parametrize(
    ("row", "where"), [([2, 1], "page 1 is in rows[0]"), ([2, 5, 5], "page 5 stands twice in it")]
)
def test_a_page_that_is_not_free_is_named_with_its_row(
    tmp_path: Path, row: list[int], where: str
) -> None:
    """SHARE: where pages are free, one is taken that a row names."""
    batch = [[1, at] for at in range(2, 2 * len(row))]
    twice = {"step": "Allocate", "batch": batch, "saw": {"rows": {"1": row}}}

    found = told(tmp_path, *filled([0, 1], [2]), twice)

    assert ("SHARE", f"free pages: {where}") == (found.clause, found.expected)


SLOT = "if the engine may choose, write the slot that it chose as "
POLICY = 'write the policy "any" if the engine does not take the lowest free page'


@pytest.mark.parametrize(
    ("line", "policy", "note"),
    [
        ({"step": "Reserve", "result": 2}, "any", f"{SLOT}slot"),
        ({"step": "Reserve", "slot": 1, "result": 2}, "any", ""),
        ({"step": "Clone", "parent": 0, "choice": 1, "result": 2}, "any", f"{SLOT}child"),
        ({"step": "Allocate", "batch": [[0, 2]], "saw": {"rows": {"0": [0, 4]}}}, "lowest", POLICY),
        ({"step": "Allocate", "batch": [[0, 2]], "result": [8]}, "lowest", POLICY),
        ({"step": "Allocate", "batch": [[0, 2]], "saw": {"allocated": {"0": 4}}}, "lowest", ""),
        ({"step": "Free", "slot": 0, "saw": {"rows": {"0": [4]}}}, "lowest", ""),
    ],
)
def test_a_choice_that_the_header_or_the_line_denies_the_engine_is_explained(
    tmp_path: Path, line: dict[str, Any], policy: str, note: str
) -> None:
    """Another slot or page than the specification takes may be the engine's right."""
    begun = filled([0], written=2)

    assert note == told(tmp_path, *begun, line, policy=policy).note


def test_the_result_has_what_was_seen_and_what_is_legal(tmp_path: Path) -> None:
    """The JSON result of an illegal line names its clause, the field, and both values."""
    path = recording(tmp_path / "r.jsonl", reserve(0), reserve(0), shows=SHOWS)
    result = tmp_path / "result.json"

    assert 1 == main(["validate", str(path), "--json", str(result)])

    found, wanted = json.loads(result.read_text()), validate(path).found
    assert wanted is not None
    assert (wanted.clause, wanted.what) == (found["clause"], found["what"])
    assert (wanted.seen, wanted.expected) == (found["observed"], found["expected"])
