"""`make hostile`: both campaigns, each resumed where it was stopped.

Results are kept in a file of JSON Lines. A violation of the contract is printed as one command
line, and its folder is kept. The exit status is 1 if there was a violation.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

from attrs import asdict, evolve

from conformance.hostile import calls, contract, inputs, interrupts, running
from conformance.hostile.calls import Call
from conformance.hostile.interrupts import Subject, Tried
from conformance.hostile.running import Outcome
from conformance.runtime.sources import digest

HOME: Final = Path(".kvspec/hostile")
WORKERS: Final = 2
INPUTS: Final = 300
SHOWN_BYTES: Final = 2000

T = TypeVar("T")

Line = dict[str, Any]


class Kept:
    """Results in a file of JSON Lines; lines of other sources or draws are ignored."""

    def __init__(self, path: Path, **draws: int) -> None:
        self._path, self._lock = path, Lock()
        self._about = {**draws, "source": digest()}
        self.lines: list[Line] = [line for line in _read(path) if _is(line, self._about)]

    def add(self, line: Mapping[str, object]) -> None:
        """Keep one more."""
        whole = {**line, **self._about}
        with self._lock:
            self.lines.append(whole)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(whole) + "\n")


def _read(path: Path) -> list[Line]:
    """The lines; an incomplete last line is left out."""
    found: list[Line] = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found


def _is(line: Line, about: Mapping[str, object]) -> bool:
    return all(line.get(name) == value for name, value in about.items())


class Told:
    """Progress on stderr, and each violation at once, as a command line."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._lock = total, 0, Lock()

    def one(self, what: str, wrong: Sequence[str], line: str, outcome: Outcome) -> None:
        """Report one finished call."""
        with self._lock:
            self._done += 1
            mark = "VIOLATES" if wrong else "as it should"
            self._print(f"{self._done} of {self._total}: {what}: {outcome.status}, {mark}")
            if wrong:
                self._print(f"  again: {line}")
                for text in wrong:
                    self._print(f"    {text}")

    @staticmethod
    def _print(text: str) -> None:
        print(text.encode(errors="replace").decode(), file=sys.stderr, flush=True)


def _keep_failing(call: Call, outcome: Outcome, wrong: Sequence[str], folder: Path) -> str:
    """Restore the folder to its state before the call, and add what was observed."""
    calls.prepare(call, folder)
    seen = {
        "about": call.about,
        "violations": [*wrong],
        "status": outcome.status,
        "out": outcome.out[-SHOWN_BYTES:],
        "err": outcome.err[-SHOWN_BYTES:],
    }
    (folder / "seen.json").write_text(json.dumps(seen, indent=2) + "\n", encoding="utf-8")
    line = calls.shell_line(call, folder)
    (folder / "again.sh").write_text(line + "\n", encoding="utf-8", errors="surrogateescape")
    return line


def hostile_inputs(*, number: int, seed: int, home: Path, program: tuple[str, ...]) -> list[Line]:
    """Run this many hostile inputs, without those of earlier runs; return all results."""
    kept = Kept(home / "inputs.jsonl", seed=seed, inputs=number)
    done = {line["number"] for line in kept.lines}
    every = inputs.draw(number, seed=seed)
    left = [at for at in range(len(every)) if at not in done]
    told = Told(len(left))

    def one(at: int) -> None:
        drawn = every[at]
        call = evolve(drawn, program=program) if drawn.program == calls.KVSPEC else drawn
        call = inputs.with_cache(call, (home / "compiled").absolute())
        folder = (home / "inputs" / f"{seed}-{at}").absolute()
        calls.prepare(call, folder)
        outcome = running.run(call, folder, most=inputs.MOST_SECONDS)
        wrong = contract.violations(call, outcome, folder)
        line = _settle(call, outcome, wrong, folder)
        told.one(call.about, wrong, line, outcome)
        seen = {"status": outcome.status, "seconds": round(outcome.seconds, 2)}
        kept.add({"number": at, "about": call.about, **seen, "violations": wrong, "again": line})

    _at_once(one, left)
    return kept.lines


def _settle(call: Call, outcome: Outcome, wrong: Sequence[str], folder: Path) -> str:
    """Keep the folder of a violation, and remove any other."""
    if wrong:
        return _keep_failing(call, outcome, wrong, folder)
    calls.remove(folder)
    return ""


