"""`kvspec doctor`: the installed parts, and the checks that are impossible without the others."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from conformance.cli import doctor, main


def test_doctor_tells_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all parts installed the verdict is `holds`, and the result has versions and folders."""
    monkeypatch.setattr(doctor, "probe_jax", lambda: {"backend": "cpu", "devices": ["TFRT_CPU_0"]})
    monkeypatch.setattr(doctor, "look_up", lambda need, least: installed(need, "99.0", least))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    path = tmp_path / "doctor.json"

    assert 0 == main.main(["doctor", "--json", str(path)])
    found = json.loads(path.read_text())
    assert ("holds", "complete", "cpu") == (found["verdict"], found["scope"], found["backend"])
    assert {"spec", "impl", "conformance"} == set(found["sources"])
    assert ["kernels on an accelerator: JAX found none here, only the CPU"] == found["not_checked"]


def installed(need: doctor.Need, version: str | None, least: str | None) -> doctor.Finding:
    """The finding for a need if this version were installed."""
    return doctor.Finding(need.distribution, need.extra, version, least, version is not None)


@pytest.mark.parametrize(
    ("absent", "status", "unchecked"),
    [
        ("jax", 3, "the reference engine: jax is absent; run pip install 'kvspec[jax]'"),
        ("attrs", 1, "anything: attrs is absent; run pip install"),
        ("mypy", 0, "types: mypy is absent; run pip install 'kvspec[dev]'"),
        (
            "libtpu",
            0,
            "compilation by the real TPU compiler: libtpu is absent; run pip install 'kvspec[tpu]'",
        ),
        ("spin", 0, "the cross-check, without spin: run apt-get install"),
    ],
)
def test_doctor_tells_what_an_absence_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: str, status: int, unchecked: str
) -> None:
    """Doctor is undecided without the jax extra, fails without the core, and holds otherwise."""
    monkeypatch.setattr(doctor, "probe_jax", lambda: {"backend": "tpu", "devices": ["TPU_0"]})
    monkeypatch.setattr(
        doctor,
        "look_up",
        lambda need, least: installed(need, None if need.distribution == absent else "9", least),
    )
    monkeypatch.setattr(shutil, "which", lambda name: None if name == absent else "/bin")
    path = tmp_path / "doctor.json"

    assert status == main.main(["doctor", "--json", str(path)])
    lines = json.loads(path.read_text())["not_checked"]
    assert 1 == len(lines)
    assert lines[0].startswith(unchecked)


