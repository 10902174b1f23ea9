"""What is sent to an engine: the calls that the layer above it would make.

An engine leaves some checks to the layer above it, and its profile says which. The kit stands in
for that layer. A call that the layer rules out is not sent; a slot that the engine does not choose
is named; a context that the engine does not have is left out; a batch becomes several, if the
engine takes one slot or one position at a time.
Source: docs/sources.md, "Adapters".
"""

from attrs import evolve

from conformance.protocol import Action, Profile
from conformance.rungs.registry import ACTIONS
from spec.machines.actions import Reserve
from spec.state import State
from spec.vocabulary import Reason


def batches(profile: Profile, action: Action) -> tuple[Action, ...]:
    """The actions that are sent for this one, in order: the action itself, or its parts."""
    if profile.batches == "several slots":
        return (action,)
    parts = ACTIONS[type(action)].by_slot(action)
    if profile.batches == "one slot":
        return parts
    return tuple(one for part in parts for one in ACTIONS[type(action)].by_position(part))


def is_sent(profile: Profile, action: Action, reasons: frozenset[Reason]) -> bool:
    """Whether the layer above makes this call. reasons: why the specification refuses it."""
    return not any(profile.guards(type(action), reason) for reason in reasons)


def named(profile: Profile, state: State, action: Action) -> Action:
    """The action with every slot named, if the layer above rules out that none is free.

    An engine that does not choose slots declares that. One that has no contexts is told none.
    """
    if isinstance(action, Reserve) and not profile.contexts:
        action = evolve(action, context=0)
    if not profile.guards(type(action), Reason.NO_FREE_SLOT):
        return action
    chosen: Action = ACTIONS[type(action)].named(state, action)
    return chosen
