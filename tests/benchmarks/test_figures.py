"""The figures of the benchmark: targets that are met, and what alone fails the run."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from conformance.benchmarks import run, timing
from conformance.benchmarks.run import Figure, Result
from conformance.engines import pool_copies
from impl import entries


@pytest.mark.parametrize("most", [None, 0.0, 1.5, 150.0])
@pytest.mark.parametrize("beside", [-0.25, 0.0, 0.25])
def test_a_target_is_met_up_to_its_limit(most: float | None, beside: float) -> None:
    """A figure meets its target up to the limit itself, and has no target without a limit."""
    figure = Figure("one", (most or 0.0) + beside, "x", most)

    assert (None if most is None else beside <= 0.0) is figure.met


@pytest.mark.parametrize("values", list(product([0.5, 1.0, 2.0], repeat=2)))
@pytest.mark.parametrize("copying", [(), ("write",), ("write", "clone")])
@pytest.mark.parametrize("quick", [True, False])
def test_only_a_copy_of_the_pool_fails(
    *,
    values: tuple[float, ...],
    copying: tuple[str, ...],
    quick: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A missed target is told and does not fail; an entry point that copies the pool does."""
    figures = tuple(Figure(str(at), value, "x", 1.0) for at, value in enumerate(values))
    result = Result(figures, dict.fromkeys(copying, ("why",)))
    monkeypatch.setattr(run, "measure", lambda *_, **__: result)
    path = tmp_path / "bench.json"

    status = run.main(["--json", str(path), *["--quick"] * quick])

    content = json.loads(path.read_text(encoding="utf-8"))
    assert (int(bool(copying)), "fails" if copying else "holds") == (status, content["verdict"])
    assert [value <= 1.0 for value in values] == [one["met"] for one in content["figures"]]
    assert {name: ["why"] for name in copying} == content["copying"]


class _Compiled:
    """What stands for a program, since compiling all of them takes long."""

    def lower(self, *_: object) -> "_Compiled":
        return self

    def compile(self) -> "_Compiled":
        return self


@pytest.mark.parametrize("names", [(), run.TOUCHING, entries.ALL])
def test_each_entry_point_is_judged_whatever_is_timed(
    names: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quick run times few entry points, and still looks for copies in all of them."""
    several = (
        "import_times",
        "allocation_growth",
        "pool_growth",
        "round_over_model",
        "prefix_hits",
    )
    for timed in several:
        monkeypatch.setattr(run, timed, lambda *_, **__: ())
    for one in ("reset_growth", "slots_growth"):
        monkeypatch.setattr(run, one, lambda *_, **__: Figure("one", 1.0, "x"))
    monkeypatch.setattr(timing, "compiled", lambda *_: _Compiled())
    monkeypatch.setattr(pool_copies, "entry_problems", lambda *_: ("why",))

    assert set(entries.ALL) == run.measure(names, turns=1).copying.keys()


def test_calls_are_made_in_turns_and_each_has_its_own_median() -> None:
    """The seconds of a call are the median of its own turns, and no call is made twice in a row."""
    order = list[int]()
    taken = {0: [5.0, 1.0, 3.0], 1: [70.0, 20.0, 40.0], 2: [0.0, 0.0, 900.0]}

    def call(at: int) -> timing.Timed:
        def timed() -> float:
            order.append(at)
            return taken[at][order.count(at) - 1]

        return timed

    found = timing.take_turns([call(at) for at in taken], turns=3)

    assert [3.0, 40.0, 0.0] == found
    assert [0, 1, 2] * 3 == order


@pytest.mark.deep
def test_every_entry_point_is_timed_where_it_is_legal() -> None:
    """None is refused on the state that it is timed on, or the benchmark would not end."""
    prepared = timing.Prepared(64, timing.programs(64))

    for name in entries.ALL:
        assert prepared.entry(name)() > 0
