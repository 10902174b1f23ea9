"""A slot that is reserved and has no prompt is no occupant: it has no (request, choice)."""
from common import Host, check, engine, req, why

for first in (False, True):
    host = Host(engine(8, 4, 2, 2))
    if first:  # request 3 was served in slot 0 before
        check(sorted(host.generate([req(3, (5, 6), 2)])), [(3, 0)], "the first request")
    slot = host._engine.reserve()  # the caller takes a slot for a sequence of its own
    check(slot, 0, "the reserved slot")
    check(host.stats().active, 1, "slots in use")
    check(host.stats().occupants, frozenset(), "occupants while no slot has a prompt")
    again = req(3 if first else 0, (5, 6), 2)
    check(why(host.submit, again), None, f"why an unused id ({again.id}) is refused")
    check(sorted(host.generate([])), [(again.id, 0)], "the output of the request")
