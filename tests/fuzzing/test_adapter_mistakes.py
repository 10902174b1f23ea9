"""Mistakes of an adapter before its first step: each is reported by name."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import toy_engine
from attrs import evolve
from spec_engine import SpecEngine, small

from conformance.cli.main import main
from conformance.fuzzing import campaign
from conformance.lockstep.lockstep import require_shown
from conformance.lockstep.run import replay
from spec.machines import actions as act
from spec.vocabulary import CleanupMode, InvalidInput, default_limits

SIZES = small(pages=6, page_size=2, slots=3, pages_per_seq=4)


def toy() -> toy_engine.Adapter:
    """The toy, which has no bug."""
    return toy_engine.Adapter(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)


class Shows:
    """An adapter with the given profile and view."""

    def __init__(self, profile: object, view: object) -> None:
        self.profile, self._view = profile, view

    def observe(self) -> object:
        """The given view."""
        return self._view

    def apply(self, _action: object) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: None, "AttributeError: 'NoneType' object has no attribute 'profile'"),
        (lambda _one: None, r"TypeError: .* missing 1 required positional argument"),
        (sys.exit, "making the engine and looking at it raised SystemExit"),
        (lambda: Shows("mine", None), "gave 'mine', should be a conformance.protocol.Profile"),
        (lambda: Shows(toy().profile, None), "gave None, should be a spec.view.View"),
    ],
)
def test_an_engine_that_is_none_is_a_finding(made: Any, message: str) -> None:
    """A factory that makes no engine gives a finding that says why and has no step."""
    found = replay(made, (act.Reserve(),))
    assert found is not None
    assert ((), "ATOMIC") == (found.history, found.clause)
    assert re.search(message, found.message)

    report = campaign.Run()
    campaign.run(
        lambda *_: made(),
        campaign.Options(geometry=SIZES, seconds=5),
        report=report,
        update=lambda *_: None,
    )
    assert report.finding == found


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("policy", "lowets", "'lowest' or 'any'"),
        ("refuses", "sometimes", "'exact' or 'may_refuse_more'"),
        ("actions", frozenset({"Reserve"}), "classes of spec.machines.actions"),
        ("actions", (act.Reserve,), "a frozenset"),
    ],
)
def test_a_profile_has_known_words_alone(field: str, value: Any, allowed: str) -> None:
    """A misspelt word, which would silently switch comparisons off, is refused."""
    with pytest.raises(InvalidInput, match=f"Profile.{field}.*{allowed}"):
        evolve(toy().profile, **{field: value})


def test_a_view_shows_all_slots_pages_and_cells() -> None:
    """A field with an entry too few is refused by its name."""
    engine = SpecEngine(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)
    view = engine.observe()
    for name in ("counts", "used", "rows", "allocated", "written", "tokens", "finished", "cells"):
        with pytest.raises(InvalidInput, match=f"View.{name}: saw '.* entries'"):
            evolve(view, **{name: getattr(view, name)[1:]})


def test_a_length_without_tokens_is_a_finding_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CL8: every clause is judged on the view that ends the run, however wrong that view is."""
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "f.json"

    assert 1 == main(["fuzz", "--plant", "CL8", "--seconds", "60", "--json", str(target)])
    assert "LEN" in json.loads(target.read_text(encoding="utf-8"))["failures"][0]


def test_a_finding_before_the_first_draw_is_told_with_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of the warm-up count, unchecked items are listed, and no time has no shares."""
    target = tmp_path / "f.json"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOY_BUG", "leak")
    words = ["fuzz", "--engine", "toy_engine:make", "--seconds", "5", "--json", str(target)]
    assert 1 == main(words)
    result = json.loads(target.read_text(encoding="utf-8"))

    assert 0 < result["shrunk_steps"] <= result["steps"]
    assert result["not_checked"]
    assert not [key for key in result if key.startswith("share_of_")]


def test_append_beside_a_queue_is_refused() -> None:
    """A profile with Append and an action of the queue names both; so does a view with a queue."""
    profile = evolve(toy().profile, actions=frozenset({act.Reserve, act.Append}))
    with pytest.raises(InvalidInput, match="Append beside Enqueue, Round"):
        evolve(profile, actions=frozenset({act.Append, act.Round, act.Enqueue}))

    shown = evolve(toy().observe(), queue=())
    with pytest.raises(InvalidInput, match=r"View\.queue.*the caller has it"):
        require_shown(profile, shown)
