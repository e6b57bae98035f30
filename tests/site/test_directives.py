"""Directives: code is cut out by symbol, what is not there stops the build, formulas are MathML."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.study.exercise import StudyError
from learnvllm.study.files import ROOT
from learnvllm.study.site import maths, snippets
from learnvllm.study.site.directives import Place, expand

SCHEDULER = "learnvllm/scheduling/scheduler.py"


def test_a_symbol_is_shown_as_it_stands_in_the_file() -> None:
    text = snippets.symbol_source(ROOT / SCHEDULER, "Scheduler.add_request")
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert function.name == "add_request"
    assert textwrap.indent(text, "    ") in (ROOT / SCHEDULER).read_text("utf-8")


def test_decorators_comments_and_the_string_below_a_constant_belong_to_a_symbol(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(
        'LIMIT = 3\n"""Why three."""\n\n'
        "class A:\n    @property\n    def b(self):\n        # because\n        return 1\n"
    )
    assert snippets.symbol_source(file, "LIMIT") == 'LIMIT = 3\n"""Why three."""'
    assert snippets.symbol_source(file, "A.b") == ("@property\ndef b(self):\n    # because\n    return 1")
    file.write_text("def other(): pass\n")
    with pytest.raises(StudyError, match=r"defines no A\.b"):
        snippets.symbol_source(file, "A.b")


def test_code_on_a_page_is_fenced_titled_and_keeps_its_indentation() -> None:
    page = expand(f'??? note\n\n    --8<-- "code:{SCHEDULER}:Scheduler.has_finished_requests"\n', "index.md")
    assert f'    ```python title="{SCHEDULER}"\n    def has_finished_requests' in page


def test_what_a_program_printed_is_text_and_its_tables_are_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snippets, "ROOT", tmp_path)
    (tmp_path / "out.txt").write_text(
        "today\n\n| a | b |\n|---|---:|\n| x | 1 |\n\n| is no table\nrounds: 3\n"
    )
    page = expand('--8<-- "output:out.txt"\n', "index.md")
    table = "| a | b |\n|---|---:|\n| x | 1 |"
    assert page.strip() == f"```text\ntoday\n```\n\n{table}\n\n```text\n| is no table\nrounds: 3\n```"


def test_code_with_fences_in_it_does_not_end_its_block() -> None:
    assert snippets.fenced('"""\n```\n"""', "python").startswith("````python\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            f'--8<-- "code:{SCHEDULER}:Scheduler.shedule"',
            r"no Scheduler\.shedule\. Did you mean Scheduler\.sch",
        ),
        ('--8<-- "code:learnvllm/nowhere.py:f"', "no file learnvllm/nowhere.py"),
        ('--8<-- "output:nowhere.txt"', "no file nowhere.txt"),
        ("<!-- quiz -->", "have a day"),
    ],
)
def test_a_directive_that_cannot_be_followed_names_page_and_line(line: str, said: str) -> None:
    with pytest.raises(StudyError, match=rf"docs/architecture.md, line 3: .*{said}"):
        expand(f"# Title\n\n{line}\n", "architecture.md")


def test_code_blocks_are_left_alone() -> None:
    text = (
        f'```text\n--8<-- "code:{SCHEDULER}:nothing"\n<!-- quiz -->\n$a_1$\n```\n\n`$x$` costs $5 and $6.\n'
    )
    assert expand(text, "index.md") == text


def test_other_comments_are_left_alone() -> None:
    assert expand("<!-- remark -->\n", "index.md") == "<!-- remark -->\n"


def test_formulas_become_mathml_that_markdown_leaves_alone() -> None:
    page = expand("Cost $O(n^2)$:\n\n$$B_i = \\frac{2 L * a}{n_{kv}}$$\n", "index.md")
    assert page.count("<math ") == 2
    assert 'display="block"' in page
    assert "<mfrac>" in page
    inside = page.partition("<math")[2]
    assert not set("*_`|") & set(inside)


@pytest.mark.parametrize("formula", [r"\left( x", r"\foo x", "x^"])
def test_a_formula_that_cannot_be_read_names_the_page(formula: str) -> None:
    with pytest.raises(StudyError, match=r"docs/index.md: the formula .* cannot be read"):
        expand(f"${formula}$\n", "index.md")


@given(st.lists(st.sampled_from(["text\n", "```\n", "````py\n", "~~~\n", "  ```\n", "\n", "a ``` b\n"])))
def test_cutting_out_code_loses_nothing(lines: list[str]) -> None:
    text = "".join(lines)
    assert "".join(part for _, part in maths.split_code(text)) == text


@pytest.mark.parametrize(
    ("page", "target", "link"),
    [
        ("index.md", "reference/cli.md", "reference/cli.md"),
        ("topics/kv_cache/quiz.md", "topics/kv_cache/concepts.md#blocks", "concepts.md#blocks"),
        ("topics/kv_cache/quiz.md", "reference/cli.md", "../../reference/cli.md"),
        ("zh/index.md", "reference/cli.md", "../reference/cli.md"),
        ("zh/index.md", "architecture.md", "architecture.md"),
    ],
)
def test_links_are_relative_and_stay_in_the_language(page: str, target: str, link: str) -> None:
    assert Place(page).link(target) == link
