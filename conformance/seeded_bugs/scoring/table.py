"""The score as text: a table for the terminal, and a page of it with its date and versions."""

import importlib.metadata
import platform
from collections.abc import Sequence

from conformance.seeded_bugs.scoring.rows import BlindRow, Row, Score, Tally
from spec import SPEC_VERSION

HEAD = (
    "plant",
    "at first sight",
    "now: fuzz",
    "steps",
    "seconds",
    "shrunk",
    "clause",
    "also seen by",
)

FIRST_SIGHT = (
    "*At first sight* says whether the kit caught a plant when it was written, before anything was "
    "changed for it; it is not edited afterwards. Of plants that are older than this column it is "
    "not known. The other columns are of now."
)
BLIND_NOTE = (
    "Each oracle judges in place of the kit. For the bug that it misses, it judges the histories "
    "that show the bug to the kit. In fairness it is also tried at a bug that it sees."
)
BLIND_HEAD = ("what it checks", "misses", "caught", "caught by the kit", "sees", "caught")


def versions() -> dict[str, str]:
    """The versions that a score depends on, by name."""
    found = {"python": platform.python_version(), "kvspec": SPEC_VERSION}
    for name in ("jax", "jaxlib", "numpy", "hypothesis"):
        found[name] = importlib.metadata.version(name)
    return found


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table."""
    methods = row["methods"]
    fuzz = methods.get("fuzz")
    main = fuzz if isinstance(fuzz, dict) else None
    others = [
        f"{name} {tally['caught']}/{tally['tries']}"
        for name, tally in methods.items()
        if name != "fuzz" and isinstance(tally, dict)
    ]
    clauses = (main and main["clauses"]) or [
        clause
        for tally in methods.values()
        if isinstance(tally, dict)
        for clause in tally["clauses"]
    ]
    return (
        row["id"],
        row["first_sight"],
        f"{main['caught']}/{main['tries']}" if main else str(fuzz or ""),
        _number(main and main["steps"], ".0f"),
        _number(main and main["seconds"], ".1f"),
        _number(main and main["shrunk"], "d"),
        " ".join(sorted(set(clauses))),
        ", ".join(others),
    )


def lines(rows: Sequence[Row]) -> list[str]:
    """The table, in columns."""
    table = [HEAD, *(cells(row) for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(HEAD))]
    return ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in table]


def blind_cells(row: BlindRow) -> tuple[str, ...]:
    """One line of the table of blind oracles."""
    return (
        row["what"],
        row["misses"],
        _share(row["missed"]),
        _share(row["kit"]),
        row["sees"],
        _share(row["seen"]),
    )


def blind_lines(rows: Sequence[BlindRow]) -> list[str]:
    """The table of blind oracles as lines of text; empty if none was tried."""
    return [
        f"  blind: {what}: {missed} of {misses} (the kit {kit}), {seen} of {sees}"
        for what, misses, missed, kit, sees, seen in map(blind_cells, rows)
    ]


def page(result: Score, *, date: str) -> str:
    """The score as a page of Markdown."""
    known = ", ".join(f"{name} {version}" for name, version in versions().items())
    text = [
        "# Score of the kit on planted bugs",
        "",
        f"Written by `kvspec plant --write` on {date}, with {known}.",
        "",
        _summary(result),
        "",
        "| target | missed by |",
        "|---|---|",
        *(
            f"| {name} | {', '.join(missed) or '-'} |"
            for name, missed in result["score"]["missed"].items()
        ),
        "",
        FIRST_SIGHT,
        "",
        f"| {' | '.join((*HEAD, 'mechanism'))} |",
        f"|{'---|' * (len(HEAD) + 1)}",
        *(_linked(row) for row in result["bugs"]),
        "",
        "## Blind oracles",
        "",
        BLIND_NOTE,
        "",
        f"| {' | '.join(BLIND_HEAD)} |",
        f"|{'---|' * len(BLIND_HEAD)}",
        *(f"| {' | '.join(blind_cells(row))} |" for row in result["blind"]),
        *_open_ends(result),
    ]
    return "\n".join(text) + "\n"


def _summary(result: Score) -> str:
    score, controls = result["score"], result["controls"]
    return (
        f"{score['caught']} of {score['plants']} plants are caught. There are {score['seeds']} "
        f"seeds, and at most {score['steps']} steps of fuzzing for each; steps and seconds are "
        "medians, compilation left out. The engine without a bug gave "
        f"{controls['clean_findings']} findings in {controls['clean_tries']} tries under the same "
        f"budget, and {controls['changed']} plants are shown to change behaviour."
    )


def _open_ends(result: Score) -> list[str]:
    """The section of undecided plants and missing tries; empty if there are none."""
    lines = [f"- {name}: {why}" for name, why in result["score"]["undecided"].items()]
    if result["tries_left"]:
        lines.append(f"- {result['tries_left']} tries are not made yet")
    return ["", "## Undecided", "", *lines] if lines else []


def _linked(row: Row) -> str:
    first, *rest = cells(row)
    return f"| [{first}]({row['thread']}) | {' | '.join((*rest, row['mechanism']))} |"


def _share(tally: Tally) -> str:
    return f"{tally['caught']}/{tally['tries']}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
