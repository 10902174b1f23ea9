"""Writes recordings for `kvspec validate`. Standard library only: copy this file into your project.

    with HistoryWriter("run.jsonl", pages=64, page_size=16, slots=8, pages_per_seq=8) as history:
        history.step("Reserve", slot=0, saw={"used": {0: True}})
        history.step("Allocate", batch=[[0, 0]], saw={"rows": {0: [5]}, "counts": {5: 1}})
        history.step("Free", slot=3, refused=["SLOT_UNUSED"])

The format, the actions and the fields of `saw` are in docs/recordings.md of kvspec.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path


class HistoryWriter:
    """A recording in a file, one line per action; each line is flushed, so a crash loses none.

    shows: the fields of `saw` of which every change is written; other fields may be left out.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        engine: str = "",
        policy: str = "any",
        refuses: str = "exact",
        copy: str = "eager",
        lookahead: int = 0,
        reserve: str = "none",
        ring: int = 0,
        unasked: Sequence[str] = (),
        shows: Sequence[str] = (),
        limits: Mapping[str, int] | None = None,
        **geometry: int,
    ) -> None:
        self._out = Path(path).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115
        header = {"kvspec": "recording", "version": 3, "engine": engine, "geometry": geometry}
        takes = {"policy": policy, "copy": copy, "lookahead": lookahead, "reserve": reserve}
        more = {**({"limits": dict(limits)} if limits else {}), **({"ring": ring} if ring else {})}
        told = {"refuses": refuses, "unasked": list(unasked), "shows": list(shows), **more}
        self._out.write(json.dumps({**header, **takes, **told}) + "\n")

    def step(
        self,
        name: str,
        *,
        refused: Sequence[str] | None = None,
        result: object = None,
        saw: Mapping[str, object] | None = None,
        **fields: object,
    ) -> None:
        """Write an action. refused: names of the reasons, [] if none is named; None if done."""
        extras = {"refused": refused, "result": result, "saw": saw}
        given = {key: value for key, value in extras.items() if value is not None}
        self._out.write(json.dumps({"step": name, **fields, **given}) + "\n")

    def __enter__(self) -> "HistoryWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()
