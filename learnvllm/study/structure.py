"""What can be said of an exercise without running it: its files agree with each other and with the pages.

The quick half of `learnvllm dev check`; `make test` runs it for every exercise.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from learnvllm.study.catalogue import load_exercises
from learnvllm.study.exercise import FILES, MIN_MUTANTS, Exercise, StudyError, read_bytes
from learnvllm.study.mutants import apply_mutant, load_mutants
from learnvllm.study.problems import of_syntax
from learnvllm.study.proof import support_files
from learnvllm.study.starters import render_solution, render_starter


def mistakes(exercise: Exercise, *, learner: bool = False) -> list[str]:
    """What is wrong with it, a sentence each.

    Args:
        learner: exercise.py may have been edited.
    """
    found: list[str] = []
    try:
        solution, starter = render_solution(exercise), render_starter(exercise)
        mutants = load_mutants(exercise)
    except StudyError as error:
        return [str(error)]
    if not learner and read_bytes(exercise.path) != starter.encode():
        found.append("exercise.py is not what the reference gives: run `learnvllm dev generate`")
    if len(mutants) < MIN_MUTANTS:
        found.append(f"mutants.toml has {len(mutants)} mutants, at least {MIN_MUTANTS} are needed")
    for mutant in mutants:
        try:
            apply_mutant(solution, mutant)
        except StudyError as error:
            found.append(str(error))
    omitted = {blank.member for blank in exercise.blanks if blank.omit}
    found += _surface_differences(surface(starter), surface(solution), omitted)
    found += _sends_to_solutions(exercise)
    return found + list(_wrong_files(exercise)) + list(_wrong_links(exercise))


def _sends_to_solutions(exercise: Exercise) -> Iterator[str]:
    """A text that names the file of a solution, its own or another's: who looks there has read it."""
    solutions = {path.replace(".", "/") + ".py" for path in (other.module for other in load_exercises())}
    texts = {name: getattr(exercise, name) for name in ("title", "summary", "out_of_scope")}
    texts |= {f"the TODO of {blank.member}": blank.todo for blank in exercise.blanks}
    for path in (exercise.test_path, *support_files(exercise)):
        texts[path.name] = read_bytes(path).decode() if path.is_file() else ""
    for where, text in texts.items():
        for named in sorted(set(re.findall(r"[\w/]+\.py\b", text))):
            if any(f"/{solution}".endswith(f"/{named}") for solution in solutions):
                yield f"{where} sends to {named}, where a solution stands: say it there, or name a page"


def surface(source: str) -> dict[str, str]:
    """What others may use of a module: public names with signatures, bases, fields, decorators."""
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        _add_surface(found, node, "")
    return found


def _add_surface(found: dict[str, str], node: ast.stmt, owner: str) -> None:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            if _public(node.name):
                kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
                decorators = " ".join(f"@{ast.unparse(d)}" for d in node.decorator_list)
                returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
                said = f"{decorators} {kind} ({ast.unparse(node.args)}){returns}".strip()
                found[owner + node.name] = " | ".join(filter(None, [found.get(owner + node.name), said]))
        case ast.ClassDef() if _public(node.name):
            decorators = " ".join(f"@{ast.unparse(d)}" for d in node.decorator_list)
            found[owner + node.name] = (
                f"{decorators} class ({', '.join(map(ast.unparse, node.bases))})".strip()
            )
            for inner in node.body:
                _add_surface(found, inner, f"{owner}{node.name}.")
        case ast.AnnAssign(target=ast.Name(id=name)) if owner and _public(name):
            found[owner + name] = ast.unparse(node)
        case ast.Assign(targets=[ast.Name(id=name)]) if owner and (_public(name) or name == "__slots__"):
            found[owner + name] = ast.unparse(node)


def _public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def _surface_differences(starter: dict[str, str], solution: dict[str, str], omitted: set[str]) -> list[str]:
    names = sorted((starter.keys() | solution.keys()) - omitted)
    return [
        f"{name}: the starter has {starter.get(name, 'none')}, the reference {solution.get(name, 'none')}"
        for name in names
        if starter.get(name) != solution.get(name)
    ]


def _wrong_files(exercise: Exercise) -> Iterator[str]:
    for name in FILES:
        if not (exercise.folder / name).is_file():
            yield f"{name} is missing"
    known = {*FILES, "proof.json", "__pycache__"}
    for path in sorted(exercise.folder.iterdir()):
        if path.name not in known and path.suffix != ".bak":
            yield f"{path.name} does not belong there"
    if exercise.test_path.is_file():
        yield from _mistakes_of_grader(exercise)


