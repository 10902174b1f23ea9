"""The outputs that Stalled holds are also kept by the host, and are returned a second time.

`Stalled`: its `outputs` "are taken, and only this error holds them". With cleanup NONE two slots are
never freed, so the third of three requests cannot be admitted when the first two have finished:
generate raises Stalled with their two outputs. They are taken, so a following take_outputs returns
none.
"""

from common_b import CleanupMode, Geometry, Params, Request, engine, verdict
from impl.host import Host, Stalled

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2)
host = Host(engine(geometry, cleanup=CleanupMode.NONE))
try:
    host.generate([Request(id=n, prompt=(n, 7), params=Params(max_new=3)) for n in (1, 2, 3)])
    held = None
except Stalled as error:
    held = sorted(error.outputs)
left = [(output.request, output.choice) for output in host.take_outputs()]
verdict(([(1, 0), (2, 0)], []), (held, left))
