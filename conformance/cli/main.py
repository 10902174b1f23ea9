"""The dispatcher from the command line to a command, which `contract.execute` then runs.

The process starts in the package `kvspec`, which verifies that `spec`, `impl` and `conformance` are
ours.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from conformance.cli.output import Output, complain
from conformance.runtime.supervisor import supervised
from conformance.verdict import BAD_INPUT, UNDECIDED

if TYPE_CHECKING:
    from conformance.cli.contract import Command
    from conformance.runtime.supervisor import Tell

COMMANDS: Final = (
    *("fuzz", "diff", "explore", "refine", "replay", "rerun", "validate", "vectors"),
    *("adapter", "plant", "kernel", "compare", "doctor"),
)
DEVICES: Final = Path("/dev")
ACCELERATORS: Final = ("accel*", "vfio/[0-9]*", "nvidia*", "kfd", "dxg")
"""Device files that a machine with a TPU or a GPU has."""


def supervised_main() -> int:
    """Run `kvspec` in a supervised child process; return the exit status."""
    return supervised(lambda tell: main(tell=tell), conclude=_conclude)


def _conclude(
    known: Mapping[str, Any] | None, *, process: int, error: str | None, interrupted: bool
) -> int:
    """What `contract.conclude` does; the process that watches imports it only when it is needed."""
    from conformance.cli.contract import conclude

    return conclude(known, process=process, error=error, interrupted=interrupted)


def main(argv: Sequence[str] | None = None, *, tell: "Tell" = lambda _: None) -> int:
    """Run `kvspec` with these arguments (those of the process, if None); return the exit status.

    tell: see `supervisor`. Sets JAX_PLATFORMS where `libtpu_only_compiles`, except for `doctor`,
    which asks jax which backends there are.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] != ["doctor"] and libtpu_only_compiles():
        os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        return _dispatch(words, tell)
    except KeyboardInterrupt:
        complain("", "not decided: interrupted before the command began")
        return UNDECIDED
    except ModuleNotFoundError as error:  # while loading: execute handles what comes later
        return _complain(f"no module {error.name} here. Reinstall kvspec with what it depends on.")


def _dispatch(words: list[str], tell: "Tell") -> int:
    if not words:
        return _complain(f"no command, allowed: {', '.join(COMMANDS)}. Run kvspec --help.")
    name = words[0]
    if name in {"-h", "--help"}:
        return _print(_listing())
    if name in {"-V", "--version"}:
        return _print(_version())
    if name not in COMMANDS:
        return _complain(f"saw {name!r}, allowed: {', '.join(COMMANDS)}. Run kvspec --help.")
    command = _load(name)
    if command is None:
        return _complain(f"the command {name} is not part of this installation. Reinstall kvspec.")

    from conformance.cli.contract import execute

    return execute(command, words[1:], tell)


def _print(text: str) -> int:
    """Print the text; return the exit status."""
    output = Output()
    output.say(text)
    output.flush()
    if output.lost is not None:
        return _complain(f"standard output cannot be written: {output.lost}")
    return 0


def _version() -> str:
    from importlib import metadata

    import spec

    try:
        installed = metadata.version("kvspec")
    except metadata.PackageNotFoundError:
        installed = "(not installed)"
    return f"kvspec {installed}, specification {spec.SPEC_VERSION}"


def libtpu_only_compiles(devices: Path = DEVICES) -> bool:
    """Whether jax would search for a TPU that the machine has not, and warn at length.

    It does where libtpu is installed only to compile. Nothing changes if the user sets
    JAX_PLATFORMS, or the machine has one of ACCELERATORS.
    """
    if "JAX_PLATFORMS" in os.environ or importlib.util.find_spec("libtpu") is None:
        return False
    return not any(next(devices.glob(name), None) for name in ACCELERATORS)


def _load(name: str) -> "Command | None":
    """The module of a command; None if the file is missing."""
    path = f"conformance.cli.{name}"
    try:
        return cast("Command", importlib.import_module(path))
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        return None


def _listing() -> str:
    lines = []
    for name in COMMANDS:
        command = _load(name)
        text = "not part of this installation" if command is None else command.HELP
        lines.append(f"  {name:<10} {text}")
    return "\n".join(
        (
            "usage: kvspec COMMAND [OPTIONS]",
            "",
            "Hold an inference engine to the specification of the paged KV cache.",
            "",
            *lines,
            "",
            "kvspec COMMAND --help shows a command's options and examples.",
            "exit status: 0 holds, 1 fails, 2 bad usage or bad input, 3 not decided",
        )
    )


def _complain(message: str) -> int:
    complain("", message)
    return BAD_INPUT


if __name__ == "__main__":
    import kvspec

    kvspec.main()
