"""Replay of real traffic: a right engine holds without leaks, and errors are reported."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from attrs import evolve
from deep import deep_after
from spec_engine import SpecEngine

from conformance.cli import main
from conformance.cli.replay import ENGINE
from conformance.engines import ours
from conformance.engines.registry import load_engine
from conformance.files import atomic
from conformance.fuzzing import counterexamples, shrinking
from conformance.history import Step
from conformance.lockstep import watchdog
from conformance.lockstep.run import Finding
from conformance.lockstep.watchdog import Watchdog
from conformance.protocol import Action, Result
from conformance.traffic import replay, traces
from spec.machines import naive
from spec.machines.actions import Admit, Submit
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    InvalidInput,
    Params,
    Reason,
    Refusal,
    Request,
    default_limits,
    refused,
)

OnHang = Callable[[tuple[Step, ...], str], None]
SHARED = Path(__file__).parents[3] / "shared" / "traces"
FILES = {"azure": "azure_conv_2023.csv", "mooncake": "mooncake_conversation.jsonl"}
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,260
2023-11-16 18:15:50.9951690,396,301
2023-11-16 18:15:51.2224670,879,55
2023-11-16 18:15:51.3910170,91,16
2023-11-16 18:15:52.5713710,91,0
"""
MOONCAKE = """{"timestamp": 0, "input_length": 700, "output_length": 600, "hash_ids": [0, 1]}
{"timestamp": 0, "input_length": 1200, "output_length": 900, "hash_ids": [0, 1, 2]}
{"timestamp": 7, "input_length": 512, "output_length": 1, "hash_ids": [3]}
{"timestamp": 8, "input_length": 513, "output_length": 33, "hash_ids": [3, 4]}
{"timestamp": 9, "input_length": 1, "output_length": 500, "hash_ids": [5]}
"""
SAMPLES = {"azure": AZURE, "mooncake": MOONCAKE}
FIRST = 25
TWO_SLOTS = ("--format", "azure", "--slots", "2")
SIZES = Geometry(pages=344, page_size=16, slots=2, pages_per_seq=172)
LIMITS = evolve(default_limits(SIZES), stops=1, stop_len=1)


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The azure sample as a file in an empty folder, which becomes the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sample.csv"
    path.write_text(AZURE, encoding="utf-8")
    return path


def served(path: Path, format: str, *, limit: int | None, hits: bool = False) -> replay.Tally:
    """The tally of a replay, with one geometry for all tests, so that the engine compiles once."""
    rows = islice(traces.load(path, format), limit)
    totals = traces.totals(traces.scale(row) for row in rows)
    engine = ours.make_without_cells(SIZES, LIMITS, CleanupMode.INCREMENTAL)
    tally, told = replay.Tally(), list[int]()
    traffic = replay.requests(path, format, page_size=16, limit=limit)

    replay.replay(engine, traffic, tally=tally, update=told.append, hits=hits)

    assert None is tally.finding, counterexamples.describe(tally.finding)
    assert sorted(told) == told
    assert (totals.requests, totals.prompt_tokens) == (tally.requests, tally.prompt_tokens)
    assert totals.new_tokens == tally.new_tokens
    assert tally.steps == len(tally.history)
    return tally


@pytest.mark.parametrize("format", traces.FORMATS)
def test_a_sample_of_each_format_holds(format: str, tmp_path: Path) -> None:
    """Five requests wait for two slots, are served, and leave every page free."""
    path = tmp_path / "sample"
    path.write_text(SAMPLES[format], encoding="utf-8")

    tally = served(path, format, limit=None)

    assert (5, 0) == (tally.requests, tally.leaked_pages)
    assert 0 < tally.refused


@pytest.mark.parametrize(
    ("format", "hits"), deep_after(1, [("azure", False), ("mooncake", True), ("mooncake", False)])
)
def test_the_first_requests_of_real_traffic_hold(format: str, *, hits: bool) -> None:
    """Real requests get the tokens of naive decoding, and leave every page free."""
    path = SHARED / FILES[format]
    if not path.is_file():
        pytest.skip(f"not checked: {FILES[format]} is not beside this repository")

    tally = served(path, format, limit=FIRST, hits=hits)

    assert (FIRST, 0) == (tally.requests, tally.leaked_pages)


