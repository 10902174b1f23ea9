"""The cells of the grid, the ceilings of chips, the table, and comparison with a baseline."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve, fields
from cell_tools import EIGHT_BILLION, GOOD

from conformance.kernels.compile import baseline, cache, grid, launch, outcome, peaks, table
from conformance.kernels.compile.bundles import Loop
from conformance.kernels.compile.grid import Cell, Heads, heads
from conformance.kernels.compile.loops import Pass
from conformance.kernels.compile.outcome import Compiled, cell_from_dict
from spec.vocabulary.errors import InvalidInput

SHARE: Final = Cell(heads=Heads(8, 1, 128), page_size=16, chip="v6e")


def test_the_grid_has_146_cells() -> None:
    """105 in bfloat16, 28 in fp8, 7 in int8 and 6 on v5p, no cell twice; and 56 more on v4."""
    cells = grid.grid()
    on_v5p = [cell for cell in cells if cell.chip == "v5p"]
    by_kv = {
        kv: sum(cell.kv == kv and cell.chip != "v5p" for cell in cells)
        for kv in ("bfloat16", "float8_e4m3fn", "int8", "float32")
    }

    assert 146 == len(cells) == len(set(cells))
    assert {"bfloat16": 105, "float8_e4m3fn": 28, "int8": 7, "float32": 0} == by_kv
    assert 6 == len(on_v5p)
    assert 56 == len(grid.grid_on_v4())
    assert {(512, 64, 8192)} == {(cell.tokens, cell.seqs, cell.positions) for cell in cells}


def test_shapes_have_names() -> None:
    """Shapes are named by a model, by its share on devices, or by numbers."""
    assert Heads(32, 8, 128) == heads("llama-3-8b") == heads("32x8x128")
    assert [Heads(8, 2, 128), Heads(4, 1, 128), Heads(16, 2, 128), Heads(8, 1, 128)] == list(
        grid.SHARDS
    )
    assert Heads(8, 1, 128) == heads("llama-3-70b/8")
    assert ["llama-3-70b/8"] == list(grid.names(Heads(8, 1, 128)))
    assert len(grid.CHIPS) * 4 * 2 == len(set(grid.shards()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: heads("llama-9"),
        lambda: heads("llama-3-8b/3"),
        lambda: heads("llama-3-8b/x"),
        lambda: heads("32x8"),
        lambda: heads("32x0x128"),
        lambda: heads("9x2x128"),
        lambda: grid.cells(grid.SHAPES, chips=("v3",)),
        lambda: grid.cells(grid.SHAPES, chips=("v4",), kv=("float16",)),
        lambda: grid.cells(grid.SHAPES, chips=("v4",), page_sizes=(0,)),
        lambda: evolve(SHARE, q="int4"),
    ],
)
def test_cells_that_are_none_are_refused(make: Callable[[], object]) -> None:
    """A cell of an invalid shape, chip, dtype or page size is refused with the allowed values."""
    with pytest.raises(InvalidInput, match="allowed"):
        make()


def test_ceilings_are_shares_of_what_a_device_can_do() -> None:
    """Decoding that streams for longer than it computes has a bandwidth ceiling of 1."""
    streamed = EIGHT_BILLION.kv_bytes / peaks.PEAKS["v6e"].bytes_per_cycle

    assert 4096 == EIGHT_BILLION.kv_bytes
    assert 4.3 < streamed < 4.5
    assert 1.0 == peaks.mbu_ceiling(EIGHT_BILLION, 2.0)
    assert pytest.approx(0.5) == peaks.mbu_ceiling(EIGHT_BILLION, 2 * streamed)
    busy = 4 * 128 * 512 * 32 * 128 // 2**19
    share = {"cycles": 2 * busy, "tokens": 128, "kv_tokens": 512}
    assert 0.5 == peaks.mfu_ceiling(EIGHT_BILLION, **share)
    one_of_two = evolve(EIGHT_BILLION, chip="v5p")
    assert 0.25 == peaks.mfu_ceiling(one_of_two, **share | {"cycles": 8 * busy})
    assert 0.5 == peaks.mfu_ceiling(one_of_two, **share | {"cycles": 8 * busy}, cores=2)
    slow = 2 * one_of_two.kv_bytes / peaks.PEAKS["v5p"].bytes_per_cycle
    assert pytest.approx(0.5) == peaks.mbu_ceiling(one_of_two, slow)
    assert 1.0 == peaks.mbu_ceiling(one_of_two, slow, cores=2)


def test_clocks_are_in_the_range_of_such_chips() -> None:
    """The clocks derived from published peaks are close to the known clocks of the chips."""
    clocks = {chip: peak.clock / 1e9 for chip, peak in peaks.PEAKS.items()}

    expected = {"v4": 1.05, "v5e": 1.5, "v5p": 1.75, "v6e": 1.75, "7x": 2.2}
    assert expected == pytest.approx(clocks, rel=0.01)
    assert list(grid.CHIPS) == list(peaks.PEAKS)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, None),
        ({"verdict": "fails", "reason": "no room"}, "compiled, and now it fails: no room"),
        ({"verdict": "refused", "reason": "page"}, "compiled, and now it is refused: page"),
        ({"vmem": 1001}, "1001 bytes of vector memory, before 1000"),
        ({"vmem": 999, "spilled": 30}, None),
        ({"decode": Pass(401, 200, 1)}, "decode takes 401 cycles for 200 KV tokens"),
        ({"decode": Pass(800, 400, 1)}, None),
        ({"decode": Pass(801, 400, 1)}, "decode takes 801 cycles for 400"),
        ({"prefill": Pass(9001, 512, 128)}, "prefill takes 9001 cycles"),
        ({"prefill": Pass(9000, 512, 64)}, "prefill takes 9000 cycles"),
        ({"verdict": "undecided", "reason": "late"}, None),
    ],
)
def test_each_kind_of_regression_is_found(change: dict[str, Any], expected: str | None) -> None:
    """A lost cell, more vector memory and more cycles are regressions; equal figures are not."""
    before, now = table.targets([GOOD]), table.targets([evolve(GOOD, **change)])
    found = baseline.regressions(before, now)

    assert (expected is not None) == bool(found)
    assert expected is None or expected in found[0]
    assert [] == baseline.regressions(table.targets([evolve(GOOD, verdict="fails")]), now)


def test_what_cannot_be_compared_is_said() -> None:
    """A lost or undecided cell, lost figures and another compiler are reported as not compared."""
    other = evolve(GOOD, cell=SHARE)
    before = table.targets([GOOD, other])
    late = evolve(GOOD, verdict="undecided", reason="late")
    blind = evolve(GOOD, decode=None, versions={"jax": "0.11", "libtpu": "1"})

    assert [] == baseline.not_compared(before, before)
    assert ["8x1x128 bfloat16 page 16 on v6e: not in this run"] == baseline.not_compared(
        before, table.targets([GOOD])
    )
    assert "now it is undecided: late" in baseline.not_compared(before, table.targets([late]))[1]
    lost = baseline.not_compared(before, table.targets([blind, other]))
    assert "decode was known, and now it is not" in lost[0]
    assert "the compiler is another one: jax 0.10, libtpu 1 before" in lost[1]


def test_a_baseline_is_read_back(tmp_path: Path) -> None:
    """A baseline is read as it was written, and any other file is refused."""
    cache = tmp_path / "baseline.json"
    cache.write_text(json.dumps({"targets": table.targets([GOOD])}), encoding="utf-8")
    found = baseline.load(cache)

    assert table.targets([GOOD]) == found
    assert EIGHT_BILLION == cell_from_dict(found[0])
    odd = json.dumps({"targets": [{**found[0], "append": []}]})  # it is a part of the key
    for text in ("", "[]", '{"targets": [{}]}', '{"targets": 3}', odd):
        cache.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidInput, match="baseline"):
            baseline.load(cache)
    with pytest.raises(InvalidInput, match="baseline"):
        baseline.load(tmp_path / "none.json")


def test_the_table_tells_every_verdict() -> None:
    """The table has counts of verdicts, causes, a line for each cell, and a note on ceilings."""
    records = [
        GOOD,
        evolve(GOOD, cell=SHARE, verdict="fails", cause="vmem", reason="needs 3 of vmem"),
        evolve(GOOD, cell=evolve(SHARE, chip="v4"), verdict="undecided", cause="timeout"),
    ]

    assert {"ok": 1, "fails": 1, "refused": 0, "undecided": 1} == table.counts(records)
    expected = "1 of 3 grid points compile, 1 fails, 1 undecided; causes: 1 vmem, 1 timeout"
    assert expected == table.summary(records)
    head, one, two = table.overview(records).splitlines()
    assert ["shape", "KV", "v4/16", "v6e/16", "v6e/128"] == head.split()
    assert ["32x8x128", "llama-3-8b", "bfloat16", "-", "-", "ok"] == one.split()
    assert ["undecided", "fails", "-"] == two.split()[-3:]
    text = table.details(records)
    assert "needs 3 of vmem" in text
    assert "ceilings ignore how long copies take" in text
    silent = evolve(GOOD, decode=None, loops=(Loop(3, 10, 1),), not_known="cycles")
    assert "loops of 7" in table.details([silent])
    assert {str(EIGHT_BILLION): "cycles"} == table.unknown([silent])


def test_a_cell_of_ours_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept cell of ours is reused, unless sources changed; a foreign kernel is compiled again."""
    asked: list[str] = []

    def compile_cell(cell: grid.Cell, kernel: str, **_: object) -> Compiled:
        asked.append(kernel)
        return Compiled(kernel=kernel, cell=cell, verdict="ok", vmem=7)

    monkeypatch.setattr(launch, "compile_cell", compile_cell)
    cells, path = grid.cells(grid.SHAPES[:1], chips=("v5e",), page_sizes=(16,)), tmp_path / "kept"

    def run(kernel: str) -> list[int | None]:
        every = cache.compile_all(cells, kernel, path=path, update=lambda *_: None)
        return [record.vmem for record in every]

    assert [7] == run("tpu") == run("tpu")
    assert ["tpu"] == asked
    assert [7] == run("mine:f") == run("mine:f")
    assert ["tpu", "mine:f", "mine:f"] == asked
    monkeypatch.setattr(cache, "stamp", lambda _kernel: "other sources")
    assert [7] == run("tpu")
    assert "tpu" == asked[-1]


