"""`make mutants`: which mutants are killed, by which method; writes a page for each group.

    python -m conformance.mutation.run --size 300
    python -m conformance.mutation.run --group metadata --method fuzz --size 30
    python -m conformance.mutation.run --explained
    python -m conformance.mutation.run --all
    python -m conformance.mutation.run --reasons docs/mutants
    python -m conformance.mutation.run --group kernel --kept 9cffe11863a95e3f --write docs/mutants

Every fate is kept as soon as it is known, so that an interrupted run goes on where it ended, on
another machine too. Fates of other sources are used only where --kept names their digest.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final

from attrs import asdict

from conformance.cli.progress import Update, progress
from conformance.mutation import page
from conformance.mutation.fates import ENDS, OUTSIDE, RAISES, Fate, Fates, Key
from conformance.mutation.judges import gates
from conformance.mutation.judges.kernel import RAISED
from conformance.mutation.methods import GATES, KERNELS, SERVED
from conformance.mutation.page import LATE
from conformance.mutation.stamps import stamp
from conformance.mutation.targets import GROUPS, REFINE, TESTS, TRACE, eligible, sample
from conformance.mutation.worker import Job
from conformance.runtime import processes

WORKER: Final = "conformance.mutation.worker"
RESULTS: Final = Path("docs/mutants/fates.jsonl")
PAGES: Final = Path("docs/mutants")
SPARE: Final = 1.5
"""Mutants are traced for each that is asked for: some raise at once, and do not count."""
POLL_SECONDS: Final = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge what is left of the samples, and write the pages. Returns 0 if the targets are met."""
    given = _parser().parse_args(arguments)
    if given.reasons:
        return _tell_reasons(Path(given.reasons))
    fates = Fates(Path(given.results), stamp, kept=given.kept)
    groups = [given.group] if given.group else list(GROUPS)
    sizes = {
        group: len(eligible(group)) if given.all else given.size or GROUPS[group].size
        for group in groups
    }
    with progress("mutants", total=None) as update:
        for group, size in sizes.items():
            methods = sorted(given.method or GROUPS[group].methods, key=LATE.__contains__)
            asked = partial(_asked, group, size=size, fates=fates, explained=given.explained)
            trace = partial(_trace, group, size, fates, given.jobs, update)
            trace()
            while any(fates.left(group, one, asked(one)) for one in methods):
                for method in methods:
                    _judge_all(group, method, asked(method), fates, given.jobs, update)
                trace()  # those that raise are replaced by others
    is_met = True
    for group in groups:
        samples = {
            one: alive(one, sizes.get(one, GROUPS[one].size), fates) for one in page.beside(group)
        }
        found = page.report(group, samples, fates)
        print(found.text)
        is_met &= found.is_met
        if given.write:
            (Path(given.write) / f"{group}.md").write_text(found.text, encoding="utf-8")
    return 0 if is_met else 1


