"""`kvspec kernel tpu --mutants` tries the correct kernel too, and holds only if that passes.

docs/kernel.md: the bugs are planted, and the kernel without a bug is the control. Here every
mutant is caught ("finding"), while each control raised at once, as where the interpreter is broken
("raised", no batch answered). Nothing is then known of the kernel without a bug: the run does not
hold.
"""

import argparse
import sys

from conformance.cli import kernel
from conformance.cli.contract import Report
from conformance.verdict import Verdict


def make(arguments, report, tried):
    for one in tried:
        one.ended = "raised" if one.job.mutant is None else "finding"
        one.text = "JaxRuntimeError: INTERNAL" if one.job.mutant is None else ""


kernel._make = make
report = Report(command="kernel", seed=0, quiet=True)
verdict = kernel._mutants(argparse.Namespace(kernel="tpu", cases=1, seed=0), report)
print(verdict, report.failures[:1])
sys.exit(0 if verdict is not Verdict.HOLDS else 1)
