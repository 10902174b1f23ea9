"""What is least of a finding of requests that are served together."""

from typing import Any

import pytest

from conformance.harnesses import requests
from conformance.harnesses.workloads import Broken, Call, History
from spec.vocabulary import Params, Request


def one(number: int, *, prompt: int = 1) -> Request:
    """A request of a prompt of this length."""
    return Request(id=number, prompt=(1,) * prompt, params=Params(max_new=1))


@pytest.mark.parametrize("clause", ["CONS", "OUT", "ATOMIC"])
def test_what_is_least_breaks_the_clause_of_the_first(
    monkeypatch: pytest.MonkeyPatch, clause: str
) -> None:
    """A shorter history that breaks another clause is another finding, and is not taken."""
    first: History = (Call((one(0), one(1), one(2))), Call((one(0, prompt=3),)))
    fewest = {"CONS": 3, "OUT": 2, "ATOMIC": 1}

    def broken(_make: Any, history: History, *_: Any, **__: Any) -> Broken:
        count = sum(len(call.requests) for call in history)
        return Broken(clause if count >= fewest[clause] else "RC", "wrong")

    monkeypatch.setattr(requests, "replay", broken)
    never: Any = None  # an engine is never made
    search = requests.search(never, 0)
    search.least = first, Broken(clause, "wrong")

    while search.smaller():
        pass

    history, last = search.least
    assert clause == last.clause
    assert fewest[clause] == sum(len(call.requests) for call in history)
