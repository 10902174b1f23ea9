"""What fuzzing finds of bugs in an index of prefixes, each planted in the specification's own."""

from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from typing import Any

import pytest
from attrs import evolve
from deep import deep_after
from explore_tools import silent, work_alone
from spec_engine import ACTIONS, SpecEngine, small

from conformance.exploration.graph import Graph
from conformance.exploration.instances import instance
from conformance.exploration.search import Search
from conformance.fuzzing import campaign, settings
from conformance.fuzzing.state_machine import Campaign
from conformance.lockstep.run import Finding
from conformance.protocol import Action, Factory, Result
from spec import index, pool
from spec.index import Index
from spec.machines import prefix
from spec.machines.actions import (
    Drop,
    Enqueue,
    Evict,
    Free,
    Hit,
    Merge,
    Prefill,
    Publish,
    Reserve,
)
from spec.vocabulary import CleanupMode, Tokens


def weak_hash(held: Index, context: int, chain: Tokens) -> int | None:
    """The page whose key has the same last tokens: a hash that nobody verifies."""
    pages = enumerate(held)
    return next(
        (
            page
            for page, one in pages
            if one and (one.context, one.chain[-2:]) == (context, chain[-2:])
        ),
        None,
    )


def any_context(held: Index, _context: int, chain: Tokens) -> int | None:
    """The page with these tokens, under whatever context."""
    return next((page for page, one in enumerate(held) if one and one.chain == chain), None)


def one_alone(held: Index, pages: Any) -> Index:
    """The index without these pages, and with all that extends them."""
    gone = {*pages}
    return tuple(None if page in gone else one for page, one in enumerate(held))


def kept(held: Index, _pages: Any) -> Index:
    """The index as it was."""
    return held


def never_idle(held: Index, _pages: Any) -> Index:
    """The index with ranks that a release does not set."""
    return held


def newest_first(held: Index, counts: pool.Counts, wanted: int) -> tuple[int, ...]:
    """Free pages first, and then the idle ones of the newest release."""
    free = [page for page in pool.free_pages(counts) if not index.has(held, page)]
    idle = sorted(index.idle(held, counts), key=lambda page: -(held[page] or FIRST).rank)
    return (*free, *idle)[:wanted]


FIRST = index.Indexed(0, ())


class Wrong(SpecEngine):
    """The specification with a wrong function of its index."""

    def __init__(
        self, *given: Any, name: str = "find", wrong: Callable[..., Any] = weak_hash
    ) -> None:
        super().__init__(*given)
        self.name, self.wrong = name, wrong

    def apply(self, action: Action) -> Result:
        """Take the action with the wrong function."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index, self.name, self.wrong)
            return super().apply(action)


class Published(SpecEngine):
    """The specification, which publishes what is written, committed or not."""

    def apply(self, action: Action) -> Result:
        """Take the action; a publication goes as far as the written cells."""
        held, slot = self.state, getattr(action, "slot", None)
        result = super().apply(action)
        sequence = (
            held.sequences[slot] if isinstance(action, Publish) and slot is not None else None
        )
        if isinstance(action, Publish) and sequence is not None:
            text = self.machine.known(held, action.slot)
            longer = held._replace(
                committed=(sequence.written,) * len(held.committed),
                sequences=tuple(one and evolve(one, tokens=text) for one in held.sequences),
            )
            rule = prefix.RUNG.rules[Publish]
            more = rule.effect(self.machine, longer, Publish(action.slot, sequence.written), None)
            self.state = self.state._replace(indexed=more.indexed)
        return result


class Forgetful(SpecEngine):
    """The specification without an effect of an action on the state."""

    def __init__(self, *given: Any, kind: type = Drop, component: str = "stale") -> None:
        super().__init__(*given)
        self.kind, self.component = kind, component

    def apply(self, action: Action) -> Result:
        """Take the action; a component stays as it was."""
        held = getattr(self.state, self.component)
        result = super().apply(action)
        if isinstance(action, self.kind):
            changed: dict[str, Any] = {self.component: held}
            self.state = self.state._replace(**changed)
        return result


BUGS: dict[str, Factory] = {
    "a hash that nobody verifies": partial(Wrong, name="find", wrong=weak_hash),
    "a key without its context": partial(Wrong, name="find", wrong=any_context),
    "an extension that stays": partial(Wrong, name="without", wrong=one_alone),
    "a taken page that stays": partial(Wrong, name="without", wrong=kept),
    "the newest page goes first": partial(Wrong, name="next_pages", wrong=newest_first),
    "a rank that is never set": partial(Wrong, name="released", wrong=never_idle),
    "drafts that are published": Published,
    "a drop after which old pages are published": partial(Forgetful, kind=Drop, component="stale"),
    "a merge that leaks the old page": partial(Forgetful, kind=Merge, component="counts"),
    "a hit that counts nothing": partial(Forgetful, kind=Hit, component="counts"),
    "a hit that commits nothing": partial(Forgetful, kind=Hit, component="committed"),
    "a slot without a context": partial(Forgetful, kind=Reserve, component="contexts"),
}
"""Bugs of prefix caches, each in an engine that is right but for it."""


def fuzzed(make: Factory, turns: int) -> Finding | None:
    """The finding of the first turns of a run, if they have one."""
    target = Campaign(
        make=partial(settings.make, make, small(), CleanupMode.INCREMENTAL),
        names=settings.make(make, small(), CleanupMode.INCREMENTAL).profile.machine.names,
    )
    for number, level in enumerate(islice(cycle(campaign.TURNS), turns)):
        report = campaign.Run()
        campaign._take_turn(target, level, number, report)
        if report.finding is not None:
            return report.finding
    return None


@pytest.mark.parametrize("name", deep_after(6, BUGS))
def test_fuzzing_finds_a_bug_of_an_index(name: str) -> None:
    """In a few turns at the levels of a run, at the default sizes."""
    assert fuzzed(BUGS[name], 40) is not None


@pytest.mark.deep
def test_fuzzing_finds_nothing_without_a_bug() -> None:
    """The specification is right."""
    assert fuzzed(SpecEngine, 5) is None


@pytest.mark.parametrize(
    "kind", deep_after(1, [Hit, Publish, Free, Prefill, Enqueue, Merge, Evict, Drop])
)
def test_an_engine_may_lack_an_action_of_these(kind: type) -> None:
    """What its histories would need of it is left out."""
    assert fuzzed(partial(SpecEngine, actions=ACTIONS - {kind}), 2) is None


@pytest.mark.deep
def test_every_state_of_a_small_index_keeps_edges_and_clauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each text, hit, publication and eviction of two slots, at pages of one cell."""
    work_alone(monkeypatch)
    graph = Graph()

    sizes = small(pages=2, page_size=1, slots=2, pages_per_seq=3)
    assert None is Search(instance("prefix", sizes), graph).run(update=silent)
    assert graph.complete
    assert (387, 5_386, 18_221) == (graph.states, graph.transitions, graph.illegal)
    done = ("hit", "share", "merge", "evict", "drop", "publish")
    assert min(graph.outcomes[f"{kind}: done"] for kind in done) > 0
