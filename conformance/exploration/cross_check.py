"""`make cross-check`: the number of allocator states compared with the number that SPIN reaches.

An exploration that forgets an action, or merges two states, looks like one that found no bug. So
the allocator instance is written a second time, in Promela (`spin/allocator.pml`), and SPIN, which
shares no code with us, counts its states and transitions and checks the invariants in each of them.

Without spin or a C compiler nothing is checked, and the verdict is undecided, never a pass.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import evolve, frozen

from conformance.verdict import Verdict
from spec.vocabulary import Geometry

MODEL: Final = Path(__file__).with_name("spin") / "allocator.pml"
SECONDS: Final = 300.0
"""How long one geometry may take, preprocessing and compilation included."""
MEMORY_MB: Final = 4096
LEAST_DEPTH: Final = 10_000
OPTIMISED_FROM: Final = 100_000
"""States from which a faster search is worth the slower compilation."""
PACKAGES: Final = {"spin": "spin", "cc": "gcc"}
"""The Debian package of each program that is needed."""
COMPILER_OPTIONS: Final = (
    "-w",  # the C code is SPIN's and not ours to change
    "-DSAFETY",  # no search for cycles
    "-DNOREDUCE",  # no partial-order reduction, which would leave states out
    f"-DMEMLIM={MEMORY_MB}",
)

_STORED: Final = re.compile(r"^ *(\d+) states, stored$", re.MULTILINE)
_TRANSITIONS: Final = re.compile(r"^ *(\d+) transitions \(= stored\+matched\)$", re.MULTILINE)
_ERRORS: Final = re.compile(r"\berrors: (\d+)$", re.MULTILINE)
_VIOLATION: Final = re.compile(r"^pan:\d+: (.+)$", re.MULTILINE)
_UNFINISHED: Final = ("Search not completed", "max search depth too small")


@frozen(kw_only=True)
class Pinned:
    """The counts of a geometry. transitions: with refusals, which lead to the same state."""

    geometry: Geometry
    states: int
    transitions: int
    what: str


def _pinned(sizes: tuple[int, int, int, int], states: int, transitions: int, what: str) -> Pinned:
    pages, slots, page_size, pages_per_seq = sizes
    geometry = Geometry(pages=pages, slots=slots, page_size=page_size, pages_per_seq=pages_per_seq)
    return Pinned(geometry=geometry, states=states, transitions=transitions, what=what)


PINNED: Final = (
    _pinned((4, 3, 2, 2), 6_780, 60_816, "too few pages for three full sequences"),
    _pinned((6, 3, 2, 3), 513_716, 4_621_560, "the largest"),
    _pinned((4, 3, 1, 2), 1_974, 12_384, "no page is ever partial, so no clone takes one"),
    _pinned((5, 2, 3, 2), 592, 4_582, "more pages than all rows together: never out of pages"),
    _pinned((2, 4, 2, 3), 1_086, 13_392, "fewer pages than one row: no sequence can be full"),
    _pinned((3, 1, 4, 2), 10, 46, "one slot: nothing to clone into"),
)
"""Pages, slots, page size and pages per sequence; states; transitions; what is special.

