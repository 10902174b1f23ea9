"""Files of recordings: the command, the writer for other projects, and traces in ITF."""

import ast
import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from recording_tools import altered, lines, recorded, table, whole
from spec_engine import SpecEngine, small

from conformance.cli.main import main
from conformance.recordings import itf, writer
from conformance.recordings.format import VERSION, Line
from conformance.recordings.judge import judge
from conformance.recordings.validate import header_and_lines, validate
from conformance.rungs.pages import FULL, PAGE_REUSED
from spec import ladder
from spec.vocabulary import InvalidInput


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ran(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the JSON result of `kvspec validate`."""
    result = Path("result.json")
    status = main(["validate", *arguments, "--json", str(result)])
    return status, json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}


def test_a_legal_recording_holds_and_says_what_it_leaves_open(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A legal recording gives status 0, the counts, and the list of unchecked clauses."""
    path = recorded(Path("r.jsonl"), table(small()), "lifecycle", 1)

    status, result = ran(str(path), "--require", "nothing")

    assert (status, result["verdict"], result["first_illegal"]) == (0, "holds", None)
    assert result["events"] == len(path.read_text(encoding="utf-8").splitlines()) - 1
    assert result["per_second"] > 0
    assert any(line.startswith("CONTENT, READ, ATT") for line in result["not_checked"])
    assert "validate: holds (complete)" in capsys.readouterr().out


def test_an_illegal_one_names_the_line_and_leaves_a_shorter_one() -> None:
    """The shortest part of an illegal recording ends with its first illegal line."""
    path = recorded(Path("r.jsonl"), table(small()), "lifecycle", 1)
    number = altered(path)

    status, result = ran(str(path), "--illegal", "least")

    assert (status, result["verdict"], result["clause"]) == (1, "fails", "RC")
    assert result["first_illegal"]["line"] == number
    assert result["observed"] == result["expected"] + 1
    least = Path(result["shortest"])
    lines = least.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + result["shortest_events"] < number
    again = ran(str(least), "--shorten", "0")[1]
    assert (again["clause"], again["first_illegal"]["line"]) == ("RC", len(lines))


def test_the_shortest_part_is_printed_by_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is printed as JSON with what it shows, clipped, and with its number in the file."""
    free: dict[str, Any] = {"step": "Free", "slot": 0}
    prompt = {"step": "Assign", "prompt": [2**31 - 1] * 3, "params": {"max_new": 1}, "request": 7}
    begun = [{"step": "Reserve", "slot": 0}, {"step": "Reserve", "slot": 1}, free]
    long = {**prompt, "slot": 1, "saw": {"tokens": {"1": prompt["prompt"]}, "used": {"1": True}}}
    last = {**free, "slot": 1, "saw": {"tokens": {"1": [2**31 - 1] * 3}}}

    assert 1 == ran(str(by_hand({}, *begun, long, last)))[0]

    out = capsys.readouterr().out
    assert '  line 3: {"step":"Reserve","slot":1,"context":0}\n' in out
    assert '  line 5: {"step":"Assign","slot":1,"prompt":[2147483647,' in out
    assert 'line 6: {"step":"Free","slot":1,"saw":{"tokens":{"1":[2147483647,' in out
    assert "line 2:" not in out
    assert "line 4:" not in out
    assert 160 >= max(len(line) for line in out.splitlines() if line.startswith("  line "))
    assert "again: kvspec validate .kvspec/illegal/" in out


def test_of_a_long_shortest_part_the_last_lines_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The number of lines that are left out is told."""
    begun: list[dict[str, Any]] = [{"step": "Reserve", "slot": slot} for slot in range(22)]
    sizes = {"pages": 2, "page_size": 2, "slots": 22, "pages_per_seq": 2}

    assert 1 == ran(str(by_hand({"geometry": sizes}, *begun, {"step": "Reserve"})))[0]

    out = capsys.readouterr().out
    assert "begins with 3 lines more, which are in its file" in out
    assert ["line 5:", "line 24:"] == [
        line[2:10].strip() for line in out.splitlines() if line.startswith("  line ")
    ][::19]


def test_what_is_malformed_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    """A malformed file gives status 2 and one line on stderr, and no result is written."""
    Path("bad.jsonl").write_text("{}\n", encoding="utf-8")
    for name, part in (("bad.jsonl", "bad.jsonl line 1"), ("absent.jsonl", "No such file")):
        assert ran(name) == (2, {})
        assert part in capsys.readouterr().err


def test_the_writer_needs_nothing_but_the_standard_library() -> None:
    """The writer is short and imports nothing of kvspec, and its output is a recording."""
    source = Path(writer.__file__).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 63
    names = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names)

    Path("copied.py").write_text(source, encoding="utf-8")
    program = (
        "from copied import HistoryWriter as W\n"
        "with W('w.jsonl', pages=4, page_size=2, slots=1, pages_per_seq=2, shows=['used']) as h:\n"
        "    h.step('Reserve', slot=0, result=0, saw={'used': {0: True}})\n"
        "    h.step('Reserve', refused=['NO_FREE_SLOT'])\n"
        "    h.step('Free', slot=0)\n"
    )
    subprocess.run([sys.executable, "-S", "-c", program], check=True)

    status, result = ran("w.jsonl")
    assert status == 1
    assert result["first_illegal"] == {
        "line": 4,
        "reason": "line 4: DET: used[0] is not shown: unchanged, should be False",
    }


