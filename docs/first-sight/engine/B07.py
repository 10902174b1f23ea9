from common import *
# Two outputs that nobody took fill the buffer; `generate` takes them itself and goes on.
h = Host(engine(8, 4, 2, 2, outputs=2))
for one in (1, 2):
    h.submit(req(one, (1, 2), 1))
    h.admit()
check(h.stats().outputs, 2, "outputs")
try:
    out = sorted(h.generate([req(3, (3, 4), 2)]))
except Stalled as error:
    out = f"Stalled: {error}"
check(out, [(1, 0), (2, 0), (3, 0)], "outputs of generate")
