"""The arrivals, the tally and the kept finding of a replay, each against a second reading."""

import argparse
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attrs import evolve
from spec_engine import SpecEngine, small

from conformance.cli.replay import _recorded
from conformance.lockstep.run import Finding
from conformance.protocol import Action, Result
from conformance.traffic import replay, traces
from spec import ladder
from spec.machines.actions import Admit, Generate, Submit, TakeOutputs
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    InvalidInput,
    Limits,
    Params,
    Reason,
    Refusal,
    Request,
    default_limits,
    refused,
)

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
SIZES = Geometry(pages=5, page_size=4, slots=2, pages_per_seq=3)
LIMITS = evolve(default_limits(SIZES), stops=1, stop_len=1, rounds=1)
SECONDS = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}


@pytest.mark.parametrize("seed", range(20))
def test_an_arrival_is_the_exact_time_since_the_first_row(seed: int, tmp_path: Path) -> None:
    """Stamps lie days apart, before and after the first one, with one to nine decimal digits."""
    draws, path, rows, wanted = Random(seed), tmp_path / "trace.csv", [], list[Fraction]()
    for _ in range(8):
        day, hour = draws.randint(1, 28), draws.randrange(24)
        minute, second = draws.randrange(60), draws.randrange(60)
        part = "".join(draws.choices("0123456789", k=draws.randint(1, 9)))
        rows.append(f"2023-02-{day:02} {hour:02}:{minute:02}:{second:02}.{part},1,1\n")
        times = zip(SECONDS.values(), (day, hour, minute, second), strict=True)
        wanted.append(sum(size * count for size, count in times) + Fraction(f"0.{part}"))
    path.write_text(HEADER + "".join(rows), encoding="utf-8")

    seen = [row.arrival_seconds for row in traces.load(path, "azure")]

    assert [float(at - wanted[0]) for at in wanted] == pytest.approx(seen, abs=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_the_tally_says_what_the_history_says(seed: int, tmp_path: Path) -> None:
    """The specification takes the recorded history alone, and arrives at the same counts."""
    draws, path, told = Random(seed), tmp_path / "trace.csv", list[int]()
    rows = [(draws.randint(1, 96), draws.choice((0, 16, 17, 96))) for _ in range(seed * 3)]
    text = "".join(f"2023-11-16 18:15:46.0,{prompt},{new}\n" for prompt, new in rows)
    path.write_text(HEADER + (text or "2023-11-16 18:15:46.0,1,0\n"), encoding="utf-8")
    engine = SpecEngine(SIZES, LIMITS, CleanupMode.INCREMENTAL)
    traffic = list(replay.requests(path, "azure", page_size=4, limit=None))
    tally = replay.Tally()

    replay.replay(engine, traffic, tally=tally, update=told.append)

    machine = ladder.whole()
    state = machine.initial(SIZES, LIMITS, CleanupMode.INCREMENTAL)
    refused = tokens = 0
    for step in tally.history:
        assert isinstance(step, Submit | Admit | Generate | TakeOutputs)
        reasons = {refusal.reason for refusal in machine.refusals(state, step)}
        refused += isinstance(step, Admit) and bool(reasons - {Reason.QUEUE_EMPTY})
        if isinstance(step, TakeOutputs):
            tokens += sum(len(output.tokens) for output in state.outputs)
        state = state if reasons else machine.effect(state, step)
    assert None is tally.finding
    assert (refused, tokens, len(traffic)) == (tally.refused, tally.new_tokens, tally.requests)
    assert sum(len(request.prompt) for request in traffic) == tally.prompt_tokens
    assert (len(tally.history), 0) == (tally.steps, tally.leaked_pages)
    assert traffic == [step.request for step in tally.history if isinstance(step, Submit)]
    assert tally.requests == told[-1]


@pytest.mark.parametrize("new_by", [None, 3])
@pytest.mark.parametrize(("skip", "number"), [(0, 1), (0, 3), (0, 6), (2, 2), (5, 4)])
@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("format", traces.FORMATS)
def test_sizes_fit_the_requests_that_are_served(
    format: str, page_size: int, skip: int, number: int, new_by: int | None, tmp_path: Path
) -> None:
    """The geometry is as wide as the longest of these requests, and no wider."""
    lengths, path = [(33, 7), (1, 0), (700, 40), (512, 512), (2000, 1), (5, 900)], tmp_path / "t"
    stamp = "2023-11-16 18:15:46.0"
    path.write_text(
        HEADER + "".join(f"{stamp},{prompt},{new}\n" for prompt, new in lengths)
        if format == "azure"
        else "".join(
            f'{{"timestamp": 0, "input_length": {prompt}, "output_length": {new}, '
            f'"hash_ids": {list(range(-(-prompt // 512)))}}}\n'
            for prompt, new in lengths
        ),
        encoding="utf-8",
    )
    by = 16 if format == "azure" else 512 // page_size
    taken = lengths[skip : skip + number]
    scaled = [(-(-prompt // by), max(1, -(-new // (new_by or by)))) for prompt, new in taken]

    options: Any = {"page_size": page_size, "skip": skip, "limit": number, "new_divisor": new_by}
    geometry, limits, totals = replay.geometry_for(path, format, slots=3, **options)
    served = list(replay.requests(path, format, **options))

    longest = max(map(sum, scaled))
    assert scaled == [(len(one.prompt), one.params.max_new) for one in served]
    assert [skip + at for at in range(len(taken))] == [one.id for one in served]
    width, prompts = -(-longest // page_size), [prompt for prompt, _ in scaled]
    pages = max(2 * width, 36)  # two of the longest requests, or twelve pages a slot
    assert geometry == Geometry(pages=pages, page_size=page_size, slots=3, pages_per_seq=width)
    assert limits == Limits(
        queue=3,
        prefill_tokens=max(256, *prompts),
        prefill_seqs=3,
        round_tokens=3,
        rounds=8,
        stops=1,
        stop_len=1,
        outputs=6,
    )
    assert (len(taken), longest) == (totals.requests, totals.longest)
    assert tuple(map(sum, zip(*scaled, strict=True))) == (totals.prompt_tokens, totals.new_tokens)


def test_a_trace_without_a_request_left_is_refused(tmp_path: Path) -> None:
    """The error says how many were to be left out."""
    path = tmp_path / "t"
    path.write_text(HEADER + "2023-11-16 18:15:46.0,1,0\n", encoding="utf-8")

    with pytest.raises(InvalidInput, match="skip: saw 1, allowed: fewer"):
        replay.geometry_for(path, "azure", page_size=16, slots=1, skip=1)


@pytest.mark.parametrize(
    "change",
    [{}, {"engine": "other:make"}, {"python": "other/python"}, {"in_process": True}],
    ids=str,
)
def test_a_kept_finding_is_run_again_as_it_was_run(change: dict[str, object]) -> None:
    """Every option that says where and how the engine runs goes with its history."""
    options = {"engine": "a:make", "python": None, "in_process": False, **change}
    finding = Finding((Admit(),), "CONS", "counts are wrong")

    kept = _recorded(finding, SIZES, LIMITS, argparse.Namespace(**options))

    assert options == {name: getattr(kept, name) for name in options}
    assert (finding.history, finding.clause) == (kept.history, kept.clause)
    assert finding.message == kept.message
    assert (SIZES, LIMITS) == (kept.geometry, kept.limits)


@pytest.mark.parametrize("kind", [Admit, Generate])
def test_an_engine_that_serves_nothing_ends_the_replay(kind: type) -> None:
    """One that may refuse more, and always refuses to admit or to decode, starves its requests."""

    class Refusing(SpecEngine):
        def apply(self, action: Action) -> Result:
            if isinstance(action, kind):
                raise refused([Refusal(Reason.OUT_OF_PAGES, None, None)])
            return super().apply(action)

    sizes, tally = small(), replay.Tally()
    engine = Refusing(sizes, default_limits(sizes), CleanupMode.INCREMENTAL)
    engine.profile = evolve(engine.profile, refuses="may_refuse_more")
    one = Request(id=0, prompt=(1, 2), params=Params(max_new=2))

    replay.replay(engine, [one], tally=tally, update=lambda _: None)

    assert tally.finding is not None
    assert ("PROG", replay.STALLS) == (tally.finding.clause, tally.finding.message)