def _tell_reasons(folder: Path) -> int:
    """Write the reasons of today why survivors are missed on the pages of a folder."""
    for path in sorted(folder.glob("*.md")):
        path.write_text(page.explained_anew(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def alive(group: str, size: int, fates: Fates) -> tuple[int, ...]:
    """The first mutants of a sample that are not known to raise as soon as they are traced.

    They end at the first one that TRACE has not judged. The methods of RAISING may set more of them
    aside, whose places others take; a page says which of these methods has not judged its sample.
    """
    if TESTS in GROUPS[group].methods:
        return sample(group, size)
    raising = {key[2] for key, fate in fates.known.items() if _raises(key, fate, group)}
    found = list[int]()
    for one in sample(group, len(eligible(group))):
        traced = fates.known.get((group, TRACE, one))
        if traced is None or len(found) == size:
            break
        if traced.killed is None and one not in raising:
            found.append(one)
    return tuple(found)


def _trace(group: str, size: int, fates: Fates, jobs: int, update: Update) -> None:
    """Trace mutants until so many are alive, or until every one is traced."""
    wanted, most = round(SPARE * size), len(eligible(group))
    while TESTS not in GROUPS[group].methods:
        traced = sample(group, wanted)
        if fates.left(group, TRACE, traced):
            _judge_all(group, TRACE, traced, fates, jobs, update)
        lacking = size - len(alive(group, size, fates))
        if not lacking or wanted >= most:
            return
        wanted += math.ceil(SPARE * lacking)


def _asked(group: str, method: str, *, size: int, fates: Fates, explained: bool) -> list[int]:
    counted = alive(group, size, fates)
    return page.asked(group, method, counted, fates, explained=explained)


def _raises(key: Key, fate: Fate, group: str) -> bool:
    """Whether a mutant raises in a kernel, whose bench then finds nothing, or in a small Llama."""
    if key[0] != group or fate.killed is None:
        return False
    in_kernel = key[1] in KERNELS and fate.killed == RAISED
    return in_kernel or (key[1] == SERVED and fate.killed.startswith(RAISES))


def _judge_all(
    group: str, method: str, numbers: Sequence[int], fates: Fates, jobs: int, update: Update
) -> None:
    """Judge mutants by one method, in several processes at once."""
    left = fates.left(group, method, numbers)
    parts = [tuple(left[at::jobs]) for at in range(jobs)]
    work = [
        Job(group=group, method=method, numbers=part, results=str(fates.path)) for part in parts
    ]
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(_judge, job) for job in work if job.numbers]
        while not all(one.done() for one in waiting):
            time.sleep(POLL_SECONDS)
            fates.refresh()
            done = len(numbers) - len(fates.left(group, method, numbers))
            update(len(fates.known), f"{group}, {method}: {done} of {len(numbers)}")
        for one in waiting:
            one.result()
    fates.refresh()


def _judge(job: Job) -> None:
    """Start processes until every mutant of a job has its fate.

    A process that crashes was ended by the mutant that it had begun to judge: by the first one,
    since others may have left it in a bad state. Raises RuntimeError if it ends otherwise without a
    fate, or is killed from outside: then nothing is known of any mutant.
    """
    fates = Fates(Path(job.results), stamp)
    while left := fates.left(job.group, job.method, job.numbers):
        suspects = len(fates.suspects)
        status = _work(job)
        fates.refresh()
        goes_on = len(fates.suspects) > suspects
        if status in OUTSIDE:
            raise RuntimeError(f"{job.group}, {job.method}: signal {-status} ended the process")
        if goes_on or fates.left(job.group, job.method, job.numbers) != left:
            continue
        key = (job.group, job.method, left[0])
        if status >= 0 or job.method in {REFINE, TRACE} or key not in fates.suspects:
            raise RuntimeError(f"{job.group}, {job.method}: the process ended with {status}")
        fates.add(key, Fate(f"{ENDS}{-status}"))


def _work(job: Job) -> int:
    """Run a process to its end; returns its exit status."""
    with gates.environment() if job.method == GATES else nullcontext() as environment:
        process = processes.start(WORKER, json.dumps(asdict(job)), environment=environment)
        try:
            return process.wait()
        finally:
            processes.end(process)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.mutation.run",
        description="Judge mutants of our engine by the methods of the kit.",
    )
    parser.add_argument("--group", choices=list(GROUPS), help="one group (default: all)")
    parser.add_argument(
        "--method", action="append", help="one method, or several (default: all of the group)"
    )
    parser.add_argument("--size", type=int, help="mutants of each group (default: see the groups)")
    parser.add_argument(
        "--explained", action="store_true", help="also mutants that are explained as equivalent"
    )
    parser.add_argument("--all", action="store_true", help="every mutant: hours")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--results", default=str(RESULTS), help=f"(default {RESULTS})")
    parser.add_argument(
        "--kept",
        metavar="DIGEST",
        action="append",
        default=[],
        help="take fates with this digest too, of code with the same mutants; may be repeated",
    )
    parser.add_argument("--write", help=f"write the pages to this folder, as {PAGES}")
    parser.add_argument(
        "--reasons",
        metavar="FOLDER",
        help="judge nothing: write on the pages of this folder why survivors are missed",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
