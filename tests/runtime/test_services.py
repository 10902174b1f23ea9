"""The services of every process, each beside a second reading of what it says of itself."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, combinations, product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from conformance.runtime import compiled_code, interrupts, processes, sources
from conformance.runtime.clock import Clock
from conformance.runtime.stopwatch import Stopwatch

NEWS = """
import os, sys, time
from conformance.runtime import supervisor

class Late(supervisor._Watch):
    def run(self):
        time.sleep(0.1)  # the child has then ended, unless the pipe is full
        return super().run()

supervisor._Watch = Late
told = []

def conclude(known, **_):
    told.append([known] if known is None else [len(known["text"]), known["number"]])
    return 3

for size in {sizes}:
    def run(tell):
        for number in range({times}):
            tell({{"result": {{"text": "x" * size, "number": number}}}})
        os._exit(0)

    supervisor.supervised(run, conclude=conclude)
print(told)
"""
SIZES = (0, 1, 1 << 12, 20_000, (1 << 16) - 60, 1 << 17)


@pytest.mark.parametrize("times", [0, 1, 2])
def test_the_last_news_of_a_process_is_known_whatever_its_length(times: int) -> None:
    """What a process has told last before it ends is whole, however much is read at a time."""
    code = NEWS.format(sizes=SIZES, times=times)

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    expected = [[size, times - 1] if times else [None] for size in SIZES]
    assert ("", f"{expected}\n") == (done.stderr, done.stdout)


@pytest.mark.parametrize("seed", range(6))
def test_the_clock_leaves_out_every_warm_up(seed: int) -> None:
    """It stands where it was in each of many warm-ups, also if one raises, and goes on after it."""
    rng, now, counted, left_out = Random(seed), 1000, 0, 0
    clock = Clock(now=lambda: now)

    for _ in range(12):
        seconds = rng.randrange(9)
        if rng.random() < 0.5:
            with suppress(ZeroDivisionError), clock.warming_up():
                now += seconds
                left_out += seconds
                assert counted == clock.seconds
                if rng.random() < 0.5:
                    raise ZeroDivisionError
        else:
            now += seconds
            counted += seconds
        assert (counted, left_out) == (clock.seconds, clock.left_out)


@pytest.mark.parametrize("times", range(4))
def test_a_stopwatch_adds_what_its_blocks_took(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the time between two blocks nor an exception in one changes the sum."""
    clock = iter([10.0, 13.0, 100.0, 101.0, 500.0, 500.0, 7000.0, 7001.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    watch = Stopwatch()

    for number in range(times):
        try:
            with watch:
                _ = 1 // number
        except ZeroDivisionError:
            assert number == 0

    assert (0.0, 3.0, 4.0, 4.0)[times] == watch.seconds


def ours(_number: int, _frame: object) -> None:
    """A handler of signals."""


@pytest.fixture
def _handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_handler")
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(
    "handler", [signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler, ours]
)
def test_whatever_handled_an_interrupt_handles_it_after_it_was_ignored(
    handler: Any, *, raises: bool
) -> None:
    """The handler before the block is that after it, however the block ends."""
    signal.signal(signal.SIGINT, handler)

    try:
        with interrupts.ignored():
            inside = signal.getsignal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            if raises:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert raises

    assert (signal.SIG_IGN, handler) == (inside, signal.getsignal(signal.SIGINT))


def sleeping(seconds: float) -> processes.Process:
    """A process that ends by itself after so long."""
    words = ("-n", "1", "-r", "1", f"import time; time.sleep({seconds})")
    return processes.start("timeit", *words, output=subprocess.DEVNULL)


@pytest.mark.parametrize("seconds", [0, 0.0, 0.3, None])
def test_a_process_is_killed_exactly_if_its_time_is_up(seconds: float | None) -> None:
    """No time at all is a limit too, and None is none; the process is gone in either case."""
    process = sleeping(0 if seconds is None else 5)

    ended = processes.finish(process, seconds=seconds)

    assert (0 if seconds is None else None) == ended
    assert (0 if seconds is None else -signal.SIGKILL) == process.returncode
    assert process not in processes._running


def test_all_processes_are_ended_and_not_the_last_alone() -> None:
    """Every process that was started runs no more, and none is remembered."""
    started = [sleeping(5) for _ in range(3)]

    processes.end_all()

    assert [-signal.SIGKILL] * 3 == [process.returncode for process in started]
    assert not set(started) & set(processes._running)


PACKAGES = sources.PACKAGES
CHOICES = [*chain.from_iterable(combinations(PACKAGES, count) for count in range(1, 4))]


@pytest.mark.parametrize("chosen", [(), *CHOICES])
@pytest.mark.parametrize("changed", PACKAGES)
def test_a_digest_changes_exactly_with_the_sources_that_it_is_of(
    chosen: Sequence[str], changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change in any module of any named package changes it, and one elsewhere does not."""
    for name, module in product(PACKAGES, ("__init__.py", "below/one.py", "below/two.py")):
        file = tmp_path / name / module
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"'{name} {module}'\n")
    monkeypatch.setattr(sources, "_ROOT", tmp_path)
    before = sources.digest(*chosen)

    (tmp_path / changed / "data.json").write_text("{}")
    beside = sources.digest(*chosen)
    after = []
    for file in sorted((tmp_path / changed).rglob("*.py")):
        file.write_text(file.read_text() + "1\n")
        after.append(sources.digest(*chosen))

    assert before == beside
    assert (4 if changed in (chosen or PACKAGES) else 1) == len({before, *after})


def known_folder(
    environment: dict[str, str], system: str, given: Callable[[str], bool]
) -> Path | None:
    """The folder by the words: jax's own, else below the caches of the platform, else none."""
    names = {
        "win32": [("LOCALAPPDATA", "")],
        "darwin": [("HOME", "Library/Caches")],
        "linux": [("XDG_CACHE_HOME", ""), ("HOME", ".cache")],
    }[system]
    if environment.get(compiled_code.VARIABLE):
        return Path(environment[compiled_code.VARIABLE])
    for name, below in names:
        if given(environment.get(name, "")):
            return Path(environment[name], below, "kvspec")
    return None


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_the_folder_of_compiled_code_follows_every_variable(system: str, tmp_path: Path) -> None:
    """A variable that is not set, empty, or no absolute path is passed over, in every order."""
    names = (compiled_code.VARIABLE, "XDG_CACHE_HOME", "HOME", "LOCALAPPDATA")
    values = (None, "", "relative", "absolute")
    for given in product(values, repeat=len(names)):
        if given[0] == "relative":  # a folder that jax resolves
            continue
        environment = {
            name: str(tmp_path / name) if value == "absolute" else value
            for name, value in zip(names, given, strict=True)
            if value is not None
        }

        expected = known_folder(environment, system, lambda text: text.startswith("/"))
        seen = compiled_code.place(environment, system=system).path

        chosen = environment.get(compiled_code.VARIABLE)
        assert expected == (seen if seen is None or chosen else seen.parent)
