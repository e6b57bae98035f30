"""What must not know what: the core no text, the front end no torch."""

import ast
import subprocess
import sys
from pathlib import Path

CORE_SIDE = ("scheduling", "executor_worker", "kv_cache", "engine_core/core.py", "engine_core/core_proc.py")
TEXT_MODULES = ("tokenizers", "transformers", "jinja2")
TEXT_OWN = ("tokenizer", "detokenizer", "input_processor", "output_processor", "renderer", "chat_template")


def imports_of(path: Path) -> set[str]:
    """Every module named by an import statement anywhere in the file, late imports included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def reachable(roots: list[Path], package: Path) -> dict[str, set[str]]:
    """File -> imports, for the roots and whatever of ours they import."""
    graph: dict[str, set[str]] = {}
    todo = list(roots)
    while todo:
        path = todo.pop()
        key = str(path.relative_to(package))
        if key in graph:
            continue
        graph[key] = imports_of(path)
        for name in graph[key]:
            parts = name.split(".")
            if parts[0] != "learnvllm":
                continue
            for candidate in (
                package.joinpath(*parts[1:]).with_suffix(".py"),
                package.joinpath(*parts[1:], "__init__.py"),
            ):
                if candidate.is_file():
                    todo.append(candidate)
    return graph


def test_arc_05_the_engine_core_never_imports_a_tokenizer(repository: Path) -> None:
    package = repository / "learnvllm"
    roots = [
        f
        for part in CORE_SIDE
        for f in ([package / part] if part.endswith(".py") else (package / part).glob("**/*.py"))
    ]
    graph = reachable(roots, package)
    assert "engine_core/serial.py" in graph  # the walk does walk
    assert "architecture/request.py" in graph
    for file, names in graph.items():
        if file.startswith("model_layers/loading"):  # converting a GGUF file writes its tokenizer down
            continue
        for name in names:
            assert name.split(".")[0] not in TEXT_MODULES, f"{file} imports {name}"
            last = name.split(".")[-1] if name.startswith("learnvllm.") else ""
            assert last not in TEXT_OWN, f"{file} imports {name}"


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(m for m in sys.modules))"
    return set(
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_the_front_end_does_not_load_torch() -> None:
    loaded = loaded_after(
        "from learnvllm import LLM, SamplingParams\n"
        "import learnvllm.engine_core.async_llm, learnvllm.engine_core.mp_client\n"
        "import learnvllm.engine_core.llm_engine\n"
        "from learnvllm.assembly import create_engine_config, build_async_llm"
    )
    assert "learnvllm.engine_core.async_llm" in loaded
    assert not {"torch", "numba", "transformers"} & loaded


def test_the_package_itself_loads_nothing() -> None:
    loaded = loaded_after("import learnvllm")
    assert {m for m in loaded if m.startswith("learnvllm")} == {"learnvllm"}
    assert "msgspec" not in loaded