@pytest.mark.parametrize("engine", [table, whole])
@pytest.mark.parametrize("seed", range(3))
def test_a_trace_in_itf_is_the_same_recording(engine: Any, seed: int) -> None:
    """A recording that is converted to ITF and back has the same actions, answers and changes."""
    made: SpecEngine = engine(small(pages=6, page_size=2))
    path = recorded(Path("r.jsonl"), made, "lifecycle", seed)
    assert ran(str(path), "--itf", "r.itf.json", "--require", "nothing")[0] == 0

    header, back = itf.from_itf(Path("r.itf.json"))

    there = lines(path)
    assert [line[:3] for line in back] == [line[:3] for line in there]
    judging = judge(header, machine=ladder.whole() if engine is whole else None)
    for line in back:
        judging.take(line)
    assert set(header.shows) >= {name for line in there for name in line.saw}


def shown(recorded: list[Line], blank: Mapping[str, object]) -> list[dict[tuple[str, int], object]]:
    """What differs from the initial values after each line."""
    now: dict[tuple[str, int], object] = {}
    after = []
    for line in recorded:
        now |= {(name, at): value for name, saw in line.saw.items() for at, value in saw.items()}
        after.append({key: value for key, value in now.items() if value != blank[key[0]]})
    return after


@pytest.mark.parametrize("seed", range(3))
def test_a_trace_shows_after_each_line_what_the_recording_shows(seed: int, tmp_path: Path) -> None:
    """Also what a refused action has changed, which makes the recording illegal."""
    path = recorded(tmp_path / "r.jsonl", whole(small(pages=6, page_size=2)), "lifecycle", seed)
    with path.open("rb") as file:
        header = header_and_lines(file, path)[0]
    there = [
        line._replace(saw={**line.saw, "allocated": {0: 7 + at}}) if line.refused else line
        for at, line in enumerate(lines(path))
    ]
    assert any(line.refused for line in there)
    trace = tmp_path / "r.itf.json"
    trace.write_text(json.dumps(itf.to_itf(header, there)), encoding="utf-8")

    _, back = itf.from_itf(trace)

    assert shown(there, itf._blank(header)) == shown(back, itf._blank(header))