def test_doctor_survives_a_jax_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JAX that ends its process is undecided, and its last message is reported."""
    monkeypatch.setattr(doctor, "look_up", lambda need, least: installed(need, "9", least))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(doctor, "_JAX_PROBE", "raise SystemExit('no slice')")
    path = tmp_path / "doctor.json"

    assert 3 == main.main(["doctor", "--json", str(path)])
    assert ["the reference engine: JAX does not start: exit status 1: no slice"] == json.loads(
        path.read_text()
    )["not_checked"]


VERSIONS = ["0.9.dev1", "0.9rc1", "0.9", "0.9.1", "0.10", "0.10.2", "1.0b2", "1", "2.0+local"]
"""In order."""


@pytest.mark.parametrize(("at", "installed"), [*enumerate(VERSIONS)])
def test_doctor_compares_versions_as_numbers(at: int, installed: str) -> None:
    """An earlier version is too old, also where it has fewer numbers or comes before a release."""
    for needed, least in enumerate(VERSIONS):
        if least in {"0.9", "0.9.1", "0.10", "0.10.2", "1"}:
            assert (at >= needed) == doctor._at_least(installed, least)
            assert (at >= needed) == doctor._at_least(installed, f"{least}.0")


def test_what_is_absent_or_old_is_not_ok() -> None:
    """A part that is not installed, or too old, is not ok."""
    assert not doctor.look_up(doctor.Need("no-such-distribution", "dev", "x"), None).ok
    assert not doctor.look_up(doctor.Need("attrs", "", "x"), "9999").ok


ANSWER = """print('{"backend": "cpu", "devices": []}', flush=True)"""


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ("sys.exit(3)", "exit status 3"),
        ("os.abort()", "exit status -6"),
        ("os.kill(os.getpid(), 9)", "exit status -9"),
        ("os._exit(1)", "exit status 1"),
        ("time.sleep(60)", "no answer in 1 seconds"),
    ],
)
def test_jax_starts_only_if_its_process_ends_well(
    *, ending: str, told: str, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends otherwise, or not at all, counts for nothing, also after an answer."""
    monkeypatch.setattr(doctor, "JAX_SECONDS", 1)
    code = ["import os, sys, time", *[ANSWER] * answers, ending]
    monkeypatch.setattr(doctor, "_JAX_PROBE", "\n".join(code))

    found = doctor.probe_jax()

    assert isinstance(found, str)
    assert told in found


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "print(end='', file=sys.stderr)"])
def test_jax_that_answers_and_ends_well_starts(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line that it prints is its answer."""
    monkeypatch.setattr(doctor, "_JAX_PROBE", f"import sys\nprint('a word')\n{ANSWER}\n{ending}")

    assert {"backend": "cpu", "devices": []} == doctor.probe_jax()


@pytest.mark.parametrize("version", [None, "0.0.1", "99.0"])
@pytest.mark.parametrize("need", doctor.NEEDS, ids=lambda need: need.distribution)
def test_any_part_that_is_absent_or_too_old_costs_what_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, need: doctor.Need, version: str | None
) -> None:
    """The core fails, the engine is undecided, and the rest is told, for each part by itself."""
    monkeypatch.setattr(doctor, "probe_jax", lambda: {"backend": "tpu", "devices": ["TPU_0"]})
    monkeypatch.setattr(
        doctor, "_version", lambda name: version if name == need.distribution else "99.0"
    )
    least = {one.distribution: "2.0" for one in doctor.NEEDS}
    monkeypatch.setattr(doctor, "needed_versions", lambda: least)
    monkeypatch.setattr(shutil, "which", lambda _: "/bin")
    path = tmp_path / "doctor.json"

    status = main.main(["doctor", "--json", str(path)])

    found = json.loads(path.read_text())
    costs = {"": 1, "jax": 3}.get(need.extra, 0)
    assert (0 if version == "99.0" else costs) == status
    assert [need.distribution] * (version != "99.0") == [
        one["name"] for one in found["packages"] if not one["ok"]
    ]
    assert [need.unchecked] * (version != "99.0") == [
        text.partition(":")[0] for text in found["not_checked"]
    ]


@pytest.mark.parametrize("elsewhere", [None, *doctor.OUR_PACKAGES])
def test_any_package_from_another_place_fails(
    monkeypatch: pytest.MonkeyPatch, elsewhere: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of our packages each must lie beside the others, whichever comes from elsewhere."""
    homes = {
        name: f"/{'there' if name == elsewhere else 'here'}/{name}" for name in doctor.OUR_PACKAGES
    }
    monkeypatch.setattr(doctor, "sources", lambda: homes)
    monkeypatch.setattr(doctor, "probe_jax", lambda: {"backend": "tpu", "devices": ["TPU_0"]})
    monkeypatch.setattr(doctor, "look_up", lambda need, least: installed(need, "99.0", least))

    assert (0 if elsewhere is None else 1) == main.main(["doctor"])
    assert (elsewhere is not None) == ("come from different places" in capsys.readouterr().out)


def test_the_least_versions_are_those_of_the_project() -> None:
    """Each part has the lower bound that the project declares."""
    project = tomllib.loads(
        Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    extras = project["optional-dependencies"]
    bounds = {*project["dependencies"], *(line for lines in extras.values() for line in lines)}
    pairs = dict(line.split(";")[0].strip().split(">=") for line in bounds if ">=" in line)

    least = doctor.needed_versions()

    assert pairs.keys() & {one.distribution for one in doctor.NEEDS} <= least.keys()
    assert {name: pairs[name] for name in least} == least
