"""Costs of whole calls: figures by hand, the model, targets, and calls of a compiled kernel."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve
from jax.experimental import pallas as pl

from conformance.kernels import comparison, cost_figures, cost_page, cost_rows, kernel_under_test
from conformance.kernels.batches import PLAIN
from conformance.kernels.comparison_row import KERNELS, Row
from conformance.kernels.compile import (
    calls,
    compiling_process,
    launch,
    outcome,
    program,
    simulate,
)
from conformance.kernels.compile import costing as simulated
from conformance.kernels.compile.calls import Call
from conformance.kernels.compile.cost import Cost
from conformance.kernels.compile.grid import Cell, Heads
from conformance.kernels.compile.job import SCHEDULES, Job
from conformance.kernels.compile.loops import Pass
from conformance.kernels.compile.outcome import Compiled
from conformance.kernels.compile.peaks import PEAKS
from conformance.kernels.operands import Kernels, Nested

CELL: Final = Cell(heads=Heads(32, 8, 128), page_size=128, chip="v6e", positions=32768)
ONE_HEAD: Final = evolve(CELL, heads=Heads(8, 1, 128), page_size=16)
DECODED: Final = calls.decoding(2048)
FACTORS: Final = (240.0, 320.0, 27.0, 4400.0, 885.0, 1350.0)
"""Bundles of each part of a planted kernel."""
needs_libtpu = pytest.mark.skipif(
    launch.missing() is not None, reason=f"NOT CHECKED, no compiler for TPUs: {launch.missing()}"
)


def record(cell: Cell, **known: float) -> Compiled:
    """A record whose calls take so many cycles, or a million."""
    cycles = {call.name: known.get(call.name, 1e6) for call in calls.of(cell)}
    every = [
        Cost(call=name, issued=taken, awaited=taken, late=2 * taken)
        for name, taken in cycles.items()
    ]
    return Compiled(
        kernel="tpu", cell=cell, verdict="ok", costs=tuple(every), decode=Pass(3324, 2048, 1)
    )


def test_shares_are_of_what_is_needed() -> None:
    """Visible cells once, queries and results; pairs of a query and a cell that it sees."""
    kv, results = 64 * 2048 * 2 * 8 * 128 * 2, 64 * 32 * 128 * 2
    found = record(CELL, **{DECODED.name: 1e6})
    speed = 1.64e12 / (9.2e14 / (2 * 2 * 256 * 256 * 2))

    assert kv + 2 * results == calls.needed(CELL, DECODED)
    assert cost_figures.mbu(found, DECODED) == pytest.approx((kv + 2 * results) / speed / 1e6)
    assert cost_figures.mbu(found, DECODED, late=True) == pytest.approx(
        (kv + 2 * results) / speed / 2e6
    )
    assert cost_figures.microseconds(found, DECODED) == pytest.approx(1e12 / PEAKS["v6e"].clock)
    assert cost_figures.ratio(found, DECODED, calls.decoding(64)) == pytest.approx(1.0)
    whole = Call("prompt", ((4, 4), (2, 10)))
    assert (1 + 2 + 3 + 4) + (9 + 10) == whole.pairs
    assert (6, 14, 2) == (whole.queries, whole.cells, whole.pages(16))
    assert 4 * 29 * 32 * 128 == calls.operations(CELL, whole)
    asked = evolve(CELL, tokens=2048)
    share = 4 * (2048 * 2049 // 2) * 32 * 128 / (1e6 * PEAKS["v6e"].per_cycle)
    assert cost_figures.mfu(record(asked), calls.prompt(2048)) == pytest.approx(share)
    on_two = evolve(asked, chip="v5p")
    of_two = 4 * (2048 * 2049 // 2) * 32 * 128 / (1e6 * 2 * PEAKS["v5p"].per_cycle)
    assert cost_figures.mfu(record(on_two), calls.prompt(2048)) == pytest.approx(of_two)


def test_what_is_not_known_is_no_figure() -> None:
    """A call that was not understood has a reason and no figure; one of another size neither."""
    whole = record(CELL)
    lost = evolve(whole, costs=(Cost(call=DECODED.name, why="sdivrem"), *whole.costs[5:]))

    assert cost_figures.mbu(lost, DECODED) is None
    assert "sdivrem" == cost_figures.why_unknown(lost, DECODED)
    assert cost_figures.least_mbu(lost, [calls.decoding(8192), DECODED]) is None
    assert cost_figures.model(lost) is None
    assert cost_figures.mfu(whole, calls.prompt(2048)) is None
    assert "no cost of prompt 2048" == cost_figures.why_unknown(whole, calls.prompt(2048))
    assert whole == outcome.from_dict(whole.as_dict())


def planted(cell: Cell, step: int) -> Compiled:
    """A record whose decoded batches cost the sum of their parts."""
    bundles = {
        call.name: sum(
            factor * count
            for factor, count in zip(
                FACTORS, cost_figures.parts(cell, call, block=2048, step=step), strict=True
            )
        )
        for call in cost_figures.decoded(cell)
    }
    return record(cell, **bundles)


@pytest.mark.parametrize("step", [128, 256, 512])
def test_the_model_finds_what_was_planted(step: int) -> None:
    """From whole batches it finds the cost of each part, and the cells of a step."""
    found = cost_figures.model(planted(evolve(CELL, page_size=16), step))

    assert found is not None
    assert (2048, step) == (found.block, found.step)
    assert found.each == pytest.approx(FACTORS, rel=1e-3)
    assert found.error == pytest.approx(0.0, abs=1e-6)
    assert found.held == pytest.approx(0.0, abs=1e-6)


def test_a_model_has_no_negative_part() -> None:
    """Where a rest is one step, both are one part; a part that would be negative is none."""
    whole = planted(CELL, 2048)
    less = [evolve(cost, issued=cost.issued - 340) for cost in whole.costs]
    merged, cheap = cost_figures.model(whole), cost_figures.model(evolve(whole, costs=tuple(less)))

    assert merged is not None
    assert cheap is not None
    assert 2048 == merged.step
    expected = (*FACTORS[:4], FACTORS[4] + FACTORS[5], 0.0)
    assert merged.each == pytest.approx(expected, rel=1e-3)
    assert 0.0 == min(cheap.each)
    assert cheap.error > 0.01


@pytest.mark.parametrize("name", [calls.decoding(512).name, calls.drawn(1).name])
def test_a_batch_that_does_not_fit_the_model_is_noticed(name: str) -> None:
    """The error of batches that are fitted, and of drawn ones, is that of the worst."""
    whole = planted(CELL, 256)
    changed = [
        evolve(cost, issued=cost.issued * 1.5) if cost.call == name else cost
        for cost in whole.costs
    ]
    found = cost_figures.model(evolve(whole, costs=tuple(changed)))

    assert found is not None
    assert max(found.error, found.held) > 0.05
    if name.startswith("drawn"):
        assert found.held == pytest.approx(1 / 3, rel=0.01)


def aims() -> Iterator[tuple[Row, Cell, cost_rows.Aim]]:
    """Every target with a limit, with its line and grid point."""
    for row in cost_rows.rows():
        known: Mapping[Cell, list[cost_rows.Aim]] = row.judge.args[0]  # type: ignore[attr-defined]
        for cell, some in known.items():
            for aim in some:
                yield row, cell, aim


def scaled(cell: Cell, times: float) -> Compiled:
    """A record whose calls take a multiple of what any kernel needs; few queries take the most."""
    peak = PEAKS[cell.chip]
    known = {}
    for call in calls.of(cell):
        moved = calls.needed(cell, call) / peak.bytes_per_cycle
        computed = calls.operations(cell, call) / (peak.per_cycle * peak.cores)
        least = computed if "prompt" in call.name else moved
        least = 1e-6 * peak.clock if "short" in call.name else least
        known[call.name] = times * least * (times if "queries" in call.name else 1)
    return record(cell, **known)


@pytest.mark.parametrize(
    ("row", "cell", "aim"), [*aims()], ids=lambda one: getattr(one, "label", "")
)
def test_a_target_of_a_call_is_met_missed_or_open(row: Row, cell: Cell, aim: Any) -> None:
    """At the limit it is met, and beyond it is missed; another kernel's figure counts if asked."""
    every: dict[str, dict[Cell, Compiled]] = {
        kernel: {one: scaled(one, 300.0) for one in row.cells} for kernel in KERNELS
    }

    def judged(change: Compiled | None, *, of: str) -> tuple[bool, bool]:
        held = {kernel: {**of_kernel} for kernel, of_kernel in every.items()}
        if change is None:
            del held[of][cell]
        else:
            held[of][cell] = change
        found = row.judged(held)
        where = f", {aim.label}:"
        return any(where in one for one in found.missed), any(where in one for one in found.open)

    limit, base = aim.least or aim.most or 0.5, aim.value(scaled(cell, 1.0))
    good = base / limit if aim.most is None else limit / base
    every["tpu-inference"] = {one: scaled(one, 300.0 * good) for one in row.cells}
    assert (False, False) == judged(scaled(cell, good * 0.999), of="tpu")
    if aim.least is not None or aim.most is not None:
        assert (True, False) == judged(scaled(cell, good * 1.01), of="tpu")
    unknown = evolve(scaled(cell, 1.0), costs=())
    assert (False, True) == judged(unknown, of="tpu")
    every["tpu"][cell] = scaled(cell, good * 0.999)
    assert (aim.is_above, False) == judged(scaled(cell, good * 0.9), of="tpu-inference")
    assert (False, aim.is_above) == judged(None, of="tpu-inference")
    fails = evolve(unknown, verdict="fails")
    assert (False, False) == judged(fails, of="tpu-inference")


