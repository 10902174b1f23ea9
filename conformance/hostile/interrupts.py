"""Interrupts at random moments of each command: it must end soon, lose nothing, and report truly.

Half of the moments fall into the first three seconds, the time of imports and compilation. A third
of these have an empty cache of compiled code.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from attrs import evolve, field, frozen

from conformance.hostile import calls, contract, running
from conformance.hostile.calls import CLEAN, FAILS, NOT_CLEAN, Call, Content
from conformance.hostile.running import How, Moment, Outcome
from conformance.hostile.samples import samples
from conformance.hostile.toy import TOY

LATEST: Final = 20.0
EARLY: Final = 3.0
MOST_SECONDS: Final = 240.0
"""Time limit of a call that is not interrupted, or does not react."""
GRAPH: Final = "pages=7,slots=3,page_size=2,pages_per_seq=3"
REFINED: Final = "pages=6,slots=3,page_size=2,pages_per_seq=3"
REPEATS: Final = 100_000
OFTEN: Final = """\
import sys
from conformance.cli import graphs
from conformance.cli.main import supervised_main
graphs.CHECKPOINT_SECONDS = 1.0
sys.argv[0] = "kvspec"
sys.exit(supervised_main())
"""
"""Checkpoints are saved every second, so that most interrupts leave one."""
COUNTS: Final = ("states", "transitions", "illegal", "depth", "actions")
"""Counts that must be equal for a resumed and an uninterrupted exploration."""


@frozen(kw_only=True)
class Subject:
    """A command to interrupt. call: without its result file. chained: resumed each time.

    moments: their number unless the command line gives another.
    """

    call: Call
    moments: int = 10
    chained: bool = False


@frozen(kw_only=True)
class Tried:
    """The outcome of one moment. early: the process did not handle signals yet."""

    command: str
    number: int
    moment: str
    seconds: float
    status: int
    after: float | None
    early: bool
    violations: list[str] = field(factory=list)


NO_FILES: Final[Mapping[str, Content]] = {}
Keep = Callable[[Tried, Call, Outcome], None]
"""Receives a trial, its call and its outcome."""


def subjects() -> dict[str, Subject]:
    """The commands, by name."""

    def call(*words: str, files: Mapping[str, Content] = NO_FILES) -> Call:
        return Call(about=words[0], words=words, allowed=CLEAN, files=files)

    def planted(*words: str) -> Call:
        return evolve(call(*words), allowed=NOT_CLEAN)

    trace: dict[str, Content] = {"trace.csv": _trace()}
    toy: dict[str, Content] = {"toy.py": TOY.encode()}
    explore = call("explore", "--geometry", GRAPH, "--checkpoint", "e.npz")
    often = evolve(explore, program=(sys.executable, "-c", OFTEN))
    replay = call("replay", "trace.csv", "--format", "azure", files=trace)
    plant = call("plant", "--only", "CW5,RC2", "--seeds", "2", "--results", "p.jsonl")
    recording: dict[str, Content] = {"long.jsonl": _recording()}
    return {
        "fuzz": Subject(call=call("fuzz", "--seconds", "25"), moments=50),
        "fuzz --plant": Subject(call=planted("fuzz", "--plant", "CW5", "--seconds", "25")),
        "refine": Subject(call=call("refine", "--geometry", REFINED), moments=50),
        "refine --plant": Subject(call=planted("refine", "--plant", "RC2", "--geometry", REFINED)),
        "replay": Subject(call=replay, moments=50),
        "explore --checkpoint": Subject(call=often, moments=50, chained=True),
        "plant": Subject(call=plant, moments=50),
        "diff": Subject(call=call("diff", "toy:make", "toy:make", "--seconds", "25", files=toy)),
        "validate": Subject(
            call=call("validate", "long.jsonl", "--require", "nothing", files=recording)
        ),
        "kernel": Subject(call=call("kernel", "tpu", "--cases", "2")),
        "vectors": Subject(call=call("vectors", "v")),
    }


@cache
def _trace() -> bytes:
    """Requests for half a minute."""
    draws = random.Random(0)
    rows = [
        f"2023-11-16 18:{at // 60 % 60:02}:{at % 60:02}.000000,{draws.randrange(1, 4000)},"
        f"{draws.randrange(1, 400)}"
        for at in range(3000)
    ]
    return "\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows, "")).encode()


@cache
def _recording() -> bytes:
    """A legal recording that takes some twenty seconds to validate: each part ends in a reset."""
    header, *lines = samples()["recording.jsonl"].splitlines(keepends=True)
    return header + b"".join(lines) * REPEATS


def moment(seed: int, name: str, number: int) -> Moment:
    """A moment: a function of seed, command and number."""
    draws = random.Random(f"{seed} {name} {number}")
    latest = EARLY if draws.random() < 0.5 else LATEST
    return Moment(
        seconds=round(draws.uniform(0.0, latest), 3),
        how=draws.choice(list(How)),
        cold=draws.random() < 1 / 3,
    )


def described(moment: Moment | None) -> str:
    """The moment in words."""
    if moment is None:
        return "to the end"
    return f"{moment.how.value} after {moment.seconds:.2f} s{', cold' if moment.cold else ''}"


def try_one(
    name: str,
    subject: Subject,
    number: int,
    moment: Moment,
    folder: Path,
    *,
    warm: Path,
    keep: Keep,
) -> None:
    """Interrupt one run.

    folder: of this trial, made anew. warm: a filled cache of compiled code.
    """
    call = _with_result(subject.call, moment, warm)
    calls.prepare(call, folder)
    outcome = running.run(call, folder, moment=moment, most=MOST_SECONDS)
    wrong = contract.violations(call, outcome, folder, moment=moment)
    wrong += _not_found_again(call, outcome, folder, warm)
    keep(_tried(name, number, moment, outcome, wrong), call, outcome)


def try_chain(
    name: str,
    subject: Subject,
    moments: Mapping[int, Moment],
    folder: Path,
    *,
    warm: Path,
    keep: Keep,
) -> None:
    """Interrupt and resume for every moment, then run to the end; the counts must be right.

    Whenever a run reaches its end, the next one begins anew.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = _with_result(subject.call, Moment(0.0, How.PROCESS, cold=False), warm)
    calls.prepare(whole, folder)
    running.run(whole, folder, most=MOST_SECONDS)
    right = _counts(folder)
    if right is None:
        raise RuntimeError(f"{name}, uninterrupted, has no result: look at {folder}")
    calls.prepare(whole, folder)
    for number, at in (*moments.items(), (-1, None)):
        (folder / "work" / "r.json").unlink(missing_ok=True)
        call = whole if at is None else _with_result(subject.call, at, warm)
        outcome = running.run(call, folder, moment=at, most=MOST_SECONDS)
        wrong = contract.violations(call, outcome, folder, moment=at)
        if outcome.status == calls.HOLDS and _counts(folder) != right:
            wrong.append(f"false holds: resumed, it counts {_counts(folder)}, should be {right}")
        if outcome.status == calls.BAD_INPUT:
            wrong.append(f"checkpoint: it is not resumed: {outcome.err.strip()[:300]}")
        if at is None and outcome.status != calls.HOLDS:
            wrong.append(f"false verdict: the last run, uninterrupted, ended with {outcome.status}")
        keep(_tried(name, number, at, outcome, wrong), call, outcome)


