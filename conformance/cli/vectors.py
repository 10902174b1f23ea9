"""`kvspec vectors`: test vectors for an engine in any language."""

import argparse
from pathlib import Path
from typing import Final

from conformance.cli.contract import Report
from conformance.cli.options import output_folder
from conformance.verdict import Scope, Verdict

NAME: Final = "vectors"
HELP: Final = "writes test vectors, to test an engine in any language without Python"
EXAMPLES: Final = (
    "kvspec vectors build/vectors",
    "kvspec vectors build/vectors --json vectors.json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder for the vectors."""
    parser.add_argument(
        "folder",
        type=output_folder,
        metavar="DIR",
        help="the output folder: new, empty, or with the same vectors",
    )


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Build the vectors and write them; fails if they miss reachable coverage."""
    from conformance.vectors import files
    from conformance.vectors.build import build
    from conformance.vectors.suites import absent, pairs_apart, suites

    report.scope = Scope.COMPLETE
    folder, covers = Path(arguments.folder), []
    files.check(folder)
    with report.progress("vectors", total=len(suites())) as update:
        for suite in suites():
            covers.append(build(suite))
            update(len(covers), suite.name)
    files.write(covers, folder)
    for cover in covers:
        for item in cover.missing:
            report.fail(f"{cover.suite.name}: no vector covers {item}")
    report.count(
        written=str(folder),
        vectors=sum(len(cover.vectors) for cover in covers),
        suites={cover.suite.name: files.numbers(cover) for cover in covers},
    )
    for cover in covers:
        row = ", ".join(f"{number} {name}" for name, number in files.numbers(cover).items())
        report.say(f"  {cover.suite.name}: {row}")
    for name in absent():
        report.skip(name, why="no suite has this action")
    for some, others in pairs_apart().items():
        report.skip(
            f"pairs of {' or '.join(some)} with {', '.join(others)}", why="no suite has both"
        )
    report.skip(
        "CONTENT, READ, ATT",
        why="a recording has no K and V; above lifecycle, tokens are drawn from them",
    )
    return Verdict.HOLDS
