"""dev check finds what it is there to find: a mutant that lives, a solved starter, a page that is silent."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from learnvllm.study import dev, dev_check, proof, sources, structure
from learnvllm.study.catalogue import find_exercise
from learnvllm.study.exercise import Exercise, StudyError
from learnvllm.study.files import study_home
from learnvllm.study.grading import GradeReport, TestReport
from learnvllm.study.mutants import load_mutants
from learnvllm.study.progress import record_hint
from learnvllm.study.sources import reference_hash
from learnvllm.study.starters import render_solution, render_starter

GRADER = """import pytest
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)


@pytest.mark.points(1)
def test_exact():
    assert subject.cdiv(4, 2) == 2, "exact"


@pytest.mark.points(1)
def test_rounding():
    assert subject.cdiv(5, 2) == 3, "rounding"
"""
MUTANTS = "".join(
    f"""[[mutant]]
name = "m{number}"
why = "wrong"
old = "-(a // -b)"
new = "{edit}"
"""
    for number, edit in enumerate(["a // b", "a // b + 1", "a % b", "b", "0"])
)


@pytest.fixture
def tiny(write_exercise: Callable[..., Path]) -> Exercise:
    folder = write_exercise()
    (folder / "test_exercise.py").write_text(GRADER, "utf-8")
    (folder / "mutants.toml").write_text(MUTANTS, "utf-8")
    exercise = find_exercise("tiny")
    exercise.path.write_text(render_starter(exercise), "utf-8")
    return exercise


def checked(exercise: Exercise) -> dev_check.CheckReport:
    return dev_check.check([find_exercise(exercise.id)], jobs=2)[0]


def structure_or_run(exercise: Exercise, message: str) -> tuple[str, ...]:
    """The mistakes; graders run only when the files alone do not show it."""
    told = tuple(structure.mistakes(find_exercise(exercise.id)))
    return told if any(message in mistake for mistake in told) else checked(exercise).mistakes


def test_a_sound_exercise_is_proved_and_remembered(tiny: Exercise) -> None:
    report = checked(tiny)
    assert report.mistakes == ()
    assert not report.cached
    assert report.starter_points == 0
    assert report.proof is not None
    killed = {mutant.name: mutant.killed_by for mutant in report.proof.mutants}
    assert killed["m0"] == ("test_rounding",)
    assert killed["m1"] == ("test_exact",)
    assert proof.read_proof(tiny) == report.proof
    written = (tiny.folder / "proof.json").read_bytes()
    again = checked(tiny)
    assert again.cached
    assert again.proof == report.proof
    assert (tiny.folder / "proof.json").read_bytes() == written


def test_a_change_makes_it_run_again(tiny: Exercise) -> None:
    checked(tiny)
    tiny.test_path.write_text(GRADER + "\n# more\n", "utf-8")
    assert not checked(tiny).cached


def test_better_texts_leave_the_proof_and_a_learner_s_pass_alone(tiny: Exercise) -> None:
    checked(tiny)
    told = tiny.folder / "exercise.toml"
    text = told.read_text("utf-8")
    for old, new in (
        ("Rounds up.", "Rounds up, always."),
        ('"one"', '"another"'),
        ("Tiny", "Small"),
        ("Round up.", "Up!"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    told.write_text(f'reading = ["topics/architecture/concepts.md"]\n{text}', "utf-8")
    known = proof.read_proof(tiny)
    assert known is not None
    assert known.content == proof.content(find_exercise("tiny"))
    assert find_exercise("tiny").content_hash() == tiny.content_hash()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("exercise.toml", "points = 2", "points = 3"),
        ("exercise.toml", 'todo = "Round up."', 'todo = "Round up."\nomit = true'),
        ("test_exercise.py", "cdiv(5, 2)", "cdiv(7, 3)"),
    ],
)
def test_another_task_is_to_be_passed_again(tiny: Exercise, file: str, old: str, new: str) -> None:
    before = tiny.content_hash(), proof.content(tiny)
    path = tiny.folder / file
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    after = find_exercise("tiny")
    assert after.content_hash() != before[0]
    assert proof.content(after) != before[1]


def test_another_mutant_is_to_be_proved_but_takes_no_pass_away(tiny: Exercise) -> None:
    before = tiny.content_hash(), proof.content(tiny)
    tiny.mutants_path.write_text(MUTANTS.replace("a % b", "a"), "utf-8")
    assert tiny.content_hash() == before[0]
    assert proof.content(tiny) != before[1]


def test_a_mutant_that_lives_is_told(tiny: Exercise) -> None:
    tiny.test_path.write_text(GRADER.replace("subject.cdiv(5, 2) == 3", "subject.cdiv(5, 2) <= 3"), "utf-8")
    report = checked(tiny)
    assert report.mistakes == ("no test notices the mutant 'm0'", "no test notices the mutant 'm3'")
    assert proof.read_proof(tiny) is None


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("test_exercise.py", "== 3", "== 2", "the reference fails test_rounding"),
        ("test_exercise.py", "subject.cdiv(5, 2) == 3", "True", "no test notices the mutant"),
        ("test_exercise.py", "@pytest.mark.points(1)\ndef test_r", "def test_r", "tests worth 1 points"),
        ("test_exercise.py", "points(1)", "points(0.5)", "has points(0.5): use a whole number above 0"),
        ("test_exercise.py", "load_subject(__file__)", "__import__('math')", "whose code would it grade"),
        (
            "test_exercise.py",
            "import pytest\n",
            "import pytest\nfrom tests import x\n",
            "imports from tests/",
        ),
        (
            "test_exercise.py",
            "import pytest\n",
            "import pytest\nfrom learnvllm.architecture.math_utils import cdiv\n",
            "takes cdiv from the reference",
        ),
        ("test_exercise.py", '"rounding"', 'f"Read {WALKTHROUGH}, rounding."', "names the walkthrough"),
        ("test_exercise.py", '"rounding"', 'f"Read {CONCEPTS}, rounding."', "sends to a whole page"),
        ("test_exercise.py", '== 2, "exact"', "== 2", "a check without a message"),
        ("test_exercise.py", '== 2, "exact"', '== 2, ""', "a check without a message"),
        (
            "test_exercise.py",
            "import pytest\n",
            "import pytest\n\ndef f(): raise AssertionError\n",
            "a check without",
        ),
        (
            "test_exercise.py",
            "import pytest\n",
            "import pytest\n\ndef f(): pytest.fail()\n",
            "a check without",
        ),
        ("test_exercise.py", "import pytest\n", "import pytest\nfrom pytest import raises\n", "use refuses"),
        ("test_exercise.py", "import pytest\n", "import pytest\n\nr = pytest.raises\n", "use refuses"),
        ("test_exercise.py", '"exact"', 'lesson("r", got=1, expected=2)', "lesson() without read"),
        ("exercise.py", "raise NotImplementedError", "return", "not what the reference gives"),
        (
            "exercise.toml",
            "prerequisites = []",
            'prerequisites = ["x.y"]',
            "prerequisite 'x.y' is no exercise",
        ),
        ("mutants.toml", "a // b + 1", "-(a // -b)  # same", "its edit changes no code"),
        ("mutants.toml", "a // b + 1", "a //", "its edit gives no Python"),
        ("mutants.toml", 'old = "-(a // -b)"\nnew = "0"', 'old = "nothing"\nnew = "0"', "occurs 0 times"),
        ("mutants.toml", 'name = "m1"', 'name = "m0"', "two mutants are called 'm0'"),
        ("mutants.toml", 'why = "wrong"\nold = "-(a // -b)"\nnew = "0"', "", "missing required field"),
    ],
)
def test_what_is_wrong_with_an_exercise_is_told(
    tiny: Exercise, file: str, old: str, new: str, message: str
) -> None:
    path = tiny.folder / file
    text = path.read_text("utf-8").replace('level = "fill-in"', 'level = "fill-in"\nprerequisites = []')
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    told = structure_or_run(tiny, message)
    assert any(message in mistake for mistake in told), told


def test_too_few_mutants_missing_and_stray_files_are_told(tiny: Exercise) -> None:
    tiny.mutants_path.write_text(MUTANTS.partition('[[mutant]]\nname = "m4"')[0], "utf-8")
    (tiny.folder / "notes.txt").write_text("", "utf-8")
    told = structure.mistakes(tiny)
    assert "mutants.toml has 4 mutants, at least 5 are needed" in told
    assert "notes.txt does not belong there" in told


def test_a_grader_that_is_gone_or_no_python_is_told(tiny: Exercise) -> None:
    tiny.test_path.write_text("def broken(:\n", "utf-8")
    assert "test_exercise.py, line 1: invalid syntax: def broken(:" in checked(tiny).mistakes
    tiny.test_path.unlink()
    assert "test_exercise.py is missing" in checked(tiny).mistakes


def test_pages_are_held_to_it(tiny: Exercise) -> None:
    docs = tiny.folder.parents[2] / "docs/topics/architecture"
    docs.mkdir(parents=True)
    assert any("does not name it" in mistake for mistake in structure.mistakes(tiny))
    (docs / "exercises.md").write_text("`tiny`: rounds up.", "utf-8")
    assert structure.mistakes(tiny) == []


@pytest.mark.parametrize(
    "message", ['lesson("rule", expected=1, got=2, read="{}")', 'READ = "{}"', 'f"Read {{CONCEPTS}}#{}."']
)
@pytest.mark.parametrize("section", ["floor", "cost-of-rounding", "in-code"])
def test_a_section_that_a_failure_names_is_on_the_page(tiny: Exercise, message: str, section: str) -> None:
    docs = tiny.folder.parents[2] / "docs/topics/architecture"
    docs.mkdir(parents=True)
    (docs / "exercises.md").write_text("`tiny`: rounds up.", "utf-8")
    page = "# Concepts\n\n## Rounding down {#floor}\n\n## Cost of rounding\n\n```python\n# in code\n```\n"
    (docs / "concepts.md").write_text(page, "utf-8")
    tiny.test_path.write_text(GRADER + f"\n{message.format(section)}\n", "utf-8")
    known = section in ("floor", "cost-of-rounding")
    lost = f"test_exercise.py names #{section}, and concepts.md has no such section"
    assert structure.mistakes(tiny) == ([] if known else [lost])


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("learnvllm/architecture/math_utils.py", True),
        ("math_utils.py", True),
        ("vllm/utils/math_utils.py", False),
        ("learnvllm/architecture/errors.py", False),
    ],
)
@pytest.mark.parametrize("where", ["summary", "the TODO of cdiv", "test_exercise.py"])
def test_no_text_sends_to_the_file_of_a_solution(tiny: Exercise, where: str, named: str, told: bool) -> None:
    file, said = ("test_exercise.py", "exact") if where.endswith(".py") else ("exercise.toml", "Round up.")
    path = tiny.folder / file
    said = "Rounds up." if where == "summary" else said
    path.write_text(path.read_text("utf-8").replace(f'"{said}"', f'"{said} See {named}."'), "utf-8")
    mistake = f"{where} sends to {named}, where a solution stands: say it there, or name a page"
    assert (mistake in structure.mistakes(find_exercise(tiny.id))) is told


def test_a_hint_may_send_there(tiny: Exercise) -> None:
    path = tiny.folder / "exercise.toml"
    path.write_text(path.read_text("utf-8").replace('"three"', '"see math_utils.py"'), "utf-8")
    assert not any("a solution stands" in mistake for mistake in structure.mistakes(find_exercise(tiny.id)))


def test_a_solved_starter_is_told(tiny: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev_check, "render_starter", render_solution)
    assert "the starter passes: there is nothing to do" in checked(tiny).mistakes


@pytest.fixture
def graded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The verdict without a grader: only the reference passes. Whose text was graded, as far as it came."""
    texts: list[str] = []

    def grade(exercise: Exercise, path: Path, **_: float) -> GradeReport:
        texts.append(path.read_text("utf-8"))
        passed = texts[-1] == render_solution(exercise)
        test = TestReport("test_exact", "passed" if passed else "failed", 2 * passed, 2)
        return GradeReport(exercise.id, path, passed, test.points, 2, (test,), None, 0, "")

    monkeypatch.setattr(dev_check, "grade", grade)
    return texts


