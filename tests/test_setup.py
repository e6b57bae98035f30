"""The set-up script: done work is not done again, half-made work is repaired, failures name their cause."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def setup(tmp_path: Path) -> ModuleType:
    """scripts/setup.py, working on a copy of the project in a folder whose path has a space."""
    root = tmp_path / "a copy"
    root.mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        (root / name).write_bytes((ROOT / name).read_bytes())
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "scripts/setup.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT, module.VENV = root, root / ".venv"
    module.PYTHON, module.STAMP, module.LOG = (
        root / ".venv" / n for n in ("bin/python", "stamp.json", "log")
    )
    return module


@pytest.fixture
def pip_calls(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands in for pip, which would need a network: records what it was asked to install."""
    calls: list[list[str]] = []
    monkeypatch.setattr(setup, "pip", lambda arguments, label: calls.append(arguments))
    monkeypatch.setattr(setup, "torch_from_cpu_index", lambda: None)
    setup.VENV.mkdir()
    return calls


def test_a_finished_set_up_is_not_done_again(setup: ModuleType, pip_calls: list[list[str]]) -> None:
    setup.ensure_packages({"serve"})
    setup.ensure_packages({"serve"})
    assert pip_calls == [
        ["-c", "constraints.txt", "--config-settings", "editable_mode=compat", "-e", ".[serve]"]
    ]


