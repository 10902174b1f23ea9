"""The comparison with peers: each candidate has a row, and a wrong answer has no time."""

import json
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest
from jax import Array

from conformance.benchmarks.peers import run
from conformance.benchmarks.peers.candidates import (
    CANDIDATES,
    OLD_BLOCKS,
    OURS,
    SCAN,
    Call,
    ours,
    plain_scan,
)
from conformance.benchmarks.peers.cases import QUICK, Case, cases
from conformance.benchmarks.peers.levanter import Missing

CASE = Case(size=QUICK, heads=(8, 2, 64), queries=QUICK.queries)
Wrong = Callable[[Array], Array]


def changed(wrong: Wrong) -> Callable[[Case], Call]:
    """A maker of our attention with its answer changed."""

    def make(case: Case) -> Call:
        call = ours(case)
        return lambda: wrong(call())

    return make


def test_every_candidate_has_a_row_in_every_case() -> None:
    """A candidate that is not installed is not measured, and every other has a time."""
    rows = run.measure(CASE)
    content = json.loads(run.to_json(list(rows), QUICK, 1.0))

    assert list(CANDIDATES) == [row.name for row in rows]
    assert content["verdict"] == "holds"
    for row in rows:
        missing = row.problem.startswith("not measured: ")
        assert missing == (row.seconds is None)
        assert missing <= row.name.startswith("Levanter")
        assert missing or (row.seconds or 0) > 0
        assert (not row.verdict) == (row.name in (OURS, SCAN))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda out: out.at[CASE.judged[-1], 0, 0].add(0.01),
        lambda out: out.at[CASE.judged[0]].set(jnp.nan),
        lambda out: jnp.roll(out, 1, axis=1),
        lambda out: out[:-1],
    ],
)
def test_a_fast_wrong_peer_does_not_count(wrong: Wrong) -> None:
    """A candidate with an answer out of bound is marked wrong, and has no time."""
    made = {OURS: ours, "peer": changed(wrong), SCAN: plain_scan}

    right, peer, _ = run.measure(CASE, made)

    assert right.seconds is not None
    assert peer.seconds is None
    assert peer.verdict.startswith("WRONG: ")


def test_each_timed_call_comes_after_one_of_the_same_peer() -> None:
    """Each candidate is called once to be judged, and once before each call that is timed."""
    called: list[str] = []

    def counted(name: str, make: Callable[[Case], Call]) -> Callable[[Case], Call]:
        def made(case: Case) -> Call:
            call = make(case)

            def count() -> Array:
                called.append(name)
                return call()

            return count

        return made

    run.measure(CASE, {OURS: counted(OURS, ours), SCAN: counted(SCAN, plain_scan)})

    judged, turn = [OURS, SCAN], [OURS, OURS, SCAN, SCAN]
    assert judged + QUICK.turns * turn == called


def test_a_wrong_answer_of_ours_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If our own answer is wrong, the command returns 1 and the JSON says `fails`."""
    made = {OURS: changed(lambda out: out + 1), SCAN: plain_scan}
    monkeypatch.setattr(run, "cases", lambda _: (CASE,))
    monkeypatch.setattr(run.measure, "__defaults__", (made,))
    path = tmp_path / "peers.json"

    assert run.main(["--quick", "--json", str(path)]) == 1
    assert json.loads(path.read_text())["verdict"] == "fails"


def test_a_missing_peer_is_reported() -> None:
    """A missing candidate has the reason in place of its verdict."""

    def gone(_: Case) -> Call:
        raise Missing("no such thing")

    _, peer = run.measure(CASE, {OURS: ours, "peer": gone})

    assert peer.verdict == "not measured: no such thing"


def test_targets_are_met_or_missed() -> None:
    """Levanter's old blocks must take three times as long as ours, and other peers as long."""
    row = run.Row("case", "peer", 1.0, over_ours=1.5)

    assert row.verdict == "met: at least 1"
    assert run.Row("case", OLD_BLOCKS, 1.0, over_ours=2.9).verdict == "MISSED: at least 3"
    assert run.Row("case", SCAN, 1.0, over_ours=0.1).verdict == ""


def test_a_run_decodes_and_prefills_with_both_kinds_of_heads() -> None:
    """The cases decode and prefill with both kinds of heads, and judge first and last queries."""
    names = [case.name for case in cases(QUICK)]

    assert names == [
        "decode, (32, 8, 128)",
        "decode, (8, 2, 64)",
        "prefill of 24, (32, 8, 128)",
        "prefill of 24, (8, 2, 64)",
    ]
    assert {0, 23, 24, 71} <= set(CASE.judged.tolist())