def test_a_verdict_alone_is_kept_for_those_who_ask_for_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept verdict serves requests for verdicts alone, and a record with figures serves all."""
    asked: list[bool] = []

    def compile_cell(cell: grid.Cell, kernel: str, *, figures: bool, **_: object) -> Compiled:
        asked.append(figures)
        known: dict[str, Any] = {"vmem": 7} if figures else {"not_known": outcome.NOT_ASKED}
        return Compiled(kernel=kernel, cell=cell, verdict="ok", **known)

    monkeypatch.setattr(launch, "compile_cell", compile_cell)
    cells, path = grid.cells(grid.SHAPES[:1], chips=("v5e",), page_sizes=(16,)), tmp_path / "kept"

    def run(plain: Collection[grid.Cell]) -> list[int | None]:
        every = cache.compile_all(cells, "tpu", path=path, update=lambda *_: None, plain=plain)
        return [record.vmem for record in every]

    assert [None] == run(cells) == run(cells)
    assert [7] == run(()) == run(()) == run(cells)
    assert [False, True] == asked
    cache._keep(
        cache.results_of(path), compile_cell(cells[0], "tpu", figures=False), cache.stamp("tpu")
    )
    assert [7] == run(cells)


CHANGED: Final[dict[str, Any]] = {
    "heads": Heads(8, 2, 64),
    "page_size": 32,
    "chip": "v5p",
    "kv": "int8",
    "q": "float32",
    "tokens": 7,
    "seqs": 3,
    "positions": 99,
    "pages": 5,
    "append": True,
}


@pytest.mark.parametrize("name", [one.name for one in fields(Cell)])
def test_every_field_of_a_cell_is_kept(name: str) -> None:
    """A cell that differs in one field is another one, also when it is read back."""
    other = evolve(SHARE, **{name: CHANGED[name]})

    back = outcome.from_dict(json.loads(json.dumps(evolve(GOOD, cell=other).as_dict())))

    assert evolve(GOOD, cell=other) == back
    assert SHARE != other


@pytest.mark.parametrize("chip", grid.CHIPS)
@pytest.mark.parametrize("cores", [1, 2])
def test_a_ceiling_is_that_of_the_cores_that_work(chip: str, cores: int) -> None:
    """Cycles of decoding are shared by the cores that the kernel uses, and by no others."""
    cell = evolve(EIGHT_BILLION, chip=chip)
    streamed = cell.kv_bytes / peaks.PEAKS[chip].bytes_per_cycle

    assert pytest.approx(cores / 8) == peaks.mbu_ceiling(cell, 8 * streamed, cores=cores)
