"""Where an engine runs: in this process, or in a process of its own."""

from conformance.engines.registry import is_ours, load_engine
from conformance.isolation.remote import RemoteFactory
from conformance.protocol import Factory
from spec.vocabulary.errors import InvalidInput


def factory_of(engine: str, *, python: str | None, in_process: bool = False) -> Factory:
    """The factory of an engine.

    Ours runs in this process. Another runs in a process of its own, which it can end without ending
    this one, under this Python or the one at the path `python`; or in this process, if the caller
    requests that. Raises InvalidInput if there is no such engine.
    """
    if in_process and python is not None:
        raise InvalidInput(
            "--in-process",
            seen=f"--python {python} beside it",
            allowed="one of the two: an engine in this process has this process's Python",
            remedy="Leave one of them out.",
        )
    if runs_here(engine, python=python, in_process=in_process):
        made: Factory = load_engine(engine)
        return made
    return RemoteFactory(engine, python=python)


def runs_here(engine: str, *, python: str | None, in_process: bool) -> bool:
    """Whether an engine of this name runs in this process."""
    return in_process or (python is None and is_ours(engine))
