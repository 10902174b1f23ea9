"""More stop sequences than limits.stops are refused at Submit, also if one stands there twice."""
from common import Host, check, engine, req, why

host = Host(engine(8, 4, 2, 2))  # limits.stops is 2
twice = req(1, (5, 6), 3, stops=((7,), (8, 9), (7,)))  # three, as merged from two sources
check(why(host.submit, twice), "STOPS", "why a request with 3 stop sequences is refused")
check(host.state.waiting, (), "waiting requests after the refusal")
check(sorted(host.generate([req(2, (5, 6), 3)])), [(2, 0)], "the next request is served")