def test_the_package_is_found_from_the_folder_that_holds_the_clone(setup: ModuleType, tmp_path: Path) -> None:
    clone, installed = tmp_path / "learnvllm", tmp_path / "installed"
    (clone / "learnvllm").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (clone / name).write_bytes((ROOT / name).read_bytes())
    (clone / "learnvllm/__init__.py").write_text('__version__ = "0"\n')
    installed.mkdir()
    settings = dict([setup.EDITABLE.split("=")])
    build = f"from setuptools import build_meta; build_meta.build_editable({str(installed)!r}, {settings})"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, capture_output=True)
    (wheel,) = installed.glob("*.whl")
    shutil.unpack_archive(wheel, installed, "zip")
    use = f"import site; site.addsitedir({str(installed)!r}); import learnvllm; print(learnvllm.__version__)"
    found = subprocess.run([sys.executable, "-S", "-c", use], cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout == "0\n", found.stderr


def test_a_step_that_failed_is_not_called_done(setup: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    setup.VENV.mkdir()
    setup.PYTHON.parent.mkdir()
    setup.PYTHON.symlink_to("/bin/false")
    with pytest.raises(setup.SetupError, match="exit status 1"):
        setup.pip(["-e", "."], "packages")
    said = capsys.readouterr().out
    assert "packages: failed" in said
    assert "done" not in said


def test_what_is_no_python_is_named() -> None:
    made = subprocess.run(
        ["make", "serve", "PYTHON=/usr/bin/false"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode != 0
    assert "learnvllm needs Python 3.11 or newer; /usr/bin/false is not one" in made.stderr


def test_extras_add_up(setup: ModuleType, pip_calls: list[list[str]]) -> None:
    setup.ensure_packages({"serve"})
    setup.ensure_packages({"dev"})
    setup.ensure_packages({"serve"})
    assert [call[-1] for call in pip_calls] == [".[serve]", ".[dev,serve]"]


@pytest.mark.parametrize(("first", "then"), [("dev", "study"), ("dev", "serve"), ("lab", "serve,study")])
def test_what_another_extra_brought_is_not_installed_again(
    setup: ModuleType, pip_calls: list[list[str]], first: str, then: str
) -> None:
    setup.ensure_packages({first})
    setup.ensure_packages(set(then.split(",")))
    assert len(pip_calls) == 1
    setup.ensure_packages({"dev", "lab"})
    assert len(pip_calls) == 2, "neither brings the other"


def test_while_pip_unpacks_its_packages_are_counted(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = setup.VENV / "lib/python3.11/site-packages"
    for name in ("pip-25", "old-1", "torn-1"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
        (packages / f"{name}.dist-info/INSTALLER").touch()
    (packages / "torn-1.dist-info/INSTALLER").unlink()
    setup.PYTHON.parent.mkdir()
    setup.PYTHON.write_text(
        f"#!/bin/sh\ncd '{packages}'\necho 'Installing collected packages: a, b, old'\n"
        "sleep 0.3; rm -r old-1.dist-info; mkdir a-1.dist-info old-2.dist-info\n"
        "touch a-1.dist-info/INSTALLER old-2.dist-info/INSTALLER; sleep 0.5\n"
    )
    setup.PYTHON.chmod(0o755)
    real_wait = setup.threading.Event.wait
    monkeypatch.setattr(
        setup.threading.Event, "wait", lambda self, timeout=None: real_wait(self, timeout and 0.05)
    )
    setup.pip(["-e", "."], "packages")
    said = capsys.readouterr().out
    assert "unpacking: 0 of 3 packages" in said
    assert "unpacking: 2 of 3 packages" in said


def test_a_changed_pin_is_installed_and_a_changed_style_rule_is_not(
    setup: ModuleType, pip_calls: list[list[str]]
) -> None:
    setup.ensure_packages({"serve"})
    with (setup.ROOT / "pyproject.toml").open("a") as file:
        file.write("\n[tool.of-taste]\nx = 1\n")
    setup.ensure_packages({"serve"})
    assert len(pip_calls) == 1
    with (setup.ROOT / "constraints.txt").open("a") as file:
        file.write("something==1.0\n")
    setup.ensure_packages({"serve"})
    assert len(pip_calls) == 2


def test_an_interrupted_install_goes_on(
    setup: ModuleType, pip_calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(arguments: list[str], label: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(setup, "pip", stopped)
        with pytest.raises(KeyboardInterrupt):
            setup.ensure_packages({"serve"})
    setup.ensure_packages(set())
    assert [call[-1] for call in pip_calls] == [".[serve]"], "it still knows what was wanted"


def test_half_unpacked_packages_are_forgotten(setup: ModuleType) -> None:
    packages = setup.VENV / "lib/python3.11/site-packages"
    for name, files in {
        "whole-1.dist-info": ["METADATA", "INSTALLER"],
        "torn-1.dist-info": ["METADATA"],
        "~orn": [],
    }.items():
        (packages / name).mkdir(parents=True)
        for file in files:
            (packages / name / file).touch()
    setup.repair_packages()
    assert [path.name for path in packages.iterdir()] == ["whole-1.dist-info"]


def test_a_torn_stamp_counts_as_none(setup: ModuleType) -> None:
    setup.VENV.mkdir()
    setup.STAMP.write_text('{"done": tr')
    assert setup.read_stamp() == {}


@pytest.mark.parametrize("half_made", ["no python", "a python that does not run", "made elsewhere", "a file"])
def test_a_venv_that_cannot_be_used_is_made_anew(
    setup: ModuleType, half_made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.PYTHON.parent.mkdir(parents=True)
    if half_made == "a python that does not run":
        setup.PYTHON.write_text("torn")
        setup.PYTHON.chmod(0o755)
    elif half_made == "made elsewhere":
        setup.PYTHON.symlink_to(sys.executable)
        setup.STAMP.write_text(json.dumps({"root": "/somewhere/else"}))
    elif half_made == "a file":
        setup.PYTHON.parent.rmdir()
        setup.VENV.rmdir()
        setup.VENV.touch()
    made: list[list[str]] = []

    real_run = subprocess.run

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if "venv" not in command:
            return real_run(command, **options)  # type: ignore[call-overload, no-any-return]
        assert not setup.VENV.exists()
        made.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(setup.subprocess, "run", run)
    setup.ensure_venv(python_was_chosen=False)
    assert len(made) == 1


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "disk is full",
        ),
        (
            "Retrying ... NewConnectionError: [Errno -3] Temporary failure in name resolution",
            "could not be reached",
        ),
        ("ssl.SSLCertVerificationError: CERTIFICATE_VERIFY_FAILED", "certificate"),
        ("ERROR: No matching distribution found for torch==2.13.0", "no torch==2.13.0 for this Python"),
        ("ERROR: something nobody foresaw", "something nobody foresaw"),
    ],
)
def test_a_failure_names_its_cause(setup: ModuleType, output: str, said: str) -> None:
    assert said in setup.explain(output, "pip stopped")


def test_missing_venv_modules_name_the_package(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object())
    with pytest.raises(setup.SetupError, match=r"ensurepip.*\n.*apt install python3\.\d+-venv"):
        setup.check_venv_modules()
