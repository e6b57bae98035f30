"""Chinese pages: links stay in the language, a banner once the English text has changed, a way to end it."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from learnvllm.study.exercise import StudyError
from learnvllm.study.site import DOCS, maths, pages, translation, tree


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """docs/ with a translated page, and one that is not."""
    for module in (translation, pages, tree):
        monkeypatch.setattr(module, "DOCS", tmp_path)
    folder = tmp_path / "topics" / "a"
    folder.mkdir(parents=True)
    (folder / "concepts.md").write_text("# Concepts\n\nText.\n", "utf-8")
    (folder / "quiz.md").write_text("# Quiz\n", "utf-8")
    (tmp_path / "index.md").write_text("# Start\n", "utf-8")
    (tmp_path / "index.zh.md").write_text("# 开始\n", "utf-8")
    (folder / "concepts.zh.md").write_text(
        "# 概念\n\n[测验](quiz.md#q1) [开始](../../index.md) [外](https://x.org/a.md) [下](#下)\n"
        '![图](../../assets/a.svg)\n\n<div class="visualiser" data-src="../../assets/t.json"></div>\n',
        "utf-8",
    )
    return tmp_path


def test_links_lead_to_translated_pages_and_to_the_english_ones_where_there_are_none(docs: Path) -> None:
    text = translation.translated_source("topics/a/concepts.md")
    assert "[测验](../../../topics/a/quiz.md#q1)" in text
    assert "[开始](../../index.md)" in text, "zh/index.md"
    assert "[外](https://x.org/a.md) [下](#下)" in text
    assert "](../../../assets/a.svg)" in text
    assert 'data-src="../../../assets/t.json"' in text


def test_an_outdated_translation_says_so_until_it_is_marked_current(docs: Path) -> None:
    path = docs / "topics/a/concepts.zh.md"
    assert "topics/a/concepts.md" in translation.outdated()
    translation.mark_current(path)
    assert "topics/a/concepts.md" not in translation.outdated()
    assert "译文可能已过时" not in translation.translated_source("topics/a/concepts.md")
    (docs / "topics/a/concepts.md").write_text("# Concepts\n\nOther text.\n", "utf-8")
    assert "topics/a/concepts.md" in translation.outdated()
    text = translation.translated_source("topics/a/concepts.md")
    assert '!!! warning "译文可能已过时"' in text.partition("# 概念")[2]
    assert "[英文版](../../../topics/a/concepts.md)" in text


def test_each_knows_the_other(docs: Path) -> None:
    meta, _ = pages.split_front_matter(translation.translated_source("index.md"), "")
    assert (meta["language"], meta["translation"]) == ("zh", "index.html")
    assert translation.translated()["index.md"] == "zh/index.md"


def test_a_translation_of_nothing_is_an_error(docs: Path) -> None:
    (docs / "gone.zh.md").write_text("# 没有\n", "utf-8")
    with pytest.raises(StudyError, match=r"docs/gone.zh.md translates docs/gone.md, which is not there"):
        translation.translated_source("gone.md")
    with pytest.raises(StudyError, match="is not there"):
        translation.mark_current(docs / "gone.zh.md")
    with pytest.raises(StudyError, match=r"should end in \.zh\.md"):
        translation.mark_current(docs / "index.md")


def test_a_prerequisite_of_a_translation_is_named_in_chinese(docs: Path) -> None:
    head = "---\nlanguage: zh\nprerequisites: [topics/a/concepts.md, topics/a/quiz.md]\n---\n"
    text = tree.page_text(head + "# 对照\n", "zh/topics/a/upstream.md")
    assert "**先读：**[概念](concepts.md)、[Quiz](../../../topics/a/quiz.md)。" in text


def test_our_own_translations_exist() -> None:
    assert {"index.md", "architecture.md"} <= translation.translated().keys()


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.zh.md")), ids=lambda p: p.relative_to(DOCS).as_posix())
def test_a_chinese_paragraph_is_one_line(path: Path) -> None:
    """A line break in it would be shown as a space."""
    _, body = pages.split_front_matter(path.read_text("utf-8"), path.name)
    begins = re.compile(r"\s*([-*+|#>]|\d+\. |<|--8<--|!!!)")
    lines = "\n".join("" if is_code else text for is_code, text in maths.split_code(body)).splitlines()
    broken = [
        f"{before.strip()[-20:]} / {line.strip()[:20]}"
        for before, line in pairwise(lines)
        if before.strip() and line.strip() and not begins.match(line) and not before.startswith(("!!!", "#"))
    ]
    assert not broken
