"""The figures of a host that is ahead: they are of the same work, and agree with each other."""

import time
from typing import Any, Final

import pytest
from attrs import evolve

from conformance.benchmarks import ahead, timing
from conformance.benchmarks.ahead import Row
from impl.engine import Engine
from impl.setup import Setup
from spec.vocabulary import LAG, Limits

LIMITS: Final = evolve(timing.LIMITS, round_tokens=12)


def small(limits: Limits = LIMITS) -> Setup:
    """The exact model, whose draws are known."""
    return evolve(timing.exact(), limits=limits)


def test_each_lag_does_the_same_work_and_knows_of_a_stop_that_much_later() -> None:
    """Outputs are the same; a longer lag dispatches no fewer steps and knows no stop earlier."""
    requests = ahead.workload(small(), (), count=9, most=20)

    rows = ahead.measure(small(), (), requests, turns=2)

    assert [*range(LAG + 1)] == [row.lag for row in rows]
    assert 1 == len({row.tokens for row in rows})
    assert all(row.seconds > 0 for row in rows)
    assert all(0 <= share <= 1 for row in rows for share in (row.waits, row.late))
    assert sorted(row.steps for row in rows) == [row.steps for row in rows]
    for row in rows:
        assert 4 == len(row.known)
        assert all(0 <= known <= row.lag for known in row.known)
    assert max(rows[-1].known) == LAG
    assert 1.0 == rows[0].late  # without a lag each step is enqueued when the one before is done


class Report:
    """A report that is there when it is said to be."""

    ready = False

    def is_ready(self) -> bool:
        """Whether the device has done the call."""
        return self.ready


def test_the_device_waits_from_when_it_was_last_seen_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By hand, with a clock that is set: a report that was waited for says when the work ended."""
    clock, reports = [0.0], [Report() for _ in range(6)]
    given = iter(reports)

    def done(_engine: Engine, report: Report) -> None:
        report.ready, clock[0] = True, clock[0] + 10

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Engine, "start", lambda *_: next(given))
    monkeypatch.setattr(Engine, "finish", done)
    engine = ahead.Watched(small(), ())

    def start(at: float, name: str) -> Any:
        clock[0] = at
        return engine.start(name)

    start(1, "begin")
    assert (1.0, 0) == (engine.waited, engine.late)  # nothing was enqueued before
    first = start(2, "launch")
    assert (1.0, 1) == (engine.waited, engine.late)  # the device is at work
    engine.finish(first)  # until 12
    start(15, "deliver")
    start(16, "launch")
    assert (1.0 + 3.0, 2) == (engine.waited, engine.late)
    start(17, "launch")
    assert (1.0 + 3.0, 2) == (engine.waited, engine.late)
    reports[4].ready = True  # at some time since 17
    start(20, "launch")
    assert (1.0 + 3.0 + 3.0, 3) == (engine.waited, engine.late)
    assert [1] == engine.read


@pytest.mark.parametrize(("waits", "mark"), [(0.0499, ": met"), (0.05, ": NOT met")])
def test_the_table_has_each_lag_and_says_whether_the_target_is_met(
    waits: float, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand; the target is that of the longest lag."""
    rows = [Row(0, 10, 30, 2.0, 0.5, 1.0, (0, 0)), Row(2, 12, 30, 1.0, waits, 0.25, (2, 1))]

    ahead.show(rows)

    told = capsys.readouterr().out
    for part in (
        "5.0",
        "1.00 x",
        "50.0%",
        "12.0",
        "2.00 x",
        "25.0%",
        "1.50 steps, at most 2",
        mark,
    ):
        assert part in told
    assert mark in told
