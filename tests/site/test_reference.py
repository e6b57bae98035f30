"""The reference pages say all that the code has: commands, flags, settings, metrics, routes, fields."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from learnvllm import cli
from learnvllm.architecture import envs
from learnvllm.study.exercise import StudyError
from learnvllm.study.site import reference
from learnvllm.study.site.reference import glossary, http_api, metrics


@pytest.fixture(scope="module")
def page_of() -> dict[str, str]:
    """Name of the page, without folder and ending -> its Markdown."""
    return {Path(name).stem: make() for name, make in reference.PAGES.items()}


def test_every_page_has_one_title_and_tables_whose_rows_are_as_wide_as_their_heads(
    page_of: dict[str, str],
) -> None:
    for name, text in page_of.items():
        assert re.match(r"# \S", text), name
        width = 0
        for line in text.splitlines():
            cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            assert cells == width or not (cells and width), f"{name}: {line}"
            width = cells


def test_the_command_line_page_has_every_command_and_flag(page_of: dict[str, str]) -> None:
    text = page_of["cli"]
    assert all(f"### `learnvllm {name}`" in text for name in cli.COMMANDS)
    assert "#### `learnvllm bench throughput`" in text
    for flag in ("--max-num-batched-tokens", "--host", "--api-key", "--no-enable-prefix-caching"):
        assert f"<code>{flag}" in text or f", {flag}" in text, flag
    assert "default: 8000" in text
    assert "%(default)s" not in text


def test_every_environment_variable_and_metric_is_there(page_of: dict[str, str]) -> None:
    assert all(f"`{name}`" in page_of["environment"] for name in envs.REGISTRY)
    names = [family.name for family in metrics.collect()]
    assert "vllm:num_requests_running" in names
    assert all(f"`{name}" in page_of["metrics"] for name in names)
    assert "`vllm:prompt_tokens_total`" in page_of["metrics"]


def test_every_route_and_every_field_of_its_body_is_there(page_of: dict[str, str]) -> None:
    text = page_of["http_api"]
    schema = http_api.openapi()
    for path, methods in schema["paths"].items():
        assert all(f"{method.upper()} {path}</code>" in text for method in methods)
    chat = text.partition("## <code>POST /v1/chat/completions</code>")[2].partition("\n## ")[0]
    fields = schema["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert {"messages", "temperature", "stream"} <= fields.keys()
    assert all(f"| `{name}` |" in chat for name in fields)
    assert "| `tokens` | <code>list of integer</code> | required |" in text


def test_the_glossary_has_both_languages_and_one_line_a_word(page_of: dict[str, str]) -> None:
    terms = glossary.load()
    assert len(terms) >= 50
    for term in terms:
        assert re.search(r"[\u4e00-\u9fff]", term.zh), term.term
        assert term.means.endswith("."), term.term
        assert "\n" not in term.means
        assert f'<span id="{term.anchor}"></span>' in page_of["glossary"]


def test_a_word_that_is_there_twice_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = '[[term]]\nterm = "block"\nzh = "块"\nmeans = "A block."\n'
    (tmp_path / "glossary.toml").write_text(entry * 2, "utf-8")
    monkeypatch.setattr(glossary, "DOCS", tmp_path)
    with pytest.raises(StudyError, match="block more than once"):
        glossary.load()