def test_what_is_proved_is_what_was_there_when_it_began(tiny: Exercise, graded: list[str]) -> None:
    """Somebody goes on writing meanwhile: the new text has not been proved."""
    before = proof.content(tiny)

    def edit(_: str) -> None:
        tiny.test_path.write_text(GRADER + "# more\n", "utf-8")
        tiny.mutants_path.write_text(MUTANTS.replace("m4", "new"), "utf-8")

    report = dev_check.check([tiny], progress=edit)[0]
    assert report.mistakes == ()
    assert report.proof is not None
    assert report.proof.content == before != proof.content(tiny)
    assert report.proof.grader != proof.grader_hash(tiny)
    assert [mutant.name for mutant in report.proof.mutants] == ["m0", "m1", "m2", "m3", "m4"]


def test_ctrl_c_begins_no_further_grader(tiny: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def grade(exercise: Exercise, path: Path, **_: float) -> None:
        begun.append(path)
        time.sleep(0.1)

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dev_check, "grade", grade)
    with pytest.raises(KeyboardInterrupt):
        dev_check.check([tiny], progress=interrupted)
    assert len(begun) < 7


def test_a_slow_grader_is_told(tiny: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev_check, "GRADER_LIMIT_S", 0.001)
    assert any("s on the reference" in mistake for mistake in checked(tiny).mistakes)