@pytest.mark.parametrize(("free", "verdict"), [(2, "holds"), (1, "fails")])
def test_the_number_of_free_pages_survives_a_trace(free: int, verdict: str) -> None:
    """The number of free pages starts at the size of the pool, unlike every other field."""
    head = {"kvspec": "recording", "version": 3, "engine": "e", "shows": ["free"]}
    head["geometry"] = {"pages": 3, "page_size": 2, "slots": 1, "pages_per_seq": 2}
    steps = [
        {"step": "Reserve", "slot": 0},
        {"step": "Allocate", "batch": [[0, 0]], "saw": {"free": free}},
        {"step": "Free", "slot": 0, "saw": {"free": 3}},
    ]
    text = "".join(json.dumps(line) + "\n" for line in [head, *steps])
    Path("f.jsonl").write_text(text, encoding="utf-8")

    words = ("--shorten", "0", "--require", "nothing")
    assert ran("f.jsonl", "--itf", "f.itf.json", *words)[1]["verdict"] == verdict
    assert ran("f.itf.json", *words)[1]["verdict"] == verdict


def test_an_illegal_trace_is_told_by_its_state() -> None:
    """A trace in the style of Quint, in which a page is taken twice, fails at the second taking."""
    number = {"#bigint": "4"}
    sizes = {"pages": number, "page_size": number, "slots": 2, "pages_per_seq": 1}

    def state(action: str, rows: dict[int, int], **arguments: object) -> dict[str, object]:
        pairs = [[{"#bigint": str(slot)}, [page]] for slot, page in rows.items()]
        return {
            "header": {"geometry": sizes},
            "action": action,
            "arguments": arguments,
            "refused": {"#set": []},
            "rows": {"#map": pairs},
        }

    batches = [[{"#tup": [slot, {"#bigint": "0"}]}] for slot in (0, 1)]
    states = [
        state("init", {}),
        state("Reserve", {}, slot=0),
        state("Reserve", {}, slot=1),
        state("Allocate", {0: 3}, batch=batches[0]),
        state("Allocate", {0: 3, 1: 3}, batch=batches[1]),
    ]
    names = [name for name in states[0] if name != "#meta"]
    Path("q.itf.json").write_text(json.dumps({"vars": names, "states": states}), encoding="utf-8")

    status, result = ran("q.itf.json", "--shorten", "0")

    assert (status, result["clause"], result["first_illegal"]["line"]) == (1, "SHARE", 5)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[]", "'[]', allowed: an object"),
        ("{", "xpecting property name"),
        ('{"vars": [], "states": []}', "a trace without states"),
        ('{"vars": [], "states": [{"rows": 1}]}', "no field header"),
        (
            '{"vars": [], "states": [{"header": {"geometry": 3}}]}',
            "'geometry: 3', allowed: an object",
        ),
    ],
)
def test_a_malformed_trace_is_bad_input(text: str, part: str) -> None:
    """The error has the number of the state and its first mistake."""
    Path("bad.itf.json").write_text(text, encoding="utf-8")

    with pytest.raises(InvalidInput, match=r"bad\.itf\.json state 0") as caught:
        itf.from_itf(Path("bad.itf.json"))

    assert part in str(caught.value)


def test_what_is_shortened_begins_after_the_last_reset() -> None:
    """After any number of resets the part to shrink begins behind the last one."""
    path = recorded(Path("r.jsonl"), table(small()), "lifecycle", 1)
    first, *rest = path.read_text(encoding="utf-8").splitlines(keepends=True)
    reset = '{"step": "Reset"}\n'
    shows = json.loads(first) | {"shows": []}
    once = [json.dumps(shows) + "\n", *rest, reset]
    path.write_text("".join([*once, *[*rest, reset] * 30]), encoding="utf-8")

    outcome = validate(path)

    assert outcome.found is None
    assert outcome.events == 31 * (len(rest) + 1)
    assert outcome.part.first_line == outcome.events + 2


