"""The slots that a line of a recording is about."""

from conformance.recordings.format import Line
from spec.machines import actions as act


def slots_of(line: Line) -> tuple[int, ...]:
    """The slots that a line is about. A slot that the engine chose is taken from the result.

    It is -1 if there is no result. Empty for an action that names no slot.
    """
    chosen = line.result if isinstance(line.result, int) else -1
    match line.step:
        case act.Allocate(batch) | act.Write(batch):
            return tuple(dict.fromkeys(slot for slot, _ in filter(None, batch)))
        case act.Reserve(slot):
            return (slot if isinstance(slot, int) else chosen,)
        case act.Share(parent, slot):
            return (parent, slot)
        case act.Clone(parent, child):
            return (parent, chosen if child is None else child)
        case _:
            slot = getattr(line.step, "slot", None)
            return (slot,) if isinstance(slot, int) else ()