def test_the_page_has_every_kernel_in_an_entry() -> None:
    """An entry has our figure, that of v3 and of jax's, or why there is none."""
    many = calls.many_cells()
    held = {
        "tpu": {
            CELL: evolve(planted(CELL, 256), around=("pad.2", "pad.3", "copy.1")),
            many[2]: record(many[2]),
        },
        "tpu-inference": {CELL: evolve(record(CELL), costs=())},
        "jax": {CELL: evolve(record(CELL), verdict="fails")},
    }
    text = "\n".join(cost_page.section(held))
    line = next(one for one in text.splitlines() if one.startswith("| 32x8x128 bfloat16, v6e"))
    share = cost_figures.mbu(held["tpu"][CELL], calls.decoding(64))

    assert share is not None
    assert f"| {100 * share:.0f} / ? / x |" in line
    time = cost_figures.microseconds(held["tpu"][many[2]], calls.short(256))
    assert f"| {time:.0f} / . / . |" in text
    assert "| ours, 32x8x128 bfloat16, v6e, page 128 | 2,048, 256 | 240 | " in text
    assert "tpu-inference v3, 32x8x128" not in text
    assert "- ours: copy, pad.\n- tpu-inference v3: none are known." in text
    assert not any("v5e" in one for one in text.splitlines() if one.startswith("| 32x8x128"))