def allocator(*, clones: bool = True, refuses: bool = True, fills: bool = True) -> Path:
    """A legal recording of three pages, which are all taken again after their release.

    clones: a page is shared. refuses: an action is refused. fills: the pool is full.
    """
    prompt = {"prompt": [0, 0, 0, 0], "params": {"max_new": 1}}
    one = [[0, at] for at in range(4)]
    full = [{"step": "Allocate", "batch": [[1, 0], [1, 1]]}] if fills else []
    share = [{"step": "Free", "slot": 1}, {"step": "Clone", "parent": 0, "child": 1, "choice": 1}]
    steps = [
        {"step": "Reserve", "slot": 0},
        {"step": "Assign", "slot": 0, **prompt, "request": 1},
        {"step": "Allocate", "batch": one},
        {"step": "Write", "batch": one},
        {"step": "Reserve", "slot": 1},
        *full,
        *(share if clones else []),
        *([{"step": "Reserve", "refused": ["NO_FREE_SLOT"]}] if refuses else []),
        {"step": "Reset"},
        {"step": "Reserve", "slot": 0},
        {"step": "Allocate", "batch": [[0, 0]]},
    ]
    sizes = {"pages": 3, "page_size": 2, "slots": 2, "pages_per_seq": 3}
    head = {"kvspec": "recording", "version": 3, "geometry": sizes, "policy": "lowest"}
    text = "".join(json.dumps(line) + "\n" for line in [head, *steps])
    Path("a.jsonl").write_text(text, encoding="utf-8")
    return Path("a.jsonl")


def test_a_recording_that_shows_enough_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """A recording that shares, refuses, fills and takes again holds, and each is counted."""
    status, result = ran(str(allocator()))

    out = capsys.readouterr().out
    assert (0, "holds", []) == (status, result["verdict"], result["not_covered"])
    assert (4, 4) == (result["covered"], result["coverable"])
    assert "      reached       1  page shared\n" in out
    assert out.splitlines()[-1].startswith("kvspec validate: holds (complete) in ")


