"""What can come of the actions of an engine: outcomes, and outcomes one after another.

The guards of the specification give every reason for which an action may be refused. Some never
hold for an engine, at its sizes and under its policies: a table says what each of them asks for,
and another how that comes about. What cannot be is reported with what it lacks. The tests compare
both tables with every history of small engines.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Final, NamedTuple

from attrs import fields

from conformance.protocol import Profile
from conformance.rungs.record import (
    AHEAD,
    CHUNK_PAST_RING,
    EAGER_COPY,
    FOUR_STEPS,
    FREES,
    FULL_BESIDE,
    FULL_QUEUE,
    HITS,
    KEEPS,
    LONG_ROWS,
    QUEUE_PAST_RING,
    RESERVED,
    SEVERAL_PAGES,
    SHORT_POOL,
    SHORT_ROUNDS,
    THREE_SLOTS,
    TWO_SLOTS,
    WHOLE_PAGE,
)
from spec.machines import actions as act
from spec.vocabulary import Reason

FREE: Final = "a slot that is not in use"
SLOT: Final = "a slot in use"
BARE: Final = "a slot without a prompt"
PROMPT: Final = "a slot with a prompt"
FREED: Final = "a slot that was in use"
DELIVERED: Final = "a slot of a step that was delivered"
CHILD: Final = "a second slot with the same prompt"
NAMED: Final = "a prompt that did not wait"
WRITTEN: Final = "a prompt that is written"
DRAFT: Final = "a draft"
COMMITTABLE: Final = "a draft that is written"
TOKEN: Final = "a queued token"
DECODES: Final = "a queued token that follows what is written"
WAITING: Final = "a waiting request"
OUTPUT: Final = "an output"
BEFORE_CELLS: Final = "a prompt without cells"
INDEXED: Final = "a page in the index"
IDLE: Final = "an idle page"
FINISHED: Final = "a finished sequence in its slot"
LANDED: Final = "a prompt that no step in flight has"
OPEN: Final = "a step in flight"
UNRETIRED: Final = "a step in flight that has not retired"
RETIRED: Final = "a step in flight that has retired"
HELD: Final = "a slot that a step in flight holds"

Needs = tuple[str, ...]
"""Groups of words, of which one of each group must be true; `|` stands between them."""

FACTS: Final[Mapping[str, tuple[Needs, ...]]] = {
    FREE: ((),),
    WAITING: (("Submit",),),
    SLOT: (("Reserve",), ("Prefill",), (WAITING, "Admit")),
    BARE: (("Reserve",),),
    NAMED: (("Reserve", "Assign"), ("Prefill",)),
    PROMPT: ((NAMED,), (WAITING, "Admit")),
    WRITTEN: (
        *((PROMPT, "Allocate", "Write"), (BEFORE_CELLS, "MixedRound")),
        *(("Prefill",), (WAITING, "Admit"), (OPEN, "Retire")),
    ),
    DRAFT: ((PROMPT, "Propose"),),
    COMMITTABLE: ((DRAFT, WRITTEN, "Allocate", "Write", "Append|Pack|Purge"),),
    TOKEN: (
        *((PROMPT, "Enqueue|Propose"), (BEFORE_CELLS, "MixedRound")),
        *(("Prefill",), (WAITING, "Admit"), (RETIRED, "Deliver")),
    ),
    DECODES: (
        *((WRITTEN, "Enqueue|MixedRound"), ("Prefill",), (WAITING, "Admit"), (RETIRED, "Deliver")),
    ),
    OUTPUT: (
        (RETIRED, "Deliver"),
        *(("Prefill",), (WAITING, "Admit"), (BEFORE_CELLS, "MixedRound")),
        (DECODES, "Round|MixedRound|Generate"),
    ),
    FINISHED: ((OUTPUT, KEEPS),),
    BEFORE_CELLS: (("Reserve", "Assign"),),
    LANDED: ((PROMPT,),),
    OPEN: ((f"{BEFORE_CELLS}|{DECODES}", "Dispatch"),),
    UNRETIRED: ((OPEN,),),
    RETIRED: ((UNRETIRED, "Retire"),),
    HELD: ((OPEN, "Free|Preempt|Reset"), (RETIRED, "Deliver", FREES)),
    INDEXED: ((WRITTEN, "Publish", WHOLE_PAGE),),
    IDLE: ((INDEXED, "Free|FreeFinished|Preempt"), (INDEXED, FREES, OUTPUT)),
}
"""How each fact about a state comes about: by any of these, from the initial state."""

DONE: Final[Mapping[type, Needs]] = {
    act.Reserve: (FREE,),
    act.Append: (PROMPT,),
    act.Free: (SLOT,),
    act.Clone: (PROMPT, LANDED, FREE, TWO_SLOTS),
    act.Propose: (PROMPT, LANDED),
    act.Commit: (LANDED, COMMITTABLE),
    act.Truncate: (SLOT,),
    act.Release: (SLOT,),
    act.Hit: (INDEXED, BEFORE_CELLS, HITS, f"{TWO_SLOTS}|{IDLE}"),
    act.Share: (WRITTEN, BEFORE_CELLS, HITS, TWO_SLOTS),
    act.Publish: (SLOT,),
    act.Merge: (INDEXED, WRITTEN, SEVERAL_PAGES, f"{TWO_SLOTS}|{IDLE}"),
    act.Evict: (IDLE,),
    act.Assign: (BARE,),
    act.Enqueue: (PROMPT, LANDED),
    act.Purge: (SLOT,),
    act.Prefill: (FREE,),
    act.Round: (DECODES,),
    act.MixedRound: (PROMPT, f"{BEFORE_CELLS}|{DECODES}"),
    act.Preempt: (PROMPT,),
    act.Replay: (PROMPT, LANDED),
    act.Admit: (WAITING, FREE),
    act.Dispatch: (PROMPT, f"{BEFORE_CELLS}|{DECODES}"),
    act.Retire: (UNRETIRED,),
    act.Deliver: (RETIRED,),
}
"""What the state must have where an action is done; nothing for the others."""

REFUSED: Final[Mapping[Reason, Needs]] = {
    Reason.SLOT_RANGE: (),
    Reason.SLOT_UNUSED: (FREE,),
    Reason.SLOT_USED: (SLOT,),
    Reason.SLOT_FINISHED: (FINISHED,),
    Reason.SLOT_ASSIGNED: (PROMPT,),
    Reason.SLOT_EMPTY: (BARE,),
    Reason.NO_FREE_SLOT: (SLOT,),
    Reason.SLOT_BEGUN: (PROMPT, f"Allocate|{WRITTEN}"),
    Reason.STALE: (WRITTEN, "Drop"),
    Reason.UNCOMMITTED: (SLOT,),
    Reason.NOT_INDEXED: (),
    Reason.NOT_COMMON: (BEFORE_CELLS,),
    Reason.NOT_IDLE: (INDEXED,),
    Reason.BATCH_WIDTH: (),
    Reason.BATCH_POSITIONS: (SLOT,),
    Reason.BATCH_UNKNOWN: (PROMPT, "Allocate"),
    Reason.UNWRITTEN: (SLOT,),
    Reason.BATCH_QUEUED: (TOKEN, "Allocate"),
    Reason.PROPOSED: (DRAFT,),
    Reason.COMMITTED: (SLOT,),
    Reason.WINDOW: (SLOT,),
    Reason.OUT_OF_PAGES: (SLOT, SHORT_POOL),
    Reason.TOO_LONG: (SLOT,),
    Reason.QUEUE_FULL: (TOKEN, "Enqueue|Propose", FULL_QUEUE),
    Reason.QUEUE_EMPTY: (),
    Reason.OUTPUTS_FULL: (OUTPUT, f"{FREES}|Free|FreeFinished"),
    Reason.PREFILL_WIDTH: (),
    Reason.STOPS: (),
    Reason.CHOICE_TAKEN: (PROMPT,),
    Reason.NEVER_FITS: (),
    Reason.NOT_LIVE: (),
    Reason.IN_FLIGHT: (OPEN,),
    Reason.FLIGHTS_FULL: (OPEN, FOUR_STEPS),
    Reason.NO_FLIGHT: (),
}
"""What the state must have where an action is refused for a reason."""

_BESIDE: Final = (TOKEN, "Enqueue|Propose", FULL_BESIDE)
_CHILD: Final = (FREE, TWO_SLOTS)
REFUSED_BUT: Final[Mapping[tuple[type, Reason], Needs]] = {
    (act.Append, Reason.TOO_LONG): (PROMPT,),
    (act.Enqueue, Reason.TOO_LONG): (PROMPT,),
    (act.Propose, Reason.TOO_LONG): (PROMPT,),
    (act.Prefill, Reason.TOO_LONG): (),
    (act.Submit, Reason.TOO_LONG): (),
    (act.Assign, Reason.STOPS): (SLOT,),
    (act.Prefill, Reason.NO_FREE_SLOT): (),
    (act.Prefill, Reason.CHOICE_TAKEN): (),
    (act.Submit, Reason.CHOICE_TAKEN): (),
    (act.Assign, Reason.CHOICE_TAKEN): (PROMPT, BARE, f"{TWO_SLOTS}|{OUTPUT}"),
    (act.Admit, Reason.CHOICE_TAKEN): (WAITING, NAMED),
    (act.Assign, Reason.OUT_OF_PAGES): (BARE, SHORT_POOL, RESERVED),
    (act.Clone, Reason.OUT_OF_PAGES): (
        *(WRITTEN, *_CHILD, SHORT_POOL),
        f"{EAGER_COPY}|{AHEAD}|{RESERVED}",
    ),
    (act.Round, Reason.OUT_OF_PAGES): (DECODES, SHORT_POOL),
    (act.Admit, Reason.OUT_OF_PAGES): (WAITING, SHORT_POOL),
    (act.Admit, Reason.NO_FREE_SLOT): (WAITING, SLOT),
    (act.Prefill, Reason.QUEUE_FULL): _BESIDE,
    (act.Admit, Reason.QUEUE_FULL): (WAITING, *_BESIDE),
    (act.Admit, Reason.OUTPUTS_FULL): (WAITING, *REFUSED[Reason.OUTPUTS_FULL]),
    (act.Round, Reason.TOO_LONG): (DECODES, "Enqueue", QUEUE_PAST_RING),
    (act.Round, Reason.OUTPUTS_FULL): (DECODES, OUTPUT, f"{TWO_SLOTS}|Enqueue"),
    (act.Round, Reason.UNWRITTEN): (TOKEN, "Allocate"),
    (act.Round, Reason.BATCH_POSITIONS): (TOKEN, "Enqueue", "Assign|Pack|Purge"),
    (act.Write, Reason.BATCH_POSITIONS): (PROMPT,),
    (act.MixedRound, Reason.BATCH_POSITIONS): (),
    (act.MixedRound, Reason.BATCH_UNKNOWN): (PROMPT,),
    (act.MixedRound, Reason.BATCH_QUEUED): (TOKEN,),
    (act.MixedRound, Reason.BATCH_WIDTH): (f"{BEFORE_CELLS}|Pack|Purge", SHORT_ROUNDS),
    (act.MixedRound, Reason.UNWRITTEN): (PROMPT, "Allocate|Dispatch"),
    (act.MixedRound, Reason.TOO_LONG): (f"{BEFORE_CELLS}|{DECODES}", CHUNK_PAST_RING),
    (act.MixedRound, Reason.OUT_OF_PAGES): (f"{BEFORE_CELLS}|{DECODES}", SHORT_POOL),
    (act.MixedRound, Reason.OUTPUTS_FULL): (
        f"{BEFORE_CELLS}|{DECODES}",
        OUTPUT,
        f"{FREES}|Free|FreeFinished",
    ),
    (act.Replay, Reason.BATCH_QUEUED): (TOKEN,),
    (act.Replay, Reason.PROPOSED): (DRAFT, "Pack|Purge"),
    (act.Dispatch, Reason.BATCH_POSITIONS): (),
    (act.Dispatch, Reason.BATCH_UNKNOWN): (PROMPT,),
    (act.Dispatch, Reason.BATCH_WIDTH): (f"{BEFORE_CELLS}|Pack|Purge|Enqueue", SHORT_ROUNDS),
    (act.Dispatch, Reason.UNWRITTEN): (PROMPT, "Allocate"),
    (act.Dispatch, Reason.TOO_LONG): (OPEN,),
    (act.Dispatch, Reason.OUT_OF_PAGES): (f"{BEFORE_CELLS}|{DECODES}", SHORT_POOL),
    (act.Dispatch, Reason.OUTPUTS_FULL): (
        f"{BEFORE_CELLS}|{DECODES}",
        OUTPUT,
        f"{FREES}|Free|FreeFinished",
    ),
    (act.Dispatch, Reason.QUEUE_FULL): (f"{BEFORE_CELLS}|{DECODES}", *_BESIDE),
    (act.Reserve, Reason.IN_FLIGHT): (HELD,),
    (act.Admit, Reason.IN_FLIGHT): (WAITING, OPEN),
    (act.Clone, Reason.IN_FLIGHT): (OPEN, *_CHILD),
    (act.MixedRound, Reason.IN_FLIGHT): (RETIRED,),
    (act.Round, Reason.IN_FLIGHT): (OPEN, TOKEN, f"{TWO_SLOTS}|Enqueue"),
    (act.Replay, Reason.TOO_LONG): (PROMPT,),
    (act.Truncate, Reason.COMMITTED): (WRITTEN,),
    (act.Hit, Reason.TOO_LONG): (BEFORE_CELLS,),
    (act.Hit, Reason.NOT_INDEXED): (BEFORE_CELLS,),
    (act.Hit, Reason.BATCH_QUEUED): (INDEXED, BEFORE_CELLS, TOKEN, "Enqueue", HITS),
    (act.Hit, Reason.OUT_OF_PAGES): (INDEXED, BEFORE_CELLS, HITS, SHORT_POOL, AHEAD),
    (act.Share, Reason.TOO_LONG): (BEFORE_CELLS,),
    (act.Share, Reason.BATCH_QUEUED): (WRITTEN, BEFORE_CELLS, TOKEN, "Enqueue", HITS, TWO_SLOTS),
    (act.Share, Reason.OUT_OF_PAGES): (WRITTEN, BEFORE_CELLS, HITS, TWO_SLOTS, SHORT_POOL, AHEAD),
    (act.Merge, Reason.NOT_INDEXED): (WRITTEN, WHOLE_PAGE),
    (act.Clone, Reason.SLOT_EMPTY): (BARE, *_CHILD),
    (act.Clone, Reason.SLOT_FINISHED): (FINISHED, *_CHILD),
    (act.Clone, Reason.PROPOSED): (DRAFT, *_CHILD),
    (act.Clone, Reason.UNWRITTEN): (PROMPT, "Allocate", *_CHILD),
    (act.Clone, Reason.CHOICE_TAKEN): (PROMPT, *_CHILD),
    (act.Clone, Reason.QUEUE_FULL): (*REFUSED[Reason.QUEUE_FULL], *_CHILD),
}
"""The same for one action, where it asks for something else."""

LACKS: Final[Mapping[tuple[type, Reason], str]] = {
    (act.Reserve, Reason.NO_FREE_SLOT): FREE,
    (act.Clone, Reason.NO_FREE_SLOT): FREE,
    (act.Round, Reason.QUEUE_EMPTY): TOKEN,
    (act.MixedRound, Reason.QUEUE_EMPTY): TOKEN,
    (act.Admit, Reason.QUEUE_EMPTY): WAITING,
    (act.Retire, Reason.NO_FLIGHT): UNRETIRED,
    (act.Deliver, Reason.NO_FLIGHT): RETIRED,
}
"""What the state must not have where an action is refused for a reason."""

LEAVES: Final[Mapping[type, Needs]] = {
    act.Free: (FREED,),
    act.Reserve: (BARE,),
    act.Assign: (PROMPT, LANDED),
    act.Append: (PROMPT,),
    act.Clone: (PROMPT, LANDED, CHILD),
    act.Propose: (PROMPT, LANDED),
    act.Commit: (PROMPT, LANDED),
    act.Truncate: (SLOT,),
    act.Release: (SLOT,),
    act.Purge: (SLOT,),
    act.Enqueue: (PROMPT, LANDED, TOKEN),
    act.Preempt: (FREED,),
    act.Replay: (PROMPT, LANDED),
    act.Submit: (WAITING,),
    act.Hit: (PROMPT, INDEXED),
    act.Share: (PROMPT, WRITTEN),
    act.Publish: (SLOT,),
    act.Merge: (PROMPT, INDEXED),
    act.Dispatch: (PROMPT, OPEN, UNRETIRED),
    act.Retire: (OPEN, RETIRED),
    act.Deliver: (DELIVERED,),
}
"""What the state has right after an action that is done."""

_ALL: Final = frozenset(FACTS) - {FREE}
_STAYS: Final = frozenset({OPEN, UNRETIRED, RETIRED, HELD})
"""The facts that outlast a reset."""
_PROMPTS: Final = frozenset(
    {PROMPT, NAMED, WRITTEN, DRAFT, COMMITTABLE, TOKEN, DECODES, FINISHED, BEFORE_CELLS}
)
"""The facts about a slot with a prompt."""
TAKES: Final[Mapping[type, frozenset[str]]] = {
    act.Reset: _ALL - _STAYS,
    act.TakeOutputs: frozenset({OUTPUT}),
    act.FreeFinished: frozenset({FINISHED}),
    act.Drop: frozenset({INDEXED, IDLE}),
}
"""What the state does not have right after an action that is done."""

NOT_REQUIRED: Final = frozenset({act.Evict})
"""What no engine has to do unasked: its choice of an idle page may be that of the specification."""

MANY: Final = frozenset({FINISHED, DRAFT, TOKEN, OUTPUT, NAMED})
"""The facts of an action before: a sequence that ended, a draft, a queue, an output, an id."""


class Outcome(NamedTuple):
    """What comes of an action. reason: why it is refused; None if it is done."""

    kind: type
    reason: Reason | None

    def __str__(self) -> str:
        return f"{self.kind.__name__}: {'done' if self.reason is None else self.reason.name}"

    @property
    def as_kind(self) -> "Kind":
        """The action, and whether it is refused."""
        return Kind(self.kind, self.reason is not None)

    @property
    def needs(self) -> Needs:
        """What it asks of the engine and of the state."""
        if self.reason is None:
            return DONE.get(self.kind, ())
        return REFUSED_BUT.get((self.kind, self.reason), REFUSED[self.reason])

    @property
    def is_rare(self) -> bool:
        """Whether it is a refusal that takes several actions to bring about."""
        return self.reason is not None and not MANY.isdisjoint(self.needs)


class Kind(NamedTuple):
    """An action that is done, or that is refused for any reason."""

    kind: type
    refused: bool

    def __str__(self) -> str:
        return f"{self.kind.__name__} {'refused' if self.refused else 'done'}"


Pair = tuple[Kind, Kind]
"""Two actions, one right after the other."""


def as_item(pair: Pair) -> str:
    """The name of a pair of steps as an item of coverage."""
    return " > ".join(map(str, pair))


def is_pair(item: str) -> bool:
    """Whether an item of coverage is a pair of steps."""
    return " > " in item


def facts(words: Iterable[str]) -> frozenset[str]:
    """These words, and the facts that come about for an engine of which they are true."""
    found = set(words)
    while True:
        more = {
            fact
            for fact, ways in FACTS.items()
            if fact not in found and any(lacking(needs, found) is None for needs in ways)
        }
        if not more:
            return frozenset(found)
        found |= more


def lacking(needs: Needs, words: Collection[str]) -> str | None:
    """The first group of which no word is true; None if there is none."""
    return next((need for need in needs if not any(one in words for one in need.split("|"))), None)


def outcomes(profile: Profile, words: Iterable[str]) -> dict[Outcome, str | None]:
    """Every outcome of an engine's actions, each with what it lacks; None if it is possible.

    words: see `conformance.rungs.coverage.offered_by`. The reasons are those of the guards of the
    machine that the engine is held to.
    """
    true, machine = facts(words), profile.machine
    found = dict[Outcome, str | None]()
    for kind in sorted(profile.actions, key=lambda one: one.__name__):
        for reason in (None, *sorted(machine.reasons(kind))):
            outcome = Outcome(kind, reason)
            if reason is not None and profile.guards(kind, reason):
                found[outcome] = "the layer above the engine rules it out"
            else:
                lacks = lacking(outcome.needs, true)
                found[outcome] = None if lacks is None else f"needs {lacks}"
    for kind in sorted(profile.unasked - NOT_REQUIRED, key=lambda one: one.__name__):
        lacks = lacking(Outcome(kind, None).needs, true)
        found[Outcome(kind, None)] = None if lacks is None else f"needs {lacks}"
    return found


def asked(profile: Profile, words: Iterable[str]) -> tuple[Outcome, ...]:
    """The possible outcomes of the actions that an engine is asked for."""
    every = outcomes(profile, words).items()
    return tuple(one for one, lacks in every if lacks is None and one.kind in profile.actions)


def pairs(possible: Iterable[Outcome], words: Collection[str]) -> frozenset[Pair]:
    """The pairs of steps that are possible if these outcomes are."""
    by_kind: dict[Kind, list[Outcome]] = {}
    for outcome in possible:
        by_kind.setdefault(outcome.as_kind, []).append(outcome)
    return frozenset(
        (one, other)
        for one, before in by_kind.items()
        for other, after in by_kind.items()
        if not _is_again(one, other)
        and any(_follows(first, then, words) for first in before for then in after)
    )


def is_seldom(pair: Pair, words: Collection[str]) -> bool:
    """Whether a round is done where the step before leaves hardly anything for it to do.

    A loop ends where no further round is done, unless rows are long. Tokens that have left the
    queue stop a round of all that follow them in their slots. Drafts do too, unless a round of
    other tokens is ahead of them.
    """
    one, other = pair
    if other != (act.Round, False) or one.refused:
        return False
    if one.kind is act.Generate:
        return LONG_ROWS not in words
    return one.kind in {act.Pack, act.Propose}


def _is_again(one: Kind, other: Kind) -> bool:
    """Whether the state that refused an action without fields would have to do it."""
    return one.kind is other.kind and one.refused and not other.refused and not fields(one.kind)


def _follows(first: Outcome, then: Outcome, words: Collection[str]) -> bool:
    """Whether no fact rules out that an outcome comes right after another."""
    has, lacks = _after(first)
    if FREED in has and "Dispatch" not in words:
        has |= {FREE}
    asks, rules_out = _facts_of(then)
    has, lacks = has | asks, lacks | rules_out
    return has.isdisjoint(lacks) and (
        THREE_SLOTS in words or _slots(has) <= 1 + (TWO_SLOTS in words)
    )


def _slots(has: Collection[str]) -> int:
    """The fewest slots with which a state has these facts.

    A slot that was freed may be one that a step in flight holds, if the engine has any. One of a
    step that was delivered had a prompt.
    """
    prompt = any(fact in has for fact in _PROMPTS)
    in_flight = not _STAYS.isdisjoint(has)
    used = max(prompt, in_flight) + (in_flight and LANDED in has)
    used += (BARE in has) + (CHILD in has)
    unused = FREE in has or (FREED in has and not in_flight)
    return max(max(used, SLOT in has) + unused, (DELIVERED in has) + (BARE in has))


@cache
def _facts_of(outcome: Outcome) -> tuple[frozenset[str], frozenset[str]]:
    """What the state has where this comes of an action, and what it does not have."""
    lacks = () if outcome.reason is None else (LACKS.get((outcome.kind, outcome.reason)),)
    return _ALL.union({FREE}).intersection(outcome.needs), frozenset(filter(None, lacks))


@cache
def _after(outcome: Outcome) -> tuple[frozenset[str], frozenset[str]]:
    """What the state has right after an outcome, and what it does not have."""
    if outcome.reason is not None:
        return _facts_of(outcome)
    return frozenset(LEAVES.get(outcome.kind, ())), TAKES.get(outcome.kind, frozenset())
