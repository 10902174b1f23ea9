"""K and V beside the oracle, where a written cell still holds NaN: its write was lost.

Five written cells in two pages. One pool is right, and in another the cell of position 3 holds what
stood there before any write, NaN. By hand: position 3 is wrong in each of the two layers, no other
is. (Through `differences` the same shows with an engine whose `write` leaves the pool as it was.)
"""
import sys

import numpy as np

from conformance.numerics import llama_cells
from conformance.numerics.llama import MODEL, SETUP, cells, drawn_weights

TEXT, ROW, SIZE = (3, 1, 4, 1, 5), (7, 2), SETUP.geometry.page_size
wanted = cells(MODEL, drawn_weights(0), TEXT)


def told(lost):
    pools = []
    for layer in wanted:
        pool = np.full((SETUP.geometry.pages, SIZE, *layer.shape[1:]), np.nan)
        for at, cell in enumerate(layer):
            pool[ROW[at // SIZE], at % SIZE] = np.nan if at == lost else cell
        pools.append(pool)
    held = llama_cells.Held(
        used=(True,), texts=(TEXT,), allocated=(5,), written=(5,), rows=(ROW,),
        queued=frozenset(), pools=tuple(pools),
    )
    return list(llama_cells._wrong(held, 0, wanted, 0))


assert told(None) == [], "the right cells are right"
found = told(3)
print("with NaN in position 3:", found)
if len(found) != 2 or not all("position 3 " in text for text in found):
    sys.exit(1)
