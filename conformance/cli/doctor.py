"""`kvspec doctor`: what is installed, and what therefore cannot be checked."""

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from attrs import asdict, frozen

from conformance.cli.contract import Report
from conformance.runtime import compiled_code
from conformance.verdict import Scope, Verdict

NAME: Final = "doctor"
HELP: Final = "what is installed, where it comes from, and what cannot be checked"
EXAMPLES: Final = ("kvspec doctor", "kvspec doctor --json doctor.json")

OUR_PACKAGES: Final = ("spec", "impl", "conformance")
JAX_SECONDS: Final = 120
_JAX_PROBE: Final = """
import json, jax
print(json.dumps({"backend": jax.default_backend(), "devices": [str(d) for d in jax.devices()]}))
"""
_REQUIREMENT: Final = re.compile(
    r"(?P<name>[\w.-]+)\s*>=\s*(?P<least>[\w.]+)(?:\s*;\s*extra\s*==\s*['\"](?P<extra>\w+)['\"])?"
)


@frozen
class Need:
    """A dependency of a part of kvspec.

    distribution: its name in a package index. extra: the extra that installs it, "" for the core.
    unchecked: what cannot be checked without it.
    """

    distribution: str
    extra: str
    unchecked: str


NEEDS: Final = (
    Need("attrs", "", "anything"),
    Need("hypothesis", "", "engines, by fuzzing"),
    Need("rich", "", "anything"),
    Need("jax", "jax", "the reference engine"),
    Need("jaxlib", "jax", "the reference engine"),
    Need("jaxtyping", "jax", "the reference engine"),
    Need("numpy", "jax", "the reference engine and the float64 oracle"),
    Need("libtpu", "tpu", "compilation by the real TPU compiler"),
    Need("crosshair-tool", "dev", "pure functions, symbolically"),
    Need("mypy", "dev", "types"),
)


TOOLS: Final = ("spin", "cc")
"""Programs without which `make cross-check` is undecided."""


@frozen
class Finding:
    """The state of one dependency. installed: version or None. needed: minimum version or None."""

    name: str
    extra: str
    installed: str | None
    needed: str | None
    ok: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Doctor has only the common options."""
    del parser


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Holds if core and engine run, undecided if only the core does, fails if the core does not."""
    del arguments
    report.scope = Scope.COMPLETE
    least = needed_versions()
    findings = [look_up(need, least.get(need.distribution)) for need in NEEDS]
    homes = sources()
    report.count(
        python=platform.python_version(),
        packages=[asdict(finding) for finding in findings],
        sources=homes,
        kvspec=_version("kvspec"),
    )
    for need, finding in zip(NEEDS, findings, strict=True):
        report.say(_line(finding))
        if not finding.ok:
            report.skip(need.unchecked, why=_remedy(finding))
            if need.extra == "":
                report.fail(f"the core needs {finding.name}: {_remedy(finding)}")
    tools = {name: shutil.which(name) for name in TOOLS}
    report.count(tools=tools)
    for name, where in tools.items():
        report.say(f"  {name:<15} {where or 'absent'}")
        if where is None:
            report.skip(f"the cross-check, without {name}", why="run apt-get install spin gcc")
    for name, home in homes.items():
        report.say(f"  {name:<15} from {home}")
    kept = compiled_code.place()
    report.count(compiled_code=None if kept.path is None else str(kept.path))
    where = f"not kept: {kept.why}" if kept.path is None else f"{kept.path} ({kept.why})"
    report.say(f"  {'compiled code':<15} {where}")
    if len({str(Path(home).parent) for home in homes.values()}) != 1:
        report.fail(f"spec, impl and conformance come from different places: {homes}")
    engine = all(finding.ok for finding in findings if finding.extra == "jax")
    accelerator = _accelerator(report) if engine else None
    return Verdict.HOLDS if engine and accelerator is not None else Verdict.UNDECIDED


def needed_versions() -> dict[str, str]:
    """The minimum version of each distribution, from kvspec's own metadata; {} if uninstalled."""
    try:
        lines = importlib.metadata.requires("kvspec") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    matches = (_REQUIREMENT.match(line) for line in lines)
    return {match["name"]: match["least"] for match in matches if match}


def look_up(need: Need, least: str | None) -> Finding:
    """The installed version of one dependency; not ok if absent or older than `least`."""
    installed = _version(need.distribution)
    new_enough = installed is not None and (least is None or _at_least(installed, least))
    return Finding(need.distribution, need.extra, installed, least, new_enough)


def sources() -> dict[str, str]:
    """The folder of each of our packages; imports nothing else of them."""
    homes = {}
    for name in OUR_PACKAGES:
        found = importlib.util.find_spec(name)
        homes[name] = str(Path(found.origin).parent) if found and found.origin else "nowhere"
    return homes


def probe_jax() -> dict[str, object] | str:
    """The backend and devices that JAX finds, or the reason if it finds none.

    Runs in a process of its own: a missing or busy accelerator can end or block the process.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _JAX_PROBE],
            capture_output=True,
            text=True,
            timeout=JAX_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {JAX_SECONDS} seconds"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"exit status {done.returncode}: {last}"
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def _accelerator(report: Report) -> str | None:
    """The backend that JAX runs on, None if JAX does not start."""
    found = probe_jax()
    if isinstance(found, str):
        report.count(backend=None, devices=[])
        report.skip("the reference engine", why=f"JAX does not start: {found}")
        return None
    report.count(**found)
    backend = str(found["backend"])
    if backend == "cpu":
        report.skip("kernels on an accelerator", why="JAX found none here, only the CPU")
    return backend


def _line(finding: Finding) -> str:
    needed = f"(needs {finding.needed} or newer)" if finding.needed else ""
    group = f"kvspec[{finding.extra}]" if finding.extra else "core"
    return f"  {finding.name:<15} {finding.installed or 'absent':<12} {group:<12} {needed}".rstrip()


def _remedy(finding: Finding) -> str:
    what = "is absent" if finding.installed is None else f"{finding.installed} is too old"
    least = f">={finding.needed}" if finding.needed else ""
    install = f"kvspec[{finding.extra}]" if finding.extra else f"{finding.name}{least}"
    return f"{finding.name} {what}; run pip install '{install}'"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _at_least(installed: str, least: str) -> bool:
    """Compare two versions: 0.10.2 and 0.9 are at least 0.9.0, and 0.9rc1 is before it."""

    def numbers(version: str) -> list[int]:
        found = re.match(r"\d+(\.\d+)*", version)
        return [int(part) for part in found[0].split(".")] if found else []

    have, need = numbers(installed), numbers(least)
    longest = max(len(have), len(need))
    have, need = (one + [0] * (longest - len(one)) for one in (have, need))
    is_early = re.search(r"(a|b|rc|dev)\d*$", installed.partition("+")[0]) is not None
    return have > need or (have == need and not is_early)