def test_a_sample_hits_the_blocks_that_it_names(tmp_path: Path) -> None:
    """Of nine blocks two were there; one was not published, as its last round ended its request."""
    path = tmp_path / "sample"
    path.write_text(MOONCAKE, encoding="utf-8")

    sharing = served(path, "mooncake", limit=None, hits=True).sharing

    assert sharing is not None
    assert (9, 1, 2) == (sharing.blocks, sharing.hit, sharing.known)
    assert {1, 2} == sharing.queued


@pytest.mark.parametrize("seed", range(20))
def test_one_pass_gives_what_recomputing_each_prefix_gives(seed: int) -> None:
    """Greedy and drawn, ended by a limit or by a stop, for each of two choices."""
    prompt = tuple(seed * place % 11 for place in range(1 + seed % 5))
    free = Params(max_new=6, temperature=float(seed % 2), seed=seed)
    text = naive.generate(prompt, free, 1)[0]
    for stop in (None, text[2:3], text[1:4], (text[2], text[2])):
        params = evolve(free, stops=(stop,) if stop else ())
        request = Request(id=0, prompt=prompt, params=params, n_generations=2)
        for choice in range(2):
            assert naive.generate(prompt, params, choice) == replay.alone(request, choice)


def test_pages_have_one_cell_where_blocks_are_pages(tmp_path: Path) -> None:
    """The default by format is in the geometry, and the report says what no such page can show."""
    found = []
    for format, text in SAMPLES.items():
        path, result = tmp_path / format, tmp_path / f"{format}.json"
        path.write_text(text, encoding="utf-8")
        engine = ("--engine", "spec_engine:make_without_cells", "--in-process")
        main.main(["replay", str(path), "--format", format, *engine, "--json", str(result)])
        report = json.loads(result.read_text(encoding="utf-8"))
        skipped = "pages that are full in part" in json.dumps(report["not_checked"])
        found.append((format, report["geometry"]["page_size"], skipped))

    assert [("azure", 16, False), ("mooncake", 1, True)] == found


def asked(count: int) -> Iterator[Request]:
    """Requests of five or seven tokens; some prompts have been there twenty requests before."""
    for number in range(count):
        text = number - 20 if number % 3 == 2 and number >= 20 else number
        prompt = (text % 50, 1, 2, text % 7, 4, *([5, 6] if text % 2 else []))
        yield Request(id=number, prompt=prompt, params=Params(max_new=1 + number % 2, seed=number))


def test_a_small_pool_evicts_what_a_large_one_hits() -> None:
    """Outputs are those of naive decoding in both, and the counts are what the index had."""
    tallies = []
    for pages in (10, 400):
        sizes = Geometry(pages=pages, page_size=2, slots=2, pages_per_seq=5)
        engine = SpecEngine(sizes, default_limits(sizes), CleanupMode.INCREMENTAL)
        tally = replay.Tally()
        replay.replay(engine, asked(40), tally=tally, update=lambda _done: None, hits=True)
        assert (None, 40, 0) == (tally.finding, tally.requests, tally.leaked_pages)
        assert tally.sharing is not None
        tallies.append((tally.sharing.hit, tally.sharing.known, tally.evicted > 0))

    known = 7 * 2 + 3  # seven prompts have been there, three of them have three pages
    assert (known, known, False) == tallies[1]
    assert tallies[0][0] < known == tallies[0][1]
    assert tallies[0][2]


def test_sizes_that_no_request_fits_are_refused() -> None:
    """The message names the step that was refused, and nothing waits for ever."""
    sizes = Geometry(pages=10, page_size=2, slots=2, pages_per_seq=5)
    limits = evolve(default_limits(sizes), queue=2, prefill_tokens=4)
    engine = SpecEngine(sizes, limits, CleanupMode.INCREMENTAL)
    with pytest.raises(InvalidInput, match="PREFILL_WIDTH"):
        replay.replay(engine, asked(2), tally=replay.Tally(), update=lambda _done: None, hits=True)


