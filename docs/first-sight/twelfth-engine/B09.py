"""A prefill needs room in the outputs for its own choices, whatever else is decoding."""
from common import Host, check, engine, req, why

# 2 slots, room for 4 outputs. Three outputs wait to be taken, one sequence decodes.
host = Host(engine(8, 4, 2, 2))
for id in (1, 2, 3):
    host.submit(req(id, (5, 6), 1))
host.admit()
host.admit()
host.submit(req(4, (5, 6), 6))
host.admit()
stats = host.stats()
check((stats.outputs, stats.active, stats.queued), (3, 1, 1), "outputs, slots in use, queued")

# 3 outputs and 1 choice are 4: there is room, also a slot, pages and a queue entry.
host.submit(req(5, (7, 8), 3))
check(why(host.admit), None, "why request 5 is not admitted")
check(host.stats().active, 2, "slots in use")
check(sorted(host.generate([])), [(id, 0) for id in (1, 2, 3, 4, 5)], "all outputs")
