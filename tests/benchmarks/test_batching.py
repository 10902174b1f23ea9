"""Rounds under three ways of batching: all tokens are written, and small cases by hand."""

from pathlib import Path
from random import Random

import pytest

from conformance.benchmarks import batching
from conformance.benchmarks.batching import Figures, Lengths, Round

TWO = [(3, 3), (2, 1), (4, 2)]


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("static", [Round(2, 5), Round(1, 1), Round(1, 1), Round(1, 4), Round(1, 1)]),
        ("continuous", [Round(2, 5), Round(1, 4), Round(2, 2), Round(1, 1)]),
        ("chunks", [Round(2, 4), Round(2, 2), Round(2, 4), Round(1, 1), Round(1, 1)]),
    ],
)
def test_three_requests_in_two_slots(name: str, rounds: list[Round]) -> None:
    """By hand; a mixed round has room for four tokens."""
    assert rounds == [*batching.WAYS[name](TWO, slots=2, budget=4)]


@pytest.mark.parametrize("name", batching.WAYS)
def test_every_token_is_written_once(name: str) -> None:
    """All but the last token that each request draws, and never in more slots than there are."""
    draws = Random(0)
    for _ in range(200):
        lengths: list[Lengths] = [
            (draws.randint(1, 20), draws.randint(1, 9)) for _ in range(draws.randint(0, 30))
        ]
        slots = draws.randint(1, 6)
        budget = slots + draws.randint(1, 9)
        rounds = [*batching.WAYS[name](lengths, slots=slots, budget=budget)]

        assert sum(prompt + new - 1 for prompt, new in lengths) == sum(one.tokens for one in rounds)
        assert all(0 < one.slots <= slots for one in rounds)
        assert name != "chunks" or all(one.tokens <= budget for one in rounds)


def test_figures_are_of_all_rounds() -> None:
    """The share of all slots, and the mean of the tokens; 0 of no rounds."""
    assert Figures(2, 0.75, 3.0) == batching.figures([Round(2, 5), Round(1, 1)], slots=2)
    assert Figures(0, 0.0, 0.0) == batching.figures([], slots=2)


def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each way; what cannot be counted is refused."""
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.0,3,3\n2023-11-16 18:15:47.0,2,0\n2023-11-16 18:15:48.0,4,2\n",
        encoding="utf-8",
    )
    assert 0 == batching.main([str(path), "--slots=2", "--budget=4"])
    printed = capsys.readouterr().out
    assert "3 requests, 2 slots, 4 tokens in a mixed round" in printed
    for row in (("static", "5", "60.0%"), ("continuous", "4", "75.0%"), ("chunks", "5", "80.0%")):
        assert any(all(cell in line for cell in row) for line in printed.splitlines()), row
    for wrong in (["--slots=4", "--budget=4"], ["--limit=-1"]):
        with pytest.raises(SystemExit):
            batching.main([str(path), *wrong])
