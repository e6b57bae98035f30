"""What holds of the repository as a whole: what imports what, what is pinned, what is declared."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "learnvllm").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def modules_loaded_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after running `code`."""
    program = f"import sys\n{code}\nprint('\\n'.join(sorted(n.split('.')[0] for n in sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    return set(answer.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "learnvllm",
        "learnvllm.scheduling",
        "learnvllm.scheduling.scheduler",
        "learnvllm.kv_cache",
        "learnvllm.kv_cache.block_pool",
        *sorted(
            f"learnvllm.architecture.{path.stem}"
            for path in (ROOT / "learnvllm/architecture").glob("[a-z]*.py")
        ),
    ],
)
def test_the_host_side_imports_without_torch(module: str) -> None:
    assert not modules_loaded_by(f"import {module}") & {"torch", "numba", "transformers"}


def test_public_names_are_found_on_first_use() -> None:
    assert not modules_loaded_by("import learnvllm") & {"msgspec", "pydantic"}
    import learnvllm

    assert all(hasattr(learnvllm, name) for name in learnvllm.__all__)
    assert not hasattr(learnvllm, "nonsense")


def test_help_imports_nothing_heavy() -> None:
    help_and_stop = (
        "import runpy; sys.argv = ['learnvllm', '--help']\n"
        "try: runpy.run_module('learnvllm', run_name='__main__')\n"
        "except SystemExit as stop: assert not stop.code, stop.code"
    )
    loaded = modules_loaded_by(help_and_stop)
    assert not loaded & {"torch", "numba", "numpy", "transformers", "fastapi", "pydantic", "rich"}


def test_what_the_package_imports_is_declared() -> None:
    """A name the engine imports is a dependency or in an extra that a user installs; never only in dev."""
    groups = [
        PROJECT["dependencies"],
        *(PROJECT["optional-dependencies"][e] for e in ("serve", "study", "bench", "gpu")),
    ]
    declared = {canonicalize_name(Requirement(text).name) for group in groups for text in group}
    owners = importlib.metadata.packages_distributions()
    undeclared = {  # a package that is not installed counts as its own name
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        for name in imported_names(path)
        if name not in sys.stdlib_module_names
        and name != "learnvllm"
        and not {canonicalize_name(owner) for owner in owners.get(name, [name])} & declared
    }
    assert not undeclared


def imported_names(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def test_constraints_pin_everything_that_dev_brings() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    waiting, seen, unpinned = ["learnvllm[dev]"], set(), set()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if (name, *sorted(requirement.extras)) in seen:
            continue
        seen.add((name, *sorted(requirement.extras)))
        if name not in pinned and name != "learnvllm":
            unpinned.add(name)
        for text in brought_by(name):
            marker = Requirement(text).marker
            if marker is None or any(
                marker.evaluate({"extra": extra}) for extra in ["", *requirement.extras]
            ):
                waiting.append(text)
    assert not unpinned, f"add to constraints.txt: {sorted(unpinned)}"


def brought_by(name: str) -> list[str]:
    """The requirements of an installed package; our own are read from pyproject.toml, to be current."""
    if name != "learnvllm":
        return importlib.metadata.requires(name) or []
    optional = []
    for extra, texts in PROJECT["optional-dependencies"].items():
        for text in texts:
            what, _, marker = text.partition(";")
            condition = f"({marker}) and extra == '{extra}'" if marker else f"extra == '{extra}'"
            optional.append(f"{what}; {condition}")
    return [*PROJECT["dependencies"], *optional]


def test_environment_variables_are_declared_once() -> None:
    """Every LEARNVLLM_* name in code and text is in the registry, and only the registry reads them."""
    from learnvllm.architecture import envs

    texts = [*SOURCES, *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "Makefile"]
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in texts
        for name in re.findall(r"\bLEARNVLLM_[A-Z0-9_]*[A-Z0-9]\b", path.read_text("utf-8"))
        if name not in envs.REGISTRY
    }
    assert not unknown
    readers = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.name not in ("envs.py", "cli.py")  # the CLI reports errors also while a variable is nonsense
        and re.search(r"(environ(\.get)?|getenv)\s*[\[(]\s*[\"']LEARNVLLM_", path.read_text("utf-8"))
    }
    assert not readers, "read variables through learnvllm.architecture.envs.get"


def test_every_module_says_its_idea() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert not silent


def test_nothing_unpickles() -> None:
    """Weights and messages come as safetensors, GGUF and msgspec; a pickle can run code when it is loaded."""
    guilty = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if re.search(r"\bpickle\.loads?\(|\btorch\.load\(|\bimport (cloud)?pickle\b", path.read_text("utf-8"))
    ]
    assert not guilty


def test_links_between_the_texts_lead_somewhere() -> None:
    broken = []
    for text in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        shown = re.sub(r"<!--.*?-->", "", text.read_text("utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", shown):
            generated = link.startswith("reference/")  # by docs/hooks
            if not generated and not (text.parent / link).exists():
                broken.append(f"{text.name}: {link}")
    assert not broken


# ------------------------------------------------------------------------------------------ vLLM's files

VLLM_PATH = re.compile(r"(?<![\w/.-])vllm/[\w/.-]*(?:\{[\w,/.-]+\}[\w/.-]*)?")


def upstream_files() -> set[str]:
    """Every .py file in the wheel of the version that CHANGELOG-upstream.md names."""
    return set((ROOT / "tests/data/vllm_0.33.0_paths.txt").read_text("utf-8").split())


def cited_paths(text: str) -> set[str]:
    """`vllm/a/{b,c}.py` counts as two; a sentence's full stop is not part of a path."""
    found = set()
    for path in VLLM_PATH.findall(text):
        before, brace, rest = path.partition("{")
        names, _, after = rest.partition("}")
        found |= {(before + name + after).rstrip(".-/") for name in (names.split(",") if brace else [""])}
    return found


def test_every_vllm_file_that_a_text_cites_is_in_vllm() -> None:
    """What is cited from vLLM can be opened: a file of the released wheel, or a folder of them."""
    files = upstream_files()
    folders = {str(parent) for file in files for parent in PurePosixPath(file).parents}
    texts = [*SOURCES, *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "docs/mechanisms.toml"]
    invented = {
        f"{text.relative_to(ROOT)}: {path}"
        for text in texts
        for path in cited_paths(text.read_text("utf-8"))
        if path not in files and path not in folders
    }
    assert not invented


def test_paths_are_recognised_in_running_text() -> None:
    assert cited_paths(
        "(upstream: vllm/v1/a.py, vllm/v1/). See vllm/b.py:Name; learnvllm/c.py, x/vllm/d."
    ) == {
        "vllm/v1/a.py",
        "vllm/v1",
        "vllm/b.py",
    }
    assert cited_paths("vllm/x/{a,b/c}.py.") == {"vllm/x/a.py", "vllm/x/b/c.py"}
