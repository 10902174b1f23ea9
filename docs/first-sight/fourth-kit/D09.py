"""A finding of the bench is told with the batch that shows it, also if the kernel raises later.

The kernel answers 1000 everywhere on a batch of four queries, and raises on any other. The first batch
of a job has a decoding query beside a prefill of three, so it is `wrong` there; while the bench looks
for a smaller failing batch the kernel raises, which ends the search (docs/kernel.md: a failing batch is
shrunk, and a finding is reported with its batch, from which --reproduce writes the call and its arrays).
The batch of the finding must be one of four queries: on the one tried last the kernel gave no answer.
"""

from common_d import compare
from conformance.kernels import jobs, processes
from conformance.kernels.batches import SIZES
from conformance.kernels.processes import Tried
from conformance.kernels.trials import Job

if __name__ == "__main__":
    tried = Tried(Job(kernel="d09_kernel:attention", sizes=SIZES[0].name, cases=8))
    processes.make_all([tried], update=lambda *_: None)
    findings = jobs.totals([tried])["findings"]
    lens = [one["batch"]["lens"] for one in findings if one["batch"]]
    print("lengths (queries, cells) of the batches of the findings:", lens)
    compare(
        "what was found, and the queries of its batch",
        [(["wrong"], 4)],
        [(one["what"], sum(queries for queries, _ in one["batch"]["lens"])) for one in findings],
    )