def test_grid_points_of_calls_are_compiled_with_figures() -> None:
    """Each has calls of its own; the others of the grid have none."""
    assert 60 + 20 + 20 + 4 + 4 + 4 == len(cost_figures.costed()) == len({*cost_figures.costed()})
    assert all(calls.of(cell) for cell in cost_figures.costed())
    assert not any(calls.of(cell) for cell in comparison.plain())
    for cell in cost_figures.costed():
        for call in calls.of(cell):
            assert len(call.lens) <= cell.seqs
            assert call.queries <= cell.tokens
            assert all(0 < kv_len <= cell.positions for _, kv_len in call.lens)
    names = [call.name for call in calls.of(CELL)]
    assert len(names) == len({*names})


def test_arguments_are_a_batch() -> None:
    """Lengths of the sequences, and page ids that are scattered or not."""
    call = Call("two", ((1, 40), (3, 17)))
    _, _, kv_lens, table, ends, number = simulated.arguments(ONE_HEAD, call)

    assert kv_lens is not None
    assert table is not None
    assert ends is not None
    assert number is not None
    assert [40, 17, 0] == kv_lens[:3].tolist()
    assert [0, 1, 4, 4] == ends[:4].tolist()
    assert 2 == number[0]
    assert (64, 2048) == table.shape
    assert (np.abs(np.diff(table[0])) > 1).all()
    beside = simulated.arguments(ONE_HEAD, evolve(call, neighbours=True))[3]
    assert beside is not None
    assert (np.diff(beside[0]) == 1).all()


def toy(lengths: Any, pool: Any) -> Any:
    """Two kernels, one of which is called in a program of its own, with what is made of lengths."""

    def kernel(lens: Any, _pool: Any, out: Any) -> None:
        out[...] = lens[...]

    def call(lens: Any) -> Any:
        kind = jax.ShapeDtypeStruct(lens.shape, lens.dtype)  # type: ignore[no-untyped-call]
        return pl.pallas_call(kernel, kind, name="toy")(lens, pool)

    inner = jax.jit(lambda lens: call(jnp.cumsum(lens)))
    return call(lengths * 2), inner(lengths), inner(lengths + 1)