@pytest.mark.parametrize(
    ("missing", "made"),
    [
        ("an action refused", {"refuses": False}),
        ("pool exactly full", {"fills": False}),
    ],
)
def test_a_recording_that_shows_too_little_is_undecided(
    missing: str, made: dict[str, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """A legal recording that does not reach what is required gives status 3, and says what."""
    status, result = ran(str(allocator(**made)))

    out = capsys.readouterr().out
    assert (3, "undecided", [missing]) == (status, result["verdict"], result["not_covered"])
    assert f"NOT reached       0  {missing}\n" in out
    assert out.splitlines()[-1].startswith("kvspec validate: undecided (complete) in ")


def test_a_page_must_be_shared_where_there_are_clones() -> None:
    """Without a clone sharing is not checked; a clone that shares nothing does not suffice."""
    status, result = ran(str(allocator(clones=False)))
    assert (0, 3) == (status, result["coverable"])
    assert any("has none of Clone, Hit, Share" in line for line in result["not_checked"])

    status, result = ran(str(allocator(clones=False)), "--require", "page shared")
    assert (3, ["page shared"]) == (status, result["not_covered"])

    path = allocator()
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if '"Allocate"' not in line and '"Write"' not in line]
    path.write_text("".join(kept), encoding="utf-8")
    assert "page shared" in ran(str(path))[1]["not_covered"]


@pytest.mark.parametrize(
    ("policy", "result", "rows", "listed"),
    [
        ("any", [0, 1], None, ["results of Allocate: some name pages that no row shows"]),
        ("any", [0, 1], {"0": [0]}, []),
        ("lowest", [0, 1], None, []),
        ("any", None, None, []),
    ],
)
def test_results_of_pages_that_no_row_shows_are_listed(
    policy: str, result: list[int] | None, rows: dict[str, list[int]] | None, listed: list[str]
) -> None:
    """Destinations in unknown pages are not compared; shown or chosen by a policy, they are."""
    line: dict[str, Any] = {"step": "Allocate", "batch": [[0, 0], [0, 1]]}
    line |= {} if result is None else {"result": result}
    line |= {} if rows is None else {"saw": {"rows": rows}}
    path = by_hand({"policy": policy}, {"step": "Reserve", "slot": 0}, line)

    status, told = ran(str(path), "--require", "nothing")

    assert 0 == status
    assert listed == [one for one in told["not_checked"] if one.startswith("results")]


def test_results_that_no_action_has_are_listed() -> None:
    """A result of an action that has none is compared with nothing."""
    path = by_hand({}, {"step": "Reserve", "slot": 0}, {"step": "Free", "slot": 0, "result": 7})

    status, told = ran(str(path), "--require", "nothing")

    assert 0 == status
    assert "results of Free: the specification has none" in told["not_checked"]


@pytest.mark.parametrize("wrong", [False, 0.0, "0"])
@pytest.mark.parametrize(
    "before",
    [
        [{"step": "Reserve", "slot": None}],
        [
            {"step": "Reserve", "slot": 1},
            {
                "step": "Assign",
                "slot": 1,
                "prompt": [1],
                "params": {"max_new": 1},
                "request": 1,
            },
            {"step": "Allocate", "batch": [[1, 0]]},
            {"step": "Write", "batch": [[1, 0]]},
            {"step": "Clone", "parent": 1, "child": None, "choice": 1},
        ],
        [{"step": "Reserve", "slot": 0}, {"step": "Allocate", "batch": [[0, 0]]}],
        [{"step": "Generate"}],
    ],
)
def test_a_result_of_another_type_is_bad_input(
    before: list[dict[str, Any]], wrong: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither false nor 0.0 nor "0" is slot 0, destination 0 or no round."""
    step = before[-1]["step"]
    right, result = {
        "Allocate": ([0], [wrong]),
        "Generate": ([0, "QUEUE_EMPTY"], [wrong, "QUEUE_EMPTY"]),
    }.get(step, (0, wrong))
    lines = (*before[:-1], {**before[-1], "result": right})
    assert 0 == ran(str(by_hand({"policy": "lowest"}, *lines)), "--require", "nothing")[0]

    lines = (*before[:-1], {**before[-1], "result": result})
    Path("result.json").unlink()

    assert (2, {}) == ran(str(by_hand({"policy": "lowest"}, *lines)), "--require", "nothing")
    told = capsys.readouterr().err
    assert f"by_hand.jsonl line {len(before) + 1}: saw " in told
    assert f"result: {wrong!r}" in told
    assert ", allowed: an integer. " in told


def test_a_result_that_nothing_is_compared_with_has_its_type() -> None:
    """Destinations in pages that no row shows are numbers all the same."""
    begun = {"step": "Reserve", "slot": 0}
    line = {"step": "Allocate", "batch": [[0, 0]], "result": ["0"]}

    with pytest.raises(InvalidInput, match="result: '0'"):
        validate(by_hand({}, begun, line))


def test_a_file_that_was_cut_says_what_is_known_of_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A cut file is bad input, and the lines before it are legal, or the illegal one is told."""
    lines = [{"step": "Reserve", "slot": 0}, {"step": "Free", "slot": 0}]
    whole = by_hand({}, *lines).read_bytes()
    for end in (1, 9, len(json.dumps(lines[-1]))):
        Path("cut.jsonl").write_bytes(whole[:-end])
        assert 2 == ran("cut.jsonl")[0]
        cut = "the file ends inside line 3: it was cut; the 2 lines before it are legal"
        assert f"cut.jsonl line 3: saw '{cut}', allowed: whole lines." in capsys.readouterr().err

    Path("cut.jsonl").write_bytes(by_hand({}, lines[1], *lines).read_bytes()[:-9])
    status, told = ran("cut.jsonl")
    assert (1, 2) == (status, told["first_illegal"]["line"])
    Path("cut.jsonl").write_bytes(whole.replace(b"}\n", b"\n", 2)[:-9])
    assert 2 == ran("cut.jsonl")[0]
    assert "was cut" not in capsys.readouterr().err, "a line before it is malformed"


@pytest.mark.parametrize(
    ("change", "what"),
    [(gzip.compress, "a gzip file"), (b"\xef\xbb\xbf".__add__, "a UTF-8 byte order mark")],
)
def test_a_file_in_another_encoding_is_named(change: Callable[[bytes], bytes], what: str) -> None:
    """A compressed file, or one with a byte order mark, is told by what it is."""
    path = by_hand({})
    path.write_bytes(change(path.read_bytes()))

    with pytest.raises(InvalidInput, match=rf"by_hand\.jsonl: saw '{what}'"):
        validate(path)


def by_hand(header: dict[str, Any], *lines: dict[str, Any]) -> Path:
    """A recording of these lines at two pages of two cells."""
    sizes = {"pages": 2, "page_size": 2, "slots": 2, "pages_per_seq": 2}
    first = {"kvspec": "recording", "version": VERSION, "geometry": sizes, **header}
    path = Path("by_hand.jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, *lines)), encoding="utf-8")
    return path


def test_what_is_required_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    """An item, everything, or nothing is required instead; an unknown word is bad usage."""
    path = str(allocator(refuses=False, fills=False))

    assert 0 == ran(path, "--require", "nothing")[0]
    assert "every line is legal, and no more" in capsys.readouterr().out
    assert 0 == ran(path, "--require", "Clone: done", "--require", "clone at a page boundary")[0]
    assert 3 == ran(path, "--require", "Clone: OUT_OF_PAGES")[0]
    status, result = ran(path, "--require", "everything")
    assert (3, True) == (status, "Reserve: SLOT_RANGE" in result["not_covered"])
    Path("result.json").unlink()
    assert (2, {}) == ran(path, "--require", "a full moon")
    assert "pool exactly full" in capsys.readouterr().err


def test_an_empty_recording_shows_nothing() -> None:
    """A header alone is legal, and undecided."""
    path = allocator()
    path.write_text(path.read_text(encoding="utf-8").splitlines()[0] + "\n", encoding="utf-8")

    assert (3, 0) == (ran(str(path))[0], ran(str(path))[1]["events"])


def test_a_page_that_no_row_shows_was_taken_again_only_if_more_were_taken_than_there_are(
    tmp_path: Path,
) -> None:
    """Four cells take both pages once; after a release one more page is one of them."""
    header = {"pages": 2, "page_size": 2, "slots": 2, "pages_per_seq": 2}
    filled = [
        {"step": "Reserve", "slot": 0},
        {"step": "Assign", "slot": 0, "prompt": [5], "params": {"max_new": 1}, "request": 1},
        {"step": "Allocate", "batch": [[0, position] for position in range(4)]},
    ]
    again = [{"step": "Free", "slot": 0}, *filled[:2], {"step": "Allocate", "batch": [[0, 0]]}]
    for taken, times in ((filled, 0), ([*filled, *again], 1)):
        path, head = tmp_path / "run.jsonl", {"kvspec": "recording", "version": VERSION}
        rows = [head | {"geometry": header}, *taken]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        corners = validate(path).coverage.corners

        assert (1, times) == (corners[FULL], corners[PAGE_REUSED])


@pytest.mark.parametrize("seen", [None, 0, 3, 5])
@pytest.mark.parametrize("wrong", [True, False])
def test_what_an_allocation_returns_is_judged_where_its_pages_are_known(
    seen: int | None, tmp_path: Path, *, wrong: bool
) -> None:
    """Also behind a page of another slot that no line has shown."""
    path = tmp_path / "r.jsonl"
    with writer.HistoryWriter(path, pages=8, page_size=4, slots=2, pages_per_seq=4) as history:
        history.step("Reserve", slot=0)
        history.step("Allocate", batch=[[0, 0]], saw={} if seen is None else {"rows": {0: [seen]}})
        history.step("Reserve", slot=1)
        given = [24, 25 + wrong]
        history.step("Allocate", batch=[[1, 0], [1, 1]], result=given, saw={"rows": {1: [6]}})

    found = validate(path).found

    assert wrong == (found is not None)
    assert found is None or found.line == 5
