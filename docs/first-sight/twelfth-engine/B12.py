"""After host and engine have come apart, every method raises StateLost until reset; then all works."""
import signal
from common import Host, check, engine, req
from impl.engine import StateLost

served = engine(8, 4, 2, 2)
host = Host(served)
host.submit(req(1, (5, 6), 3))


class Late(Exception):
    pass


def late(number, frame):
    raise Late


signal.signal(signal.SIGALRM, late)
prefill = served.prefill


def prefill_and_time_out(requests):
    prefill(requests)
    signal.raise_signal(signal.SIGALRM)  # the caller's time limit is reached during the call


served.prefill = prefill_and_time_out
try:
    host.generate([])
    check("no exception", "Late", "the time limit")
except Late:
    pass
served.prefill = prefill


def raised(call):
    try:
        call()
    except StateLost:
        return True
    return False


check(raised(host.take_outputs), True, "whether take_outputs raises StateLost before the reset")
check(raised(host.admit), True, "whether admit raises StateLost before the reset")
check(len(host.state.waiting), 1, "the request that was waiting is still shown")
check(raised(host.reset), False, "whether reset raises StateLost")
outputs = host.generate([req(1, (5, 6), 3)])
check(sorted(outputs), [(1, 0)], "the outputs after the reset")
