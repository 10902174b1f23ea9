"""A host that does not wait, on traffic: naive outputs at each lag, and what is wrong is told."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve
from jax import Array

from conformance.benchmarks import ahead_traffic
from conformance.benchmarks.ahead_traffic import Asked, Served, asked, main, serve
from conformance.seeded_bugs import forget_compiled, replaced
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from impl.state.flights import Flights
from spec.vocabulary import (
    LAG,
    CleanupMode,
    FinishReason,
    Geometry,
    Params,
    Request,
    default_limits,
)

SHARED: Final = Path(__file__).parents[3] / "shared" / "traces"
WORDS: Final = {
    "azure_conv_2023.csv": ["--format", "azure"],
    "mooncake_conversation.jsonl": ["--format", "mooncake", "--new-tokens-divided-by", "64"],
}
REQUESTS: Final = {"azure_conv_2023.csv": 19_366, "mooncake_conversation.jsonl": 12_031}
SMALL: Final = Geometry(pages=12, page_size=4, slots=4, pages_per_seq=6)


def engine() -> Engine:
    """A small engine with the exact model."""
    limits = evolve(default_limits(SMALL), round_tokens=8)
    return Engine(
        Setup(geometry=SMALL, limits=limits, cleanup=CleanupMode.INCREMENTAL, model=IntegerModel())
    )


def traffic() -> list[Asked]:
    """Requests that fill the slots a few times."""
    return asked(
        Request(
            id=number,
            prompt=tuple(range(1, 3 + number % 7)),
            params=Params(max_new=3 + number % 5, temperature=float(number % 2), seed=number),
        )
        for number in range(24)
    )


def test_each_lag_serves_everything() -> None:
    """Every third request stops in the middle; a late stop leaves a slot to a step in flight."""
    coming = traffic()
    stopped = [one for one in coming if one.answer[1] is FinishReason.STOP]
    assert stopped == coming[::3]

    runs = [serve(engine(), coming, lag=lag) for lag in range(LAG + 1)]
    assert all((one.wrong, one.left) == ((), ()) for one in runs)
    assert runs[0].held == 0 < runs[LAG].held
    assert runs[0].steps < runs[LAG].steps


def test_a_bug_of_the_engine_is_told() -> None:
    """Steps in flight go on with a slot whose sequence has ended: without a lag there are none."""

    def still_current(_abandon: Callable[[Flights, Array], Flights]) -> Callable[..., Flights]:
        return lambda held, _slots: held

    with ExitStack() as stack:
        stack.callback(forget_compiled)
        stack.enter_context(replaced("impl.state.flights", "abandon", still_current))
        forget_compiled()
        runs = [serve(engine(), traffic(), lag=lag) for lag in range(LAG + 1)]
    assert [False, True, True] == [bool(one.wrong or one.left) for one in runs]


def test_what_is_wrong_or_left_ends_with_status_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table names the requests, and what the device has."""
    trace = tmp_path / "trace.csv"
    rows = (f"2023-11-16 18:15:{second:02}.0,{64 * second + 64},64\n" for second in range(6))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    assert main([str(trace), "--limit", "2"]) == 0

    found = Served(lag=2, steps=3, held=0, wrong=(17,), left=("4 held slots",))
    for told in (evolve(found, wrong=()), evolve(found, left=())):

        def serves(*_given: Any, told: Served = told, **_named: Any) -> Served:
            return told

        monkeypatch.setattr(ahead_traffic, "serve", serves)
        capsys.readouterr()
        assert main([str(trace)]) == 1
        printed = capsys.readouterr().out
        assert ("17" in printed, "4 held slots" in printed) == (bool(told.wrong), bool(told.left))


@pytest.mark.deep
@pytest.mark.parametrize("name", WORDS)
def test_real_traffic(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Both traces are served whole at each lag, as naive decoding does, and nothing is left."""
    if not (SHARED / name).exists():
        pytest.skip(f"NOT CHECKED: {name} is not beside this repository")
    assert main([str(SHARED / name), *WORDS[name]]) == 0
    assert f"{REQUESTS[name]} requests" in capsys.readouterr().out