def _with_result(call: Call, moment: Moment, warm: Path) -> Call:
    cache = "FOLDER/home/compiled" if moment.cold else str(warm)
    return evolve(
        call,
        words=(*call.words, "--json", "r.json"),
        environ={**call.environ, "JAX_COMPILATION_CACHE_DIR": cache},
    )


def _tried(
    name: str, number: int, moment: Moment | None, outcome: Outcome, wrong: list[str]
) -> Tried:
    return Tried(
        command=name,
        number=number,
        moment=described(moment),
        seconds=round(outcome.seconds, 2),
        status=outcome.status,
        after=None if outcome.after is None else round(outcome.after, 2),
        early=not outcome.listening,
        violations=wrong,
    )


def _counts(folder: Path) -> dict[str, object] | None:
    """The counts in the result; None without a result."""
    path = folder / "work" / "r.json"
    if not path.exists():
        return None
    value = json.loads(path.read_text(encoding="utf-8"))
    return {name: value.get(name) for name in COUNTS}


def _not_found_again(call: Call, outcome: Outcome, folder: Path, warm: Path) -> Iterator[str]:
    """A kept history of a failing run must fail when it is rerun."""
    if outcome.status != FAILS:
        return
    for path in sorted((folder / "work" / ".kvspec" / "corpus").glob("*.jsonl")):
        again = evolve(
            call,
            words=("rerun", "--trust", str(path.relative_to(folder / "work"))),
            environ={"JAX_COMPILATION_CACHE_DIR": str(warm)},
        )
        status = running.run(again, folder, most=MOST_SECONDS).status
        if status != FAILS:
            yield f"false fails: {path.name} rerun ends with {status}"