def test_operands_of_kernels_are_evaluated() -> None:
    """Integers that depend on lengths are known, and those that depend on the pool are not."""
    lengths = jax.ShapeDtypeStruct((3,), jnp.int32)  # type: ignore[no-untyped-call]
    pool = jax.ShapeDtypeStruct((1 << 40,), jnp.int32)  # type: ignore[no-untyped-call]
    traced = jax.make_jaxpr(toy)(lengths, pool)
    kernels = Kernels(traced)
    found = [*map(simulated.known_of, kernels.operands([np.array([1, 2, 3], np.int32), None]))]

    assert ["toy"] * 3 == [params["name"] for params in kernels.each]
    assert [{0}] * 3 == [{*operands} for operands in found]
    expected = [[2, 4, 6], [1, 3, 6], [2, 5, 9]]
    assert expected == [operands[0].tolist() for operands in found]


def test_a_kernel_in_a_loop_is_not_counted_once() -> None:
    """How often it is called is not known, so nothing is said of it."""
    lengths = jax.ShapeDtypeStruct((3,), jnp.int32)  # type: ignore[no-untyped-call]

    def loop(lens: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, held: toy(held, held)[0], lens)

    with pytest.raises(Nested, match="a kernel inside scan"):
        Kernels(jax.make_jaxpr(loop)(lengths))


def test_the_schedule_of_a_kernel_is_found_by_its_name() -> None:
    """One file is of a kernel; none or two are not understood."""
    names = ("1-TLP-01-packed", "2-toy.1-01-packed", "3-toy_more.1-01-packed", "4-pad.2-01-packed")
    files = [Path(name) for name in names]

    assert files[1] == simulated.schedule_of("toy", files)
    with pytest.raises(program.NotUnderstood, match="0 schedules of none"):
        simulated.schedule_of("none", files)
    with pytest.raises(program.NotUnderstood, match="2 schedules of toy"):
        simulated.schedule_of("toy", [*files, Path("5-toy.2-01-packed")])


@needs_libtpu
def test_a_simulated_call_copies_what_its_batch_needs(tmp_path: Path) -> None:
    """Every visible page is read once, and results are written; no other count says so."""
    job = Job(kernel="tpu", cell=ONE_HEAD, options=PLAIN, given=None, result=str(tmp_path / "r"))
    job = evolve(job, result=str(tmp_path / launch.RESULT))
    found = launch._run(job.to_json(), tmp_path, 600.0, figures=True)
    assert "ok" == found["verdict"]
    subject = kernel_under_test.find("tpu")

    def call(*arrays: jax.Array) -> object:
        return subject.call(*arrays, options=PLAIN, chip="v6e", page_size=16)

    traced: Any = jax.jit(call).trace(*compiling_process.arguments(ONE_HEAD, of_rows=True)).jaxpr
    schedules = sorted((tmp_path / launch.DUMP).glob(SCHEDULES))
    path = simulated.schedule_of("kvspec_ragged_paged_attention", schedules)
    done = simulate.executable(program.parse(path.read_text(encoding="utf-8")))
    page = 16 * 2 * 128 * 2 // simulate.GRANULE
    for batch in (calls.decoding(1), calls.decoding(129), calls.drawn(0), calls.short(64)):
        (received,) = Kernels(traced).operands(simulated.arguments(ONE_HEAD, batch))
        run = simulate.run(done, simulated.known_of(received))

        assert batch.pages(16) * page == run.read[5]
        assert calls.results(ONE_HEAD, batch) == simulate.GRANULE * run.written[7]
        blocks = {begin: times for begin, times in run.visits.items() if times}
        assert run.cycles == sum(done.lengths[begin] * times for begin, times in blocks.items())


@needs_libtpu
def test_a_compiled_grid_point_has_the_costs_of_its_calls() -> None:
    """The record of a grid point that serves calls has a cost of each, that is understood."""
    cell = evolve(ONE_HEAD, tokens=256, seqs=256)
    found = launch.compile_cell(cell, "tpu")

    assert "ok" == found.verdict
    (cost,) = found.costs
    assert ("256 short sequences", "") == (cost.call, cost.why)
    assert 0 < cost.streamed < cost.awaited
    assert cost.issued <= cost.awaited <= cost.late
    assert cost.moved >= calls.needed(cell, calls.short(256)) // 2
    assert "broadcast_clamp_fusion" in found.around
