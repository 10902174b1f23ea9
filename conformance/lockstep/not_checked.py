"""The clauses that fuzzing an engine cannot judge, with reasons from what it declares and shows.

Every clause that is not listed is judged at every step. A violation of a listed clause can still be
found in part: every field that the engine shows is compared in any case.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from conformance.protocol import (
    CALLS,
    Attends,
    Compiles,
    Copies,
    Counts,
    Emits,
    Engine,
    Erases,
    Poisonable,
    Profile,
    Scores,
    Serves,
)
from conformance.rungs.lifecycle import CLEANUPS
from conformance.rungs.registry import DRIVEN_BY
from spec import clauses, ladder
from spec.machines import actions as act
from spec.stats import NAMED

OTHERS: Final[Mapping[str, str]] = {
    "ATT": "fuzzing compares no values of attention; kvspec kernel does",
    "KNOB": "the clause compares runs; fuzzing compares steps",
    "GEOM": "the clause compares runs; fuzzing compares steps",
}
"""The clauses that fuzzing judges for no engine, each with the reason."""
FINISHING: Final = frozenset(
    {act.Prefill, act.Round, act.MixedRound, act.Generate, act.Admit, act.Deliver}
)
"""The actions that may finish a sequence."""


def clauses_not_judged(engine: Engine) -> dict[str, str]:
    """The reason for each clause that is not judged, by its id, in the order of the registry."""
    shown, offered = engine.observe(), engine.profile.happening
    why = dict(OTHERS)
    for name in clauses.not_checked(shown):
        hidden = [need for need in clauses.CLAUSES[name].needs if getattr(shown, need) is None]
        why[name] = f"the engine does not show {', '.join(hidden)}"
    for name, drivers in DRIVEN_BY.items():
        if offered.isdisjoint(drivers):
            names = " or ".join(driver.__name__ for driver in drivers)
            why[name] = f"the engine does not offer {names}"
    if shown.tokens is None:
        why.setdefault("ALONE", "the engine does not show tokens")
    if not isinstance(engine, Counts):
        why["STAT"] = "the adapter has no statistics"
    if not isinstance(engine, Emits):
        why["EVT"] = "the adapter has no events"
    if not isinstance(engine, Compiles) and not isinstance(engine, Copies):
        why["JIT"] = "the adapter has no compilations and no pool_copies"
    return {name: why[name] for name in clauses.CLAUSES if name in why}


def not_checked(engine: Engine) -> Iterator[tuple[str, str]]:
    """Everything that is not checked, with the reason: clauses first, then parts of them."""
    profile = engine.profile
    yield from clauses_not_judged(engine).items()
    apart = ladder.not_beside(profile.actions)
    left_out = CALLS - profile.taken - apart
    if left_out:
        yield names_of(left_out), "the engine does not offer these actions"
    if act.Append in profile.actions:
        yield names_of(apart), "the engine offers Append: its caller has the queue"
    idle = CLEANUPS & profile.actions
    if idle and FINISHING.isdisjoint(profile.actions):
        yield f"{names_of(idle)} after a sequence has finished", "no offered action finishes one"
    yield from left_to_the_engine(profile)
    if act.Hit in profile.actions and not profile.contexts:
        yield "PC, contexts", "the engine has none: Profile.contexts"
    yield from _guarded(profile)
    yield from _not_shown_by_sizes(profile)
    if profile.refuses == "may_refuse_more":
        yield "ATOMIC, refusal of legal actions", "the engine may refuse more"
    if not isinstance(engine, Poisonable):
        yield "contents of dead cells", "the adapter has no poison"
    if not isinstance(engine, Attends):
        yield "READ, by driving attention", "the adapter has no attend"
    yield from _not_shown_besides(engine)


def left_to_the_engine(profile: Profile) -> Iterator[tuple[str, str]]:
    """What the engine decides by itself."""
    if profile.policy == "any":
        yield "DET, which free page is taken", "the engine promises no policy"
    if profile.unasked:
        yield f"when {names_of(profile.unasked)} happens", "the engine decides: it is unasked"


def _not_shown_besides(engine: Engine) -> Iterator[tuple[str, str]]:
    """What the optional methods do not show, and parts of clauses of which others show a part."""
    offered = engine.profile.actions
    if isinstance(engine, Counts):
        names = engine.profile.machine.names
        hidden = {name for name, one in NAMED.items() if one.owner in names}
        hidden -= engine.statistics().keys()
        if hidden:
            yield f"STAT: {', '.join(sorted(hidden))}", "statistics() does not have them"
    if act.TakeOutputs in offered and not isinstance(engine, Scores):
        yield "ALONE, log-probabilities", "the adapter has no logprobs"
    if act.Submit in offered and not isinstance(engine, Serves):
        yield "OUT, of requests that are served in one call", "the adapter has no serve"
    if act.Reset in offered and not isinstance(engine, Erases):
        yield "RESET, that a physical reset erases the cells", "the adapter has no erased"
    elif act.Reset in offered and engine.observe().cells is None:
        yield "RESET, that a physical reset erases the cells", "the engine does not show cells"
    if isinstance(engine, Compiles) is not isinstance(engine, Copies):
        missing = "pool_copies" if isinstance(engine, Compiles) else "compilations"
        what = "copies of pools" if isinstance(engine, Compiles) else "numbers of compilations"
        yield f"JIT, {what}", f"the adapter has no {missing}"


def _not_shown_by_sizes(profile: Profile) -> Iterator[tuple[str, str]]:
    """What the profile declares and these sizes cannot show."""
    sizes = profile.geometry
    if profile.batches != "several slots":
        yield "batches of several slots", f"the engine takes {profile.batches}: Profile.batches"
    elif sizes.slots == 1:
        yield "batches of several slots", "these sizes have one slot"
    told = max(0, sizes.max_len - sizes.page_size - 1)
    if profile.lookahead > told:
        yield f"lookahead past {told} cells", "the rows of these sizes end there"
    if profile.ring >= sizes.pages_per_seq:
        yield f"a ring of {profile.ring} pages", "the rows of these sizes are no longer"


def _guarded(profile: Profile) -> Iterator[tuple[str, str]]:
    """The calls that are not sent, since the layer above the engine would not make them."""
    left = False
    for kind in sorted(profile.actions, key=lambda kind: kind.__name__):
        reasons = sorted(profile.machine.reasons(kind))
        ruled_out = [reason.name for reason in reasons if profile.guards(kind, reason)]
        left = left or len(ruled_out) < len(reasons)
        if ruled_out:
            calls = f"{kind.__name__} that is refused for {' or '.join(ruled_out)}"
            yield calls, "the layer above the engine rules such calls out: Profile.guarded"
    if not left:
        yield "refusals", "Profile.guarded leaves no reason for which a call could be refused"


def names_of(kinds: frozenset[type]) -> str:
    """The names of some actions, sorted."""
    return ", ".join(sorted(kind.__name__ for kind in kinds))
