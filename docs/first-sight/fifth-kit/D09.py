"""A kernel whose answers in two layouts are each within the bound, in opposite directions.

docs/kernel.md: the twin "order" has the same sequences in the opposite order, and `twin` means that
"another layout gives another answer". Two right answers of one query may differ by the sum of its two
bounds, and both layouts have the same bound for it. Here the first is 0.9 of the bound too large and
the second 0.9 too small, in each element: 1.8 of the 2 bounds that are allowed, so nothing is wrong.
"""

import numpy as np

from common_d import conclude
from conformance.kernels import answers, metamorphic
from conformance.kernels.batches import SIZES, Batch, build
from conformance.kernels.interpret import Answer
from conformance.kernels.trials import Case, Job, Trial

sizes = SIZES[0]
batch = Batch(lens=((1, 1), (1, 40)), plain=True)
arrays = build(sizes, batch)
case = Case(sizes, batch, arrays)
right = answers.right(sizes, arrays)


class Fake(Trial):
    """A trial whose kernel answers 0.9 of the bound too low."""

    def _attend(self, case):
        there = answers.right(case.sizes, case.arrays)
        return Answer(there.answer - 0.9 * there.bound, ())


job = Job(kernel="reference", sizes=sizes.name, twin="order")
trial = Fake(job, None, {})
said = trial._differs(case, right.answer + 0.9 * right.bound, right.bound, twin="order")
print("bounds of the two queries:", right.bound[0].max(), right.bound[1].max())
conclude([], said)