def _mistakes_of_grader(exercise: Exercise) -> Iterator[str]:
    """It judges the learner's code, and only that."""
    if problem := of_syntax(exercise.test_path):
        yield problem
        return
    grader = read_bytes(exercise.test_path).decode()
    if "load_subject(__file__)" not in grader:
        yield "test_exercise.py does not call load_subject(__file__): whose code would it grade?"
    yield from _mistakes_of_messages(exercise)
    yield from _mute_checks(exercise)
    for node in ast.walk(ast.parse(grader)):
        if isinstance(node, ast.ImportFrom) and node.module == exercise.module:
            names = {alias.name for alias in node.names} & set(exercise.symbols)
            if names:
                yield f"test_exercise.py takes {', '.join(sorted(names))} from the reference, not the subject"
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tests":
            yield "test_exercise.py imports from tests/, which a learner may not have: use exercises/support/"


def _mute_checks(exercise: Exercise) -> Iterator[str]:
    """Every check says in words what must hold: a beginner who fails it has nothing but the message."""
    for path in (exercise.test_path, *support_files(exercise)):
        for node in ast.walk(ast.parse(read_bytes(path))):
            where = f"{path.name}, line {getattr(node, 'lineno', 0)}"
            if _is_mute(node):
                yield f"{where}: a check without a message; say what is expected and what came"
            if _takes_raises(node):
                yield f"{where}: pytest.raises does not say which call: use refuses of support.refusal"
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "lesson":
                missing = {"expected", "got", "read"} - {keyword.arg for keyword in node.keywords}
                if missing:  # on a failure only, a TypeError would take the message's place
                    yield f"{where}: lesson() without {', '.join(sorted(missing))}"


def _is_mute(node: ast.AST) -> bool:
    """An assert, a raised AssertionError or pytest.fail that says nothing."""
    if isinstance(node, ast.Assert):
        return node.msg is None or (isinstance(node.msg, ast.Constant) and not node.msg.value)
    if isinstance(node, ast.Raise) and node.exc is not None:
        return ast.unparse(node.exc) in ("AssertionError", "AssertionError()")
    return isinstance(node, ast.Call) and ast.unparse(node) == "pytest.fail()"


def _takes_raises(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom) and node.module == "pytest":
        return any(alias.name == "raises" for alias in node.names)
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.raises"


def _mistakes_of_messages(exercise: Exercise) -> Iterator[str]:
    """What a failure tells to read is there, and gives nothing away."""
    page = exercise.root.parent / f"docs/topics/{exercise.topic}/concepts.md"
    sections = _sections(read_bytes(page).decode()) if page.is_file() else None
    for path in (exercise.test_path, *support_files(exercise)):
        text = read_bytes(path).decode()
        if "walkthrough" in text.lower():
            yield f"{path.name} names the walkthrough, which shows solutions: name a section of {page.name}"
        if re.search(r"\{CONCEPTS\}(?!#)", text):
            yield f"{path.name} sends to a whole page: name the section, {{CONCEPTS}}#section"
        anchors = re.findall(r"\{CONCEPTS\}#([\w-]+)", text)
        anchors += re.findall(r'\b(?:read|READ) ?= ?"([\w-]+)"', text)
        for anchor in sorted(set(anchors)):
            if sections is not None and anchor not in sections:
                yield f"{path.name} names #{anchor}, and {page.name} has no such section"


def _sections(page: str) -> set[str]:
    """The anchors of a page's headings, as the site gives them."""
    prose = re.sub(r"(?ms)^```.*?^```", "", page)
    named = re.findall(r"^#+ .*\{ ?#([\w-]+) ?\}$", prose, re.M)
    titles = re.findall(r"^#+ ([^{\n]+)$", prose, re.M)
    return {*named, *(re.sub(r"[^\w]+", "-", title.lower()).strip("-") for title in titles)}


def _wrong_links(exercise: Exercise) -> Iterator[str]:
    """Prerequisites are exercises, reading is there, the topic's page names the exercise."""
    ids = {other.id for other in load_exercises()}
    for name in exercise.prerequisites:
        if name not in ids:
            yield f"prerequisite {name!r} is no exercise"
    docs = exercise.root.parent / "docs"
    if not docs.is_dir():  # the exercises alone, without the checkout
        return
    for page in exercise.reading:
        if not (docs / page.partition("#")[0]).is_file():
            yield f"reading: there is no docs/{page}"
    page = f"topics/{exercise.topic}/exercises.md"
    text = read_bytes(docs / page).decode()
    if f"`{exercise.id}`" not in text and f"`{exercise.name}`" not in text:
        yield f"docs/{page} does not name it: write `{exercise.id}` or `{exercise.name}`"
