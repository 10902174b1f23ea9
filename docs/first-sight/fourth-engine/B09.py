"""An interrupt during a prefill leaves a request waiting that is already on the device.

docs/serving.md: "An interrupt waits until the new state of the device is stored. So nothing is
lost: `generate([])` continues with the submitted requests and returns all outputs". Ctrl-C comes
while the prefill of two requests runs (here it is raised as the compiled function is called). Both
then go on: after the KeyboardInterrupt `generate([])` returns both outputs of 4 and 5 tokens.
"""

import signal

from common_b import Geometry, Params, Request, attempt, engine, verdict
from impl.engine import compiled
from impl.host import Host

one = engine(Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4))
run = compiled(one.setup, "prefill_requests")
pressed = []


def run_and_press(*given):
    if not pressed:
        pressed.append(True)
        signal.raise_signal(signal.SIGINT)
    return run(*given)


one._entries["prefill_requests"] = run_and_press
host = Host(one)
requests = [
    Request(id=1, prompt=(3, 4), params=Params(max_new=4)),
    Request(id=2, prompt=(5,), params=Params(max_new=5)),
]
try:
    host.generate(requests)
    interrupted = False
except KeyboardInterrupt:
    interrupted = True
found = attempt(host.generate, [])
lengths = {k: len(o.tokens) for k, o in found.items()} if isinstance(found, dict) else found
verdict((True, {(1, 0): 4, (2, 0): 5}), (interrupted, lengths))
