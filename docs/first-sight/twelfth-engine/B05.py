"""Ctrl-C comes while `generate` runs: it is raised after the call, whose outputs can be taken."""
import signal

from common import CleanupMode, Engine, Geometry, Host, IntegerModel, Setup, check, default_limits, req
from attrs import frozen

armed = []


@frozen
class Pressed(IntegerModel):
    """The integer model; Ctrl-C is pressed while a call with it is compiled."""

    def decode(self, *given):
        if armed:
            armed.clear()
            signal.raise_signal(signal.SIGINT)
        return super().decode(*given)


def interrupted(call):
    armed.append(True)
    try:
        call()
    except KeyboardInterrupt:
        return True
    return False


signal.signal(signal.SIGINT, signal.default_int_handler)
geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=3)
setup = Setup(geometry=geometry, limits=default_limits(geometry), model=Pressed(),
              cleanup=CleanupMode.INCREMENTAL)
engine = Engine(setup)
host = Host(engine)
host.submit(req(1, (1, 2, 3), 4))
host.admit()
check(host.take_outputs(), (), "outputs after the first token of four")
check(interrupted(host.generate_rounds), True, "Ctrl-C is raised")
check(engine.stats().outputs, 1, "the call was done: outputs on the device")
check([(out.request, len(out.tokens)) for out in host.take_outputs()], [(1, 4)], "outputs taken")
print("right")
