"""One short history that calls every entry point of an engine, legal at any geometry.

It compiles what is jitted before time is measured, and is itself checked in lockstep.
"""

from typing import Final

from conformance.history import Attend, History, PoisonDead
from conformance.protocol import Action, Poison
from spec.machines import actions as act
from spec.vocabulary import Params, Request, ResetMode

_PARAMS: Final = Params(max_new=1)

WARMUP: Final[History] = (
    act.Reserve(),
    act.Assign(0, (1,), _PARAMS, 1),
    act.Allocate(((0, 0),)),
    act.Write(((0, 0),)),
    act.Enqueue(0, 1),
    act.Purge(0),
    act.Clone(0, 0, 1),
    Attend(),
    PoisonDead(Poison.NAN),
    PoisonDead(Poison.LIVE),
    act.Free(0),
    act.Pack(),
    act.Round(),
    act.Prefill((Request(id=2, prompt=(1,), params=_PARAMS),)),
    act.Generate(),
    act.FreeFinished(),
    act.TakeOutputs(),
    act.Reset(),
    act.Submit(Request(id=3, prompt=(1,), params=_PARAMS)),
    act.Admit(),
    act.Reset(ResetMode.PHYSICAL),
)


def warmup(actions: frozenset[type]) -> History:
    """The history without the actions that an engine does not offer."""
    return tuple(step for step in WARMUP if not isinstance(step, Action) or type(step) in actions)
