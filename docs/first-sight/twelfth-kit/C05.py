"""Release is refused (WINDOW) as soon as `before` is above 0 and committed - window + 1."""
from common import *

machine = ladder.machine("scheduling", "window")


def committed_cells(count, page_size, window):
    g = geometry(page_size=page_size, window=window, pages=8, pages_per_seq=8)
    m, s = start(g, machine)
    s = run(m, s, act.Prefill((Request(id=1, prompt=(1,) * count, params=Params(max_new=2)),)))
    assert s.committed[0] == count
    return m, s


for page_size in (1, 2, 4):
    for window in (None, 3):
        m, s = committed_cells(4, page_size, window)
        most = 0 if window is None else max(0, 4 - window + 1)
        for before in range(10):
            wanted = {"WINDOW"} if before > most else set()
            what = f"page size {page_size}, window {window}, before {before}"
            seen(what, reasons(m, s, act.Release(0, before)), wanted)