The tests hold all but the largest to a plain search over `spec.machines.sharing`.
"""


@frozen(kw_only=True)
class Count:
    """The counts that SPIN reports for one run.

    transitions: without the one that SPIN counts for entering the initial state, so that it is the
    number of (state, action) pairs. violation: the first broken assertion. complete: whether
    all states were visited; if not, the numbers are lower bounds.
    """

    states: int
    transitions: int
    errors: int
    violation: str | None
    complete: bool


@frozen(kw_only=True)
class Outcome:
    """The outcome of one comparison. why: empty if it holds. count: None if SPIN did not run."""

    verdict: Verdict
    why: str = ""
    count: Count | None = None
    seconds: float = 0.0


class NotRun(Exception):
    """SPIN, the compiler or the search gave no answer; the message says why."""


def check(
    geometry: Geometry,
    expected_states: int,
    *,
    expected_transitions: int | None = None,
    bug: int = 0,
    seconds: float = SECONDS,
) -> Outcome:
    """Count the states with SPIN and compare. bug: the number of a bug in the model; 0 for none."""
    started = time.monotonic()
    try:
        text = search(geometry, expected_states, bug=bug, seconds=seconds)
        outcome = judge(parse(text), expected_states, expected_transitions)
    except NotRun as reason:
        outcome = Outcome(verdict=Verdict.UNDECIDED, why=f"not checked: {reason}")
    return evolve(outcome, seconds=time.monotonic() - started)


def judge(count: Count, expected_states: int, expected_transitions: int | None = None) -> Outcome:
    """Compare the counts of SPIN with the expected ones."""

    def outcome(verdict: Verdict, why: str = "") -> Outcome:
        return Outcome(verdict=verdict, why=why, count=count)

    if count.errors:
        return outcome(Verdict.FAILS, count.violation or f"SPIN reports {count.errors} errors")
    if not count.complete and count.states <= expected_states:
        return outcome(Verdict.UNDECIDED, f"SPIN stopped early, after {count.states} states")
    if count.states != expected_states:
        least = "" if count.complete else "at least "
        why = f"SPIN has {least}{count.states} states, expected {expected_states}"
        return outcome(Verdict.FAILS, why)
    if expected_transitions not in (None, count.transitions):
        why = f"SPIN has {count.transitions} transitions, expected {expected_transitions}"
        return outcome(Verdict.FAILS, why)
    return outcome(Verdict.HOLDS)


def parse(text: str) -> Count:
    """Read the output of SPIN's verifier, or raise NotRun.

    From 10**8 on it prints rounded numbers in exponent notation, which raise NotRun.
    """
    stored, transitions = _STORED.search(text), _TRANSITIONS.search(text)
    errors, violation = _ERRORS.search(text), _VIOLATION.search(text)
    if stored is None or transitions is None or errors is None:
        raise NotRun(f"SPIN's verifier gave no exact counts: {_tail(text)}")
    return Count(
        states=int(stored[1]),
        transitions=int(transitions[1]) - 1,
        errors=int(errors[1]),
        violation=violation and violation[1],
        complete=not any(sign in text for sign in _UNFINISHED),
    )


def search(
    geometry: Geometry, expected_states: int, *, bug: int = 0, seconds: float = SECONDS
) -> str:
    """Make, compile and run the verifier of a geometry; return its output, or raise NotRun.

    All states on the search stack differ. So a search deeper than the expected number of states has
    found too many, and may be cut off at that depth.
    """
    missing = missing_program()
    if missing:
        raise NotRun(missing)
    sizes = {
        "PAGES": geometry.pages,
        "SLOTS": geometry.slots,
        "PAGE_SIZE": geometry.page_size,
        "PAGES_PER_SEQ": geometry.pages_per_seq,
        "BUG": bug,
    }
    defines = [f"-D{name}={value}" for name, value in sizes.items()]
    depth = max(LEAST_DEPTH, expected_states)
    optimise = "-O2" if expected_states >= OPTIMISED_FROM else "-O0"
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="kvspec-spin-") as folder:
        _run(["spin", *defines, "-a", str(MODEL)], folder, deadline)
        _run(["cc", optimise, *COMPILER_OPTIONS, "-o", "pan", "pan.c"], folder, deadline)
        return _run([str(Path(folder) / "pan"), "-n", f"-m{depth}"], folder, deadline)


def missing_program() -> str | None:
    """Names a program that is not installed and how to install it; None if all are installed."""
    for program, package in PACKAGES.items():
        if shutil.which(program) is None:
            return f"{program} is not installed; apt-get install {package}"
    return None


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """FAILS if one fails; HOLDS if all hold and there is at least one; otherwise UNDECIDED."""
    if Verdict.FAILS in verdicts:
        return Verdict.FAILS
    return Verdict.HOLDS if {*verdicts} == {Verdict.HOLDS} else Verdict.UNDECIDED


def main(argv: Sequence[str] | None = None) -> int:
    """Compare every pinned geometry; exit status 0 holds, 1 fails, 3 undecided."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.exploration.cross_check",
        description="Compare the number of allocator states with the number that SPIN reaches.",
        epilog="exit status: 0 holds, 1 fails, 3 undecided: spin or cc is missing or was stopped",
    )
    parser.parse_args(argv)
    missing = missing_program()
    if missing:
        print(f"cross-check: undecided\nnot checked: {missing}")
        return Verdict.UNDECIDED.exit_status
    verdicts = []
    for pinned in PINNED:
        outcome = check(pinned.geometry, pinned.states, expected_transitions=pinned.transitions)
        verdicts.append(outcome.verdict)
        print(line(pinned, outcome), flush=True)
    verdict = overall(verdicts)
    print(f"cross-check: {verdict.value}, {len(verdicts)} geometries")
    return verdict.exit_status


def line(pinned: Pinned, outcome: Outcome) -> str:
    """One comparison as text."""
    sizes = pinned.geometry
    text = (
        f"{outcome.verdict.value}: pages {sizes.pages}, slots {sizes.slots}, page size "
        f"{sizes.page_size}, pages per sequence {sizes.pages_per_seq}: {pinned.states} states, "
        f"{pinned.transitions} transitions ({outcome.seconds:.1f} s)"
    )
    return f"{text}\n  {outcome.why}" if outcome.why else text


def _run(command: list[str], folder: str, deadline: float) -> str:
    """The output of a program on both streams. Raises NotRun if it fails or is too slow."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=max(0.0, deadline - time.monotonic()),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotRun(f"{name} did not end in time") from None
    if done.returncode != 0:
        raise NotRun(f"{name} ended with status {done.returncode}: {_tail(done.stdout)}")
    return done.stdout


def _tail(text: str) -> str:
    lines = [found.strip() for found in text.splitlines() if found.strip()]
    return " / ".join(lines[-3:]) or "no output"


if __name__ == "__main__":
    sys.exit(main())
