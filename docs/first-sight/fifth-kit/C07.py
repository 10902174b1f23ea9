"""A view takes numbers that are no integers, and cuts them off.

spec.view.View: `allocated` is one integer per slot; lists and arrays become tuples, and InvalidInput
is raised for a field with other values. 1.5 cells are no number of cells, and a text is none. An
integer of numpy is one. Cut off to 1, the view would be judged as a right one.
"""

import numpy as np
from common_c import judge, rejected

from spec.view import View
from spec.vocabulary import INVALID, Geometry


def make(allocated):
    return View(
        geometry=Geometry(pages=2, page_size=2, slots=1, pages_per_seq=2),
        counts=(1, 0),
        used=(True,),
        rows=((0, INVALID),),
        allocated=allocated,
    )


judge(
    ("an array of int32 is rejected", False, rejected(lambda: make(np.array([1], np.int32)))),
    ("[1.5] is rejected", True, rejected(lambda: make([1.5]))),
    ("an array of float32 is rejected", True, rejected(lambda: make(np.array([1.25], np.float32)))),
    ("['1'] is rejected", True, rejected(lambda: make(["1"]))),
)
