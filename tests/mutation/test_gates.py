"""The gates as a judge of mutants: the first call is the baseline of all others."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from deep import deep_after

from conformance.kernels.compile import launch
from conformance.kernels.compile.grid import Cell
from conformance.kernels.compile.loops import Pass
from conformance.kernels.compile.outcome import Compiled
from conformance.lockstep.watchdog import Watchdog
from conformance.mutation.judges import gates
from impl.attention import tpu
from impl.attention.tpu import blocks


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    """One that nothing makes bark."""
    with Watchdog(lambda _history, message: pytest.fail(message)) as made:
        yield made


def right(cell: Cell) -> Compiled:
    """A grid point that compiles."""
    step = Pass(100, 128, 16)
    return Compiled(kernel="tpu", cell=cell, verdict="ok", vmem=1000, decode=step, prefill=step)


WORSE: dict[str, dict[str, Any]] = {
    "lost": {"verdict": "fails", "reason": "no"},
    "refused": {"verdict": "refused", "reason": "no"},
    "memory": {"vmem": 1001},
    "decode": {"decode": Pass(101, 128, 16)},
    "prefill": {"prefill": Pass(100, 127, 16)},
}
BETTER: dict[str, dict[str, Any]] = {
    "memory": {"vmem": 999},
    "decode": {"decode": Pass(99, 128, 16)},
    "unknown": {"verdict": "undecided", "reason": "no"},
}


@pytest.mark.parametrize("point", range(len(gates.POINTS)))
@pytest.mark.parametrize(
    ("changes", "killed"),
    [*((one, True) for one in WORSE.values()), *((one, False) for one in BETTER.values())],
    ids=[*WORSE, *(f"{name} that is no regression" for name in BETTER)],
)
def test_a_regression_at_any_grid_point_kills(
    monkeypatch: pytest.MonkeyPatch,
    watchdog: Watchdog,
    point: int,
    changes: dict[str, Any],
    *,
    killed: bool,
) -> None:
    """A grid point that is lost, larger or slower kills; one that is better changes nothing."""

    def changed(cell: Cell) -> Compiled:
        made = right(cell)
        return evolve(made, **changes) if cell == gates.POINTS[point] else made

    monkeypatch.setattr(gates, "_BEFORE", [])
    monkeypatch.setattr(gates, "PLANNED", 0)
    monkeypatch.setattr(gates, "_compiled", right)
    assert gates.judge(watchdog) is None
    monkeypatch.setattr(gates, "_compiled", changed)
    for _ in range(2):
        assert killed == (gates.judge(watchdog) is not None)
    monkeypatch.setattr(gates, "_compiled", right)
    assert gates.judge(watchdog) is None


WRONG: list[tuple[str, str]] = [
    ("max(1, cells // shape.page_size)", "max(2, cells // shape.page_size)"),
    ("q_rows > max(rows, FEWEST)", "q_rows <= max(rows, FEWEST)"),
    ("64, 32, 16)", "64, 33, 16)"),
    ("high = SUBLANES if rows <= SUBLANES", "high = SUBLANES * 5 if rows <= SUBLANES"),
]
"""Parts of the planner of block sizes, and others with which some point has none."""


@pytest.mark.parametrize(("part", "other"), deep_after(1, WRONG), ids=[other for _, other in WRONG])
def test_a_point_that_has_no_block_sizes_any_more_kills(
    monkeypatch: pytest.MonkeyPatch, watchdog: Watchdog, part: str, other: str
) -> None:
    """Nothing is compiled for that. The first call is without a mutant here, too."""
    monkeypatch.setattr(gates, "_WITH_BLOCKS", [])
    monkeypatch.setattr(gates, "_BEFORE", [])
    monkeypatch.setattr(gates, "PLANNED", 100)
    monkeypatch.setattr(gates, "_compiled", right)
    assert gates.judge(watchdog) is None

    source = inspect.getsource(blocks)
    assert 1 == source.count(part)
    names = dict(vars(blocks))
    exec(source.replace(part, other), names)
    monkeypatch.setattr(tpu.planning, "plan", names["plan"])

    assert ": it had block sizes, and now it " in str(gates.judge(watchdog))


def test_the_environment_is_that_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dump goes to a folder that is there; without the compiler nothing is judged."""
    monkeypatch.setattr(launch, "missing", lambda: None)
    with gates.environment() as found:
        folder = Path(found[gates.FOLDER])
        assert folder.is_dir()
        assert str(folder / launch.DUMP) in found["LIBTPU_INIT_ARGS"]
    assert not folder.exists()
    monkeypatch.setattr(launch, "missing", lambda: "libtpu is missing. Run pip install it.")
    with pytest.raises(RuntimeError, match="libtpu is missing"), gates.environment():
        pass