def test_the_command_reports_what_it_served(sample: Path) -> None:
    """The result has the counts of the traffic, and lists what is not checked."""
    engine = ("--engine", "spec_engine:make_without_cells")
    assert 0 == main.main(["replay", str(sample), *TWO_SLOTS, *engine, "--json", "r.json"])
    found = json.loads(Path("r.json").read_text(encoding="utf-8"))

    assert ("holds", "complete", 5) == (found["verdict"], found["scope"], found["requests"])
    assert (116, 42, 0) == (found["prompt_tokens"], found["new_tokens"], found["leaked_pages"])
    assert 158 == found["tokens"]
    assert 0 < found["steps"]
    assert (16, 16) == (found["lengths_divided_by"], found["new_tokens_divided_by"])
    assert [
        "CONTENT, READ and FRAME cell by cell",
        "PC, pages that are found again by their content",
        "the lengths and times of the trace",
    ] == [line.partition(":")[0] for line in found["not_checked"]]


def test_a_part_of_a_trace_is_a_sample(sample: Path) -> None:
    """What is left out at the start is not served, and new tokens have a divisor of their own."""
    words = ("--engine", "spec_engine:make_without_cells", "--skip", "2", "--json", "r.json")

    assert 0 == main.main(
        ["replay", str(sample), *TWO_SLOTS, *words, "--new-tokens-divided-by", "64"]
    )
    found = json.loads(Path("r.json").read_text(encoding="utf-8"))

    rows = [*traces.load(sample, "azure")][2:]
    assert ("sampled", len(rows)) == (found["scope"], found["requests"])
    assert sum(max(1, -(-row.new_tokens // 64)) for row in rows) == found["new_tokens"]
    assert (16, 64) == (found["lengths_divided_by"], found["new_tokens_divided_by"])


def test_a_leak_is_reported(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page that stays counted fails, and leaves a history of one request and a test."""
    engine = ("--engine", "spec_engine:make_leaky")

    assert 1 == main.main(["replay", str(sample), *TWO_SLOTS, *engine, "--corpus", "kept"])
    out = capsys.readouterr().out
    assert "FAILS: CONS: counts[" in out
    assert 1 == out.count("Request(")
    assert ["jsonl", "py"] == sorted(path.suffix[1:] for path in Path("kept").iterdir())


@pytest.mark.parametrize("leaked", [None, 0, 1, 2])
@pytest.mark.parametrize("refused_first", [0, 1])
@pytest.mark.parametrize("limit", [None, 1, 4, 5, 6])
def test_the_tally_and_the_limit_decide_what_the_command_says(
    limit: int | None,
    refused_first: int,
    leaked: int | None,
    sample: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any leaked page fails, and only a replay without a limit is complete."""

    def replayed(*_: object, tally: replay.Tally, **__: object) -> None:
        tally.refused, tally.leaked_pages = refused_first, leaked

    monkeypatch.setattr(replay, "replay", replayed)
    engine = ("--engine", "spec_engine:make_without_cells", "--in-process", "--json", "r.json")
    stops = () if limit is None else ("--limit", str(limit))

    status = main.main(["replay", str(sample), *TWO_SLOTS, *engine, *stops])

    found = json.loads(Path("r.json").read_text(encoding="utf-8"))
    assert (1 if leaked else 0) == status
    assert ("fails" if leaked else "holds") == found["verdict"]
    assert ("complete" if limit is None else "sampled") == found["scope"]
    assert (leaked, refused_first) == (found["leaked_pages"], found["refused"])
    words = [f"CONS: {leaked} pages are in use after the last request"] if leaked else []
    assert words == found["failures"]


@pytest.mark.parametrize("message", [replay.STALLS, "counts are wrong"])
def test_a_full_disk_does_not_cost_the_finding(
    message: str, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finding that cannot be saved, shrunk or not, fails the replay, and its history is told."""

    def replayed(*_: object, tally: replay.Tally, **__: object) -> None:
        tally.finding = Finding((Admit(),), "PROG", message)

    def full(_path: object, _content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(replay, "replay", replayed)
    monkeypatch.setattr(shrinking, "shrink", lambda _make, found, **_: found)
    monkeypatch.setattr(atomic, "write", full)
    engine = ("--engine", "spec_engine:make_without_cells", "--in-process")

    status = main.main(["replay", str(sample), *TWO_SLOTS, *engine, "--corpus", "kept"])

    assert 1 == status


def test_what_hangs_while_a_finding_is_shrunk_does_not_replace_it(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding is kept as it stood."""
    hooks = list[OnHang]()

    class Watched(Watchdog):
        def __init__(self, on_hang: OnHang) -> None:
            hooks.append(on_hang)
            super().__init__(on_hang)

    def replayed(*_: object, tally: replay.Tally, **__: object) -> None:
        tally.finding = Finding((Admit(), Admit()), "RC", "counts are wrong")

    def hangs(*_: object, **__: object) -> None:
        hooks[-1]((Admit(),), "a step does not return")

    def over(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(watchdog, "Watchdog", Watched)
    monkeypatch.setattr(replay, "replay", replayed)
    monkeypatch.setattr(shrinking, "shrink", hangs)
    monkeypatch.setattr(os, "_exit", over)
    words = ("--engine", "spec_engine:make_without_cells", "--in-process", "--json", "r.json")

    status = main.main(["replay", str(sample), *TWO_SLOTS, *words, "--corpus", "kept"])

    failures = json.loads(Path("r.json").read_text(encoding="utf-8"))["failures"]
    assert 1 == status
    assert "RC: counts are wrong (after 2 steps)" == failures[0]
    assert not any("PROG" in one for one in failures)


def test_leaks_are_not_checked_without_counts(sample: Path) -> None:
    """The report says so: no page that stays counted could be seen."""
    engine = ("--engine", "spec_engine:WithoutCounts")
    assert 0 == main.main(["replay", str(sample), *TWO_SLOTS, *engine, "--json", "r.json"])
    found = json.loads(Path("r.json").read_text(encoding="utf-8"))

    assert found["leaked_pages"] is None
    assert "pages that leak: the engine does not show counts" in found["not_checked"]


class Picky(SpecEngine):
    """The specification, as an engine that may refuse more, and does not take request 1."""

    def __init__(self) -> None:
        super().__init__(SIZES, LIMITS, CleanupMode.INCREMENTAL)
        self.profile = evolve(self.profile, refuses="may_refuse_more")

    def apply(self, action: Action) -> Result:
        """Take an action, but for one request."""
        if isinstance(action, Submit) and action.request.id == 1:
            raise refused([Refusal(Reason.NEVER_FITS, None, None)])
        return super().apply(action)


def test_a_request_that_is_refused_ends_the_replay(sample: Path) -> None:
    """It is not left out in silence."""
    traffic = replay.requests(sample, "azure", page_size=16, limit=None)
    with pytest.raises(InvalidInput, match="request 1: saw 'NEVER_FITS'"):
        replay.replay(Picky(), traffic, tally=replay.Tally(), update=lambda _: None)


def test_the_command_serves_with_our_engine_unless_told_otherwise() -> None:
    """The default engine is ours without reading cells back, which suits large pools."""
    assert ours.make_without_cells is load_engine(ENGINE)


@pytest.mark.parametrize(
    ("text", "words", "part"),
    [
        (AZURE.replace(",91,16", ",91,x"), [], "sample.csv, line 5: saw "),
        (AZURE.replace(",91,16", ",91"), [], "sample.csv, line 5: saw "),
        (AZURE.replace(",91,16", ",0,16"), [], "sample.csv, line 5: saw "),
        (AZURE.replace("TIMESTAMP", "TIME"), [], "sample.csv, line 1: saw "),
        ("", [], "sample.csv, line 1: saw 'an empty file'"),
        (AZURE, ["--limit", "0"], "--limit"),
        (AZURE, ["--slots", "0"], "--slots"),
        (AZURE, ["--page-size", "x"], "--page-size"),
        (AZURE, ["--engine", "nowhere:make"], "no module nowhere"),
        (None, [], "No such file"),
    ],
)
def test_bad_input_is_2_and_one_line(
    sample: Path,
    text: str | None,
    words: list[str],
    part: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A malformed trace or option gives one line of bad input, before any request is served."""
    if text is None:
        sample.unlink()
    else:
        sample.write_text(text, encoding="utf-8")

    status = main.main(["replay", str(sample), "--format", "azure", *words])

    assert 2 == status
    out, err = capsys.readouterr()
    assert (1, True) == (len(err.splitlines()), part in err), err
    assert "holds" not in out