def interrupted(
    chosen: Mapping[str, Subject], *, moments: int | None, seed: int, home: Path
) -> list[Line]:
    """Interrupt each command, without the moments of earlier runs; return all results."""
    kept = Kept(home / "interrupts.jsonl", seed=seed)
    done = {(line["command"], line["number"]) for line in kept.lines}
    counts = {name: moments or subject.moments for name, subject in chosen.items()}
    left = {
        name: [at for at in range(count) if (name, at) not in done]
        for name, count in counts.items()
    }
    chains = [(name, None) for name, subject in chosen.items() if subject.chained and left[name]]
    told = Told(sum(map(len, left.values())) + len(chains))  # a chain is at last run to its end
    warm = (home / "compiled").absolute()

    def place(name: str, at: int) -> Path:
        return (home / "interrupts" / f"{name.replace(' ', '')}-{seed}-{at}").absolute()

    def keep(tried: Tried, call: Call, outcome: Outcome) -> None:
        again = place(tried.command, tried.number)
        line = _settle(call, outcome, tried.violations, again)
        told.one(f"{tried.command}, {tried.moment}", tried.violations, line, outcome)
        kept.add({**asdict(tried), "again": line})

    def one(job: tuple[str, int | None]) -> None:
        name, at = job
        subject = chosen[name]
        if at is None:
            draws = {at: interrupts.moment(seed, name, at) for at in left[name]}
            folder = (home / "interrupts" / f"{name.replace(' ', '')}-chain").absolute()
            interrupts.try_chain(name, subject, draws, folder, warm=warm, keep=keep)
            calls.remove(folder)
        else:
            drawn = interrupts.moment(seed, name, at)
            interrupts.try_one(name, subject, at, drawn, place(name, at), warm=warm, keep=keep)

    singles = [(name, at) for name, numbers in left.items() if not chosen[name].chained
               for at in numbers]  # fmt: skip
    singles.sort(key=lambda job: job[1])  # a little of each, so that a campaign cut short says most
    _at_once(one, [*chains, *singles])
    return [line for line in kept.lines if line["command"] in chosen]


def _at_once(one: Callable[[T], None], jobs: Iterable[T]) -> None:
    """Run two at a time; the first error ends the run."""
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            for _ in pool.map(one, jobs):
                pass
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def table(lines: Iterable[Line]) -> str:
    """One row for each command: moments, exit statuses, the slowest end, violations."""
    by_command: dict[str, list[Line]] = {}
    for line in lines:
        by_command.setdefault(line["command"], []).append(line)
    rows = [("command", "moments", "early", "statuses", "slowest end", "violations")]
    for name, held in by_command.items():
        seen = [line for line in held if not line["early"]]
        statuses = Counter(line["status"] for line in seen)
        told = ", ".join(f"{times} x {status}" for status, times in sorted(statuses.items()))
        slowest = max((line["after"] for line in seen if line["after"] is not None), default=0.0)
        wrong = sum(bool(line["violations"]) for line in held)
        early = len(held) - len(seen)
        rows.append((name, str(len(held)), str(early), told, f"{slowest:.1f} s", str(wrong)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def classes(lines: Iterable[Line]) -> Counter[str]:
    """The number of violations of each class, which is the word before the colon."""
    return Counter(text.partition(":")[0] for line in lines for text in line["violations"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen campaigns and print the tables; return 1 if there was a violation."""
    options = _options().parse_args(argv)
    home = options.folder
    failed = False
    if options.campaign in {"inputs", "all"}:
        lines = hostile_inputs(
            number=options.inputs, seed=options.seed, home=home, program=calls.KVSPEC
        )
        wrong = sum(bool(line["violations"]) for line in lines)
        print(f"hostile inputs: {len(lines)} calls, {wrong} violate the contract")
        failed |= _tell(lines)
    if options.campaign in {"interrupts", "all"}:
        every = interrupts.subjects()
        chosen = {name: every[name] for name in options.only or every}
        lines = interrupted(chosen, moments=options.moments, seed=options.seed, home=home)
        print(table(lines))
        failed |= _tell(lines)
    return 1 if failed else 0


def _tell(lines: Sequence[Line]) -> bool:
    """Print the classes of violations, and how to reproduce each; return whether there are any."""
    for name, times in classes(lines).most_common():
        print(f"  {times:>4} {name}")
    for line in lines:
        if line["violations"]:
            print(line["again"].encode(errors="replace").decode())
            for text in line["violations"]:
                print(f"    {text}".encode(errors="replace").decode())
    return any(line["violations"] for line in lines)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.hostile.run",
        description="Try to break the command line: hostile inputs, and interrupts at any moment.",
        epilog="example: python -m conformance.hostile.run interrupts --only fuzz --moments 5",
    )
    parser.add_argument("campaign", nargs="?", choices=("all", "inputs", "interrupts"),
                        default="all")  # fmt: skip
    parser.add_argument("--inputs", type=int, default=INPUTS, metavar="N")
    parser.add_argument("--moments", type=int, metavar="N", help="of each command")
    parser.add_argument("--only", action="append", metavar="COMMAND", help="interrupt this one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=HOME, help=f"(default {HOME})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
