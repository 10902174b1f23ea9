"""Safe points: an interrupt is raised where Python code of ours can take it, and never lost."""

import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.runtime import interrupts
from impl.interrupts import hold_interrupts


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore the handlers and the hook of the test run."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    hook = sys.unraisablehook
    interrupts.listen()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    sys.unraisablehook = hook


def in_package(name: str, source: str, **given: object) -> Any:
    """A module of this name with the definitions of a source."""
    module = types.ModuleType(name)
    vars(module).update(given)
    exec(compile(source, name, "exec"), vars(module))
    return module


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_code_of_ours_is_interrupted_at_once(number: int) -> None:
    """SIGINT and SIGTERM both interrupt our code before its next line."""
    reached = []

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the line in between is the point
        signal.raise_signal(number)
        reached.append("the next line")
    assert [] == reached


def test_a_second_signal_does_not_disturb_the_first() -> None:
    """What handles an interrupt is not interrupted again."""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("package", ["jax", "jax._src.pjit", "jaxlib.mlir"])
def test_jax_is_not_interrupted_and_its_caller_is(package: str) -> None:
    """A call into jax is finished and its result bound before its caller is interrupted."""
    source = "def traced(call):\n    call()\n    done.append(1)\n    return 'state'\n"
    done: list[int] = []
    jax = in_package(package, source, done=done)
    held, reached = [], []

    def caller() -> None:
        held.append(jax.traced(lambda: signal.raise_signal(signal.SIGINT)))
        reached.append("the next line")

    with pytest.raises(KeyboardInterrupt):
        caller()
    assert ([1], ["state"], []) == (done, held, reached)


def test_the_outermost_call_into_jax_counts() -> None:
    """A function of ours that jax calls while it traces is not interrupted either."""
    jax = in_package("jax", "def traced(call):\n    return call()\n")
    reached = []

    def ours() -> None:
        signal.raise_signal(signal.SIGINT)
        reached.append("ours")

    def caller() -> None:
        jax.traced(lambda: jax.traced(ours))
        reached.append("the caller")

    with pytest.raises(KeyboardInterrupt):
        caller()
    assert ["ours"] == reached


def test_an_interrupt_in_a_finalizer_comes_again() -> None:
    """An interrupt that Python drops in a finalizer is raised again soon after, with no message."""
    script = (
        "import signal, time\n"
        "from conformance.runtime import interrupts\n"
        "interrupts.listen()\n"
        "class Dies:\n"
        "    def __del__(self):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "Dies()\n"
        "try:\n"
        "    time.sleep(20)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=20
    )
    assert ("interrupted\n", "", 0) == (done.stdout, done.stderr, done.returncode)


def test_a_second_signal_while_a_lost_one_is_handled_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two signals, as from a terminal and the watching process, count as one interrupt."""
    started = []

    class Timer:
        def __init__(self, *_: object) -> None:
            signal.raise_signal(signal.SIGINT)

        def start(self) -> None:
            started.append("again")

    monkeypatch.setattr("threading.Timer", Timer)
    sys.unraisablehook(_unraisable(KeyboardInterrupt()))
    assert ["again"] == started


def test_other_errors_of_finalizers_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook passes on all other errors."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "__unraisablehook__", seen.append)

    sys.unraisablehook(_unraisable(ValueError("theirs")))
    assert ["theirs"] == [str(one.exc_value) for one in seen]


def _unraisable(error: BaseException) -> Any:
    return types.SimpleNamespace(
        exc_type=type(error), exc_value=error, exc_traceback=None, err_msg=None, object=None
    )


def test_an_interrupt_of_our_engine_arrives_when_its_call_has_ended() -> None:
    """The engine holds an interrupt back while jax runs, and it is raised when the call ends."""
    source = "def traced(call):\n    call()\n    return 'state'\n"
    jax = in_package("jax._src.pjit", source)
    bound, reached = [], []

    def call() -> None:
        bound.append(jax.traced(lambda: signal.raise_signal(signal.SIGINT)))

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the line in between is the point
        hold_interrupts(call)
        reached.append("the next line")
    assert (["state"], []) == (bound, reached)


@pytest.fixture
def alarm() -> Iterator[None]:
    """End a test that goes on for more than ten seconds."""

    def end(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_a_chain_of_causes_that_leads_back_to_itself_is_followed_once() -> None:
    """Two exceptions that are each the cause of the other replaced no interrupt."""
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    assert not interrupts.took_the_place_of_one(first)


def test_an_interrupt_is_found_at_the_end_of_a_chain() -> None:
    """An exception that a library raised over an interrupt stands for it."""
    error = ValueError("in a library's finally")
    error.__context__ = ValueError("between")
    error.__context__.__context__ = KeyboardInterrupt()

    assert interrupts.took_the_place_of_one(error)