def test_a_surface_that_differs_is_told() -> None:
    before = structure.surface("class A(B):\n    x: int = 1\n    @property\n    def f(self) -> int: ...\n")
    after = structure.surface(
        "class A(B):\n    x: int = 1\n    def f(self) -> int: ...\n    def _g(self): ...\n"
    )
    assert before.keys() == after.keys() == {"A", "A.x", "A.f"}
    assert before["A.f"] != after["A.f"]


def test_the_command_prints_the_matrix(
    tiny: Exercise, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert dev.main(["check", "tiny", "-j", "2", "--markdown", str(tmp_path / "matrix.md")]) == 0
    printed = capsys.readouterr()
    assert "architecture.tiny: proved, starter 0 of 2 points" in printed.out
    assert "    m0  .  x\n    m1  x  .\n" in printed.out
    assert "1 of 1 exercises proved (0 known from before), 5 of 5 mutants killed." in printed.out
    assert "7 of 7: architecture.tiny, mutant m4" in printed.err
    page = (tmp_path / "matrix.md").read_text("utf-8")
    assert "## Tiny { #architecture-tiny }" in page
    assert "| m0 | wrong | | ✗ |" in page
    assert "1. `test_exact`" in page
    assert dev.main(["check", "tiny", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["proved"]
    assert (told["killed"], told["mutants"]) == (5, 5)
    assert told["exercises"][0]["cached"]


def test_a_command_that_proves_nothing_fails(tiny: Exercise, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.test_path.write_text(GRADER.replace("== 3", "<= 3"), "utf-8")
    assert dev.main(["check", "tiny"]) == 1
    assert "  ! no test notices the mutant 'm0'" in capsys.readouterr().out
    assert dev.main(["check", "no such"]) == 2
    assert "no exercise 'no such'" in capsys.readouterr().err
    assert dev.main(["check", "tiny", "-j", "0"]) == 2


def test_generate_writes_starters_and_check_only_compares(
    tiny: Exercise, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dev.main(["generate", "--check"]) == 0
    tiny.path.write_text("mine", "utf-8")
    assert dev.main(["generate", "--check"]) == 1
    assert tiny.path.read_text("utf-8") == "mine"
    assert f"differs: {tiny.path}" in capsys.readouterr().out
    assert dev.main(["generate", "tiny", "architecture.tiny"]) == 0
    assert "1 starter is as generated." in capsys.readouterr().out  # named twice
    assert tiny.path.read_text("utf-8") == render_starter(tiny)


def test_generate_keeps_what_a_learner_wrote(tiny: Exercise) -> None:
    backups = study_home() / "backups/architecture.tiny"
    tiny.path.write_text("an old starter", "utf-8")
    assert dev.main(["generate"]) == 0
    assert not backups.exists()  # nobody is learning here
    record_hint(tiny)
    tiny.path.write_text("mine", "utf-8")
    assert dev.main(["generate"]) == 0
    assert [path.read_text("utf-8") for path in backups.iterdir()] == ["mine"]


def test_the_hash_follows_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grader of the pool depends on hashing, which the pool imports, and not on the serving layer."""
    few, all_ = tmp_path / "few.py", tmp_path / "all.py"
    few.write_text("from learnvllm.kv_cache import block_pool\n", "utf-8")
    all_.write_text("from learnvllm import LLM\n", "utf-8")
    seen: list[str] = []
    original = sources._path

    def spy(module: str) -> Path | None:
        seen.append(module)
        return original(module)

    monkeypatch.setattr(sources, "_path", spy)
    first = reference_hash([few])
    names = set(seen)
    assert reference_hash([few]) == first != reference_hash([all_])
    assert {"learnvllm.kv_cache.block_pool", "learnvllm.kv_cache.hashing"} <= names
    assert not any(name.startswith("learnvllm.serving") for name in names)
    assert "learnvllm.serving.api_server" in seen


def test_mutants_that_cannot_be_read_are_told(tiny: Exercise) -> None:
    tiny.mutants_path.write_text("[[mutant]]\nname = 3\n", "utf-8")
    with pytest.raises(StudyError, match=r"mutants.toml: Expected `str`, got `int`"):
        load_mutants(tiny)
