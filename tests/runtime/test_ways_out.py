"""Every way in which a command may end, and every chain of errors, read a second time."""

import os
import signal
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final

import pytest
from deep import deep_after

from conformance.runtime import supervisor
from conformance.runtime.interrupts import took_the_place_of_one

LINKS: Final = ("__cause__", "__context__")


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers of this process are what they were."""
    before = {number: signal.getsignal(number) for number in supervisor.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


CHAINS: Final = [links for far in range(4) for links in product(LINKS, repeat=far)]


@pytest.mark.parametrize("links", CHAINS)
@pytest.mark.parametrize("first", [KeyboardInterrupt, OSError, SystemExit])
def test_an_interrupt_is_found_behind_every_chain_of_errors(
    links: tuple[str, ...], first: type[BaseException]
) -> None:
    """An interrupt is found whichever attribute leads from one error to the next."""
    error: BaseException = first()
    for link in links:
        outer = RuntimeError(link)
        setattr(outer, link, error)
        error = outer

    seen = took_the_place_of_one(error)

    assert (first is KeyboardInterrupt) == seen


@pytest.mark.parametrize(
    "news", deep_after(1, [b'{"result": {"known": 1}}\n', b""]), ids=["told", "silent"]
)
@pytest.mark.parametrize(
    ("command", "signals"),
    [
        ("exit 0", 0),
        ("exit 1", 0),
        ("kill -9 $$", 0),
        ("exit 0", 1),
        ("exit 1", 2),
        ("exec sleep 60", 1),
        ("exec sleep 60", 2),
        ("trap '' INT; exec sleep 60", 2),
    ],
)
def test_the_end_without_a_status_is_told_as_it_came(
    command: str, signals: int, news: bytes
) -> None:
    """The supervisor calls an end interrupted if a signal came, and tells how else it ended."""
    child = os.posix_spawn("/bin/sh", ["sh", "-c", command], os.environ)
    if "sleep" not in command:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    told: list[tuple[Any, ...]] = []

    def conclude(
        known: Mapping[str, Any] | None, *, process: int, error: str | None, interrupted: bool
    ) -> int:
        told.append((known, process, error, interrupted))
        return 7

    reading, writing = os.pipe()
    os.write(writing, news)
    os.close(writing)
    watch = supervisor._Watch(child, reading, conclude)
    for _ in range(signals):
        watch._interrupted(signal.SIGINT, None)

    status = watch.run()

    os.close(reading)
    end = {"exit 0": "status 0", "exit 1": "status 1"}.get(command, "SIGKILL")
    error = None if signals else f"the process ended with {end} before there was a verdict"
    assert 7 == status
    assert [({"known": 1} if news else None, child, error, signals > 0)] == told
