"""The table of three kernels: its counts, its unknown figures, and the targets that are missed."""

import json
from collections.abc import Callable
from functools import cache as cache_of_all
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve
from deep import deep_after

from conformance.cli import main
from conformance.kernels import comparison, comparison_page, cost_figures
from conformance.kernels.comparison_row import KERNELS, Judged, Row, name
from conformance.kernels.compile import cache, calls, grid
from conformance.kernels.compile.cost import Cost
from conformance.kernels.compile.grid import Cell
from conformance.kernels.compile.loops import Pass
from conformance.kernels.compile.outcome import Compiled
from conformance.kernels.compile.peaks import PEAKS

CELLS: Final = comparison.cells()
*WHOLE, GRID, ON_V4, SEVENTY, SHARES, CYCLES, BANDWIDTH, ARITHMETIC = comparison.rows()
VERSIONS: Final = {"jax": "0.10", "libtpu": "1"}
Every = dict[str, dict[Cell, Compiled]]


@cache_of_all
def good(kernel: str, cell: Cell, cycles: int = 100) -> Compiled:
    """A cell that compiles; 100 cycles give a ceiling of 1 for decoding and for prefill."""
    peak = PEAKS[cell.chip]
    busy = 4 * 128 * 512 * cell.heads.q * cell.heads.dim // (peak.per_cycle * peak.cores)
    return Compiled(
        kernel=kernel,
        cell=cell,
        verdict="ok",
        decode=Pass(cycles, 100, 1),
        prefill=Pass(busy * cycles // 100, 512, 128),
        versions=VERSIONS,
        costs=tuple(cost(cell, call, cycles / 100) for call in calls.of(cell)),
    )


def cost(cell: Cell, call: calls.Call, times: float) -> Cost:
    """The cost of a call: what it takes at the best, or 40 microseconds if it is short."""
    peak = PEAKS[cell.chip]
    streamed = calls.needed(cell, call) / peak.bytes_per_cycle
    computed = calls.operations(cell, call) / (peak.per_cycle * peak.cores)
    taken = 40e-6 * peak.clock if "short" in call.name else streamed
    taken = computed if "prompt" in call.name or "chunk" in call.name else taken
    return Cost(call=call.name, issued=times * taken, awaited=times * taken, late=2 * times * taken)


def lost(kernel: str, cell: Cell) -> Compiled:
    """A cell that fails for lack of vector memory."""
    why = "needs 20 MiB of vmem, limit 16 MiB"
    return Compiled(kernel=kernel, cell=cell, verdict="fails", cause="vmem", reason=why)


def records() -> Every:
    """Records in which ours compiles everything, and others fail on v6e and take twice as long."""
    found: Every = {"tpu": {cell: good("tpu", cell) for cell in CELLS}}
    for kernel in ("jax", "tpu-inference"):
        found[kernel] = {
            cell: lost(kernel, cell) if cell.chip == "v6e" else good(kernel, cell, 200)
            for cell in CELLS
        }
    return found


def test_every_cell_of_the_issue_is_in_the_table() -> None:
    """The table has 146 cells of the grid, 56 on v4, 15 of 70B, 40 of shares, and others."""
    loops = (1, 6, 4)
    known = tuple(len(row.cells) for row in comparison.rows())[len(WHOLE) :]
    whole = set(cost_figures.costed())
    assert (146, 56, 15, 40, *loops) == known
    assert len(set(CELLS)) == len(CELLS)
    assert {cell for row in comparison.rows() for cell in row.cells} | whole == set(CELLS)
    assert set(grid.grid()) <= set(CELLS)
    assert {cell for row in WHOLE for cell in row.cells} < whole
    assert WHOLE[0].cells[0] == CELLS[0]
    figured = {*CYCLES.cells, *BANDWIDTH.cells, *ARITHMETIC.cells, *whole}
    assert comparison.plain() == set(CELLS) - figured


def test_the_table_counts_what_it_was_given() -> None:
    """The table counts records by kernel and row, and shows missing ones as not measured."""
    found = records()
    on_v6e = sum(cell.chip == "v6e" for cell in GRID.cells)
    head, *lines = comparison_page.table(found)
    by_row = {line[0]: line[1:] for line in lines}

    assert ["what", "jax's kernel", "tpu-inference v3", "ours"] == head[:4]
    others = f"{146 - on_v6e} of 146 OK, {on_v6e} fail"
    assert [others, others, "146 of 146 OK", "every grid point OK", "met"] == by_row[GRID.what]
    assert ["does not compile"] * 2 + ["1.00"] == by_row[CYCLES.what][:3]
    assert by_row[BANDWIDTH.what][0].endswith("v6e/64: does not compile, v6e/128: does not compile")
    assert by_row[ARITHMETIC.what][0].startswith("v5e: 50%, v5p: 50%, v6e: does not compile")

    del found["jax"][GRID.cells[0]]
    found["jax"][GRID.cells[1]] = evolve(found["jax"][GRID.cells[1]], verdict="undecided")
    expected = f"{144 - on_v6e} of 146 OK, {on_v6e} fail, 1 not measured, 1 undecided"
    assert expected == comparison_page.table(found)[1 + len(WHOLE)][1]
    assert "not measured" == comparison.cycles(CYCLES.cells, {})
    unread = evolve(good("tpu", CYCLES.cells[0]), decode=None)
    assert "not known" == comparison.cycles(CYCLES.cells, {CYCLES.cells[0]: unread})


def judged(row: Row, change: Callable[[Every], Any]) -> Judged:
    """The judgement of our kernel in a row after a change of the records."""
    found = records()
    change(found)
    return row.judged(found)


def ours(row: Row, **changes: Any) -> Callable[[Every], None]:
    """A change of our kernel's record for the last cell of a row."""

    def change(found: Every) -> None:
        cell = row.cells[-1]
        found["tpu"][cell] = evolve(found["tpu"][cell], **changes)

    return change


@pytest.mark.parametrize("row", comparison.rows(), ids=lambda row: row.target)
def test_a_target_is_missed_open_or_met(row: Row) -> None:
    """A cell that fails misses the target of its row, and one without a result leaves it open."""
    cell = row.cells[-1]
    without = judged(row, lambda found: found["tpu"].pop(cell))
    undecided = judged(row, ours(row, verdict="undecided", reason="no time"))
    failed = judged(row, ours(row, verdict="refused", reason="too wide"))

    assert [f"{name(cell)}: not measured"] == without.open
    assert [f"{name(cell)}: undecided: no time"] == undecided.open
    assert [f"{name(cell)}: refused: too wide"] == failed.missed
    assert without.missed == undecided.missed == failed.open == []


@pytest.mark.parametrize(
    ("row", "change", "missed", "unknown"),
    [
        (CYCLES, ours(CYCLES, decode=Pass(186, 100, 1)), "1.860 cycles, at most 1.85", ""),
        (CYCLES, ours(CYCLES, decode=Pass(185, 100, 1)), "", ""),
        (CYCLES, ours(CYCLES, decode=None, not_known="no loop"), "", "no loop"),
        (BANDWIDTH, ours(BANDWIDTH, decode=Pass(1000, 100, 1)), "at least 95%", ""),
        (BANDWIDTH, ours(BANDWIDTH, decode=None, not_known="no loop"), "", "no loop"),
        (ARITHMETIC, ours(ARITHMETIC, prefill=None, not_known="no loop"), "", "no loop"),
        (ARITHMETIC, lambda found: found["jax"].pop(ARITHMETIC.cells[0]), "", "jax's kernel is"),
    ],
)
def test_a_planted_figure_is_noticed(
    row: Row, change: Callable[[Every], Any], missed: str, unknown: str
) -> None:
    """A figure that is worse than the target misses it, and an unknown one leaves it open."""
    found = judged(row, change)

    for expected, told in ((missed, found.missed), (unknown, found.open)):
        assert (1 if expected else 0) == len(told)
        assert all(expected in text for text in told)


def test_another_kernel_that_is_as_good_is_noticed() -> None:
    """The target for prefill is to exceed both other kernels on every chip where they compile."""
    cell = ARITHMETIC.cells[0]
    found = judged(ARITHMETIC, lambda every: every["jax"].update({cell: good("jax", cell)}))

    assert 1 == sum("jax's kernel has" in text for text in found.missed)
    assert not any("tpu-inference v3 has" in text for text in found.missed)


def test_the_page_names_what_does_not_compile_and_why() -> None:
    """The page lists failures of others by cause and ours by cell, and calls figures ceilings."""
    found = records()
    cell = SHARES.cells[-1]
    found["tpu"][cell] = lost("tpu", cell)
    page = comparison_page.page(found, date="2026-01-01")
    on_v6e = sum(one.chip == "v6e" for one in CELLS)

    assert f"- vmem, {on_v6e}: the first fails: needs 20 MiB of vmem, limit 16 MiB. " in page
    assert f"\n- {cell}: fails: needs 20 MiB of vmem, limit 16 MiB\n" in page
    assert 2 == page.count("limit 16 MiB. 32x8x128 bfloat16, 32,768 positions: v6e/128 v6e/16")
    assert 2 == page.count("; 32x8x128 bfloat16: v6e/128 v6e/64")
    assert 2 == page.count("; 32x8x128 bfloat16, 2,048 tokens: v6e/128;")
    assert "In the lines of inner loops ceilings ignore how long copies take" in page
    assert "with jax 0.10, libtpu 1" in page
    assert "| missed |" in page


def test_kept_cells_are_compared_without_a_compiler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kept cells make the table, the others are not measured, and the verdict is open or fails."""
    held, result, page = (tmp_path / name for name in ("cells.jsonl", "r.json", "page.md"))
    argv = ["compare", "--kept", "--results", str(held), "--json", str(result)]
    cell = CYCLES.cells[0]
    cache._keep(cache.results_of(held), good("tpu", cell), cache.stamp("tpu"))
    assert 3 == main.main([*argv, "--write", str(page)])
    found = json.loads(result.read_text(encoding="utf-8"))

    assert ["1.00"] == [line["tpu"] for line in found["table"] if line["what"] == CYCLES.what]
    assert {"not measured"} == {
        line["jax"] for line in found["table"] if line["what"] == CYCLES.what
    }
    assert f"ours, {len(CELLS) - 1} grid points: not measured" in found["not_checked"]
    assert "1 of 146 OK, 145 not measured" in page.read_text(encoding="utf-8")
    assert "1 of 146 OK, 145 not measured" in capsys.readouterr().out

    late = evolve(good("jax", cell), verdict="undecided", reason="no answer")
    cache._keep(cache.results_of(held), late, cache.stamp("jax"))
    assert 3 == main.main(argv)
    assert f"jax's kernel, {cell}: no answer" in capsys.readouterr().out

    slow = evolve(good("tpu", cell), decode=Pass(300, 100, 1))
    cache._keep(cache.results_of(held), slow, cache.stamp("tpu"))
    assert 1 == main.main(argv)
    assert "3.000 cycles, at most 1.85" in capsys.readouterr().out


@pytest.mark.parametrize("verdict", ["ok", "fails", "refused", "undecided", "absent"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "row", deep_after(1, [GRID, SHARES, ARITHMETIC]), ids=["grid", "shares", "arithmetic"]
)
def test_any_one_grid_point_decides_as_its_kernel_does(
    row: Row, kernel: str, verdict: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not known of any kernel leaves the verdict open; a failure of ours alone fails."""
    found, page, cell = records(), tmp_path / "page.md", row.cells[-1]
    if verdict == "absent":
        del found[kernel][cell]
    elif verdict != "ok":
        why = "a reason of its own"
        found[kernel][cell] = evolve(lost(kernel, cell), verdict=verdict, reason=why, cause="own")
    monkeypatch.setattr(cache, "load", lambda _results, name, **_: found[name])

    argv = ["--kept", "--results", str(tmp_path / "none"), "--write", str(page)]
    seen = main.main(["compare", *argv])

    is_lost = verdict in {"fails", "refused"}
    is_open = verdict in {"undecided", "absent"}
    assert (3 if is_open else int(is_lost and kernel == "tpu")) == seen
    text = page.read_text(encoding="utf-8")
    if row is ARITHMETIC or kernel == "tpu":  # of other kernels it has the figures alone
        states = {one[0]: one[-1] for one in comparison_page.table(found)}
        of_ours = "missed" if is_lost and kernel == "tpu" else "met"
        assert ("open" if is_open else of_ours) == states[row.what]
    losses = text.partition("## What does not compile")[2]
    assert is_lost == (f"{verdict}: a reason of its own" in losses)


@pytest.mark.parametrize(
    ("row", "limit", "change"),
    [
        (CYCLES, comparison.MOST_CYCLES, lambda at: {"decode": Pass(round(at * 1000), 1000, 1)}),
        (ARITHMETIC, 1 / comparison.LEAST_MFU, lambda at: {"prefill": at}),
    ],
    ids=["cycles", "arithmetic"],
)
@pytest.mark.parametrize("times", [0.99, 1.0, 1.01])
def test_a_limit_that_is_met_exactly_is_met(
    row: Row, limit: float, change: Callable[[float], dict[str, Any]], times: float
) -> None:
    """A figure at its limit meets the target, and one beyond misses it."""
    cell = row.cells[-1]
    changed = change(limit * times)
    if "prefill" in changed:
        step = good("tpu", cell).prefill
        assert step is not None
        changed = {"prefill": Pass(int(step.cycles * changed["prefill"]), step.cells, step.tokens)}

    found = judged(row, ours(row, **changed))

    assert (times > 1.0) == any("at least" in text or "at most" in text for text in found.missed)
