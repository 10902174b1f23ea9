"""generate returns every output that finishes meanwhile, also of requests submitted before."""
from common import check, engine, req
from impl.host import Host

host = Host(engine(8, 4, 2, 2))
host.submit(req(1, (5, 6), 3))  # as a server does when a request arrives
outputs = host.generate([req(2, (7, 8), 2)])

check(sorted(outputs), [(1, 0), (2, 0)], "the outputs that finished during generate")
check([len(outputs[name].tokens) for name in sorted(outputs)], [3, 2], "their lengths")
check(host.state.finished, (), "outputs left on the host after generate")
host.submit(req(1, (5, 6), 3))  # the id is free again
check(len(host.generate([])), 1, "the second request 1")
