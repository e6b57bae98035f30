"""Notebooks: all run; one that raises, hangs or dies is an error that says where; results are kept."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest

from learnvllm.study import notebooks
from learnvllm.study.catalogue import find_notebooks
from learnvllm.study.notebooks import NotebookError
from learnvllm.study.site import notebook_pages

TITLE = "# %% [markdown]\n# # Title\n# What one sees, 5 minutes. See [more](../../docs/index.md).\n\n"


def write(folder: Path, *cells: str) -> Path:
    path = folder / "day03_scheduling" / "01_try.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(TITLE + "".join(f"# %%\n{cell}\n\n" for cell in cells), "utf-8")
    return path


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


@pytest.mark.parametrize("path", find_notebooks(), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_notebook_runs_and_every_cell_shows_something(path: Path) -> None:
    notebook = notebooks.run(path)
    assert notebook.cells[0].source.startswith("# ")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    silent = [
        cell.source for cell in code if not cell.outputs and "setup" not in cell.metadata.get("tags", ())
    ]
    assert not silent[1:], f"only the first cell, the imports, may show nothing: {silent[1:]}"
    assert outputs(notebook)


def test_a_cell_that_raises_is_named_with_its_line_and_traceback(tmp_path: Path) -> None:
    path = write(tmp_path, "x = 1", "y = 2\nx / 0")
    with pytest.raises(NotebookError) as caught:
        notebooks.run(path, tmp_path / "cache")
    assert "01_try.py: cell 3, line 9:\n\ny = 2\nx / 0\n" in str(caught.value)
    assert "ZeroDivisionError: division by zero" in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert not list((tmp_path / "cache").glob("*.ipynb"))


def test_a_figure_is_shown_once_whatever_the_cell_ends_in(tmp_path: Path) -> None:
    plot = "fig, ax = figure()\nax.plot([1, 2])\n"
    path = write(tmp_path, "from learnvllm.study.show import figure", plot + "fig", plot + "print()", plot)
    shown = [
        sum("image/svg+xml" in output.get("data", {}) for output in cell.outputs)
        for cell in notebooks.execute(path).cells
        if cell.cell_type == "code"
    ]
    assert shown == [0, 1, 1, 1]


def test_a_cell_that_is_tagged_may_raise(tmp_path: Path) -> None:
    path = write(tmp_path, "pass")
    path.write_text(path.read_text("utf-8") + '# %% tags=["raises-exception"]\n1 / 0\n', "utf-8")
    notebook = notebooks.execute(path)
    assert "ZeroDivisionError: division by zero" in notebook_pages.notebook_markdown(notebook, path)


def test_a_cell_that_does_not_end_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotebookError, match=r"(?s)while True.*did not finish within 1 s"):
        notebooks.execute(write(tmp_path, "while True: pass"), cell_timeout_s=1)


def test_a_kernel_that_dies_is_an_error(tmp_path: Path) -> None:
    said = r"(?s)cell 2, line 6.*ended its process.*last words"
    with pytest.raises(NotebookError, match=said):
        notebooks.execute(write(tmp_path, "import os\nos.write(2, b'last words')\nos._exit(3)"))


def test_two_runs_show_the_same(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "import random, numpy\nprint(random.random(), numpy.random.rand(), hash('a'), object())",
        "from learnvllm.study import show\nfig, ax = show.figure()\nax.plot([1, 2]);",
    )
    first, second = notebooks.execute(path), notebooks.execute(path)
    assert nbformat.writes(first) == nbformat.writes(second)


def test_a_result_is_kept_until_the_notebook_changes(tmp_path: Path) -> None:
    cell = "import time\nprint(time.time_ns())"
    path = write(tmp_path, cell)
    first = outputs(notebooks.run(path, tmp_path / "cache"))
    assert outputs(notebooks.run(path, tmp_path / "cache")) == first
    write(tmp_path, cell + "  # changed")
    assert outputs(notebooks.run(path, tmp_path / "cache")) != first


def test_what_is_run_for_the_site_is_counted_and_named_in_mkdocs_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = []
    for day in ("day01_a", "day02_b"):
        (tmp_path / day).mkdir()
        paths.append(write(tmp_path, "print(1)").rename(tmp_path / day / "01_try.py"))
    notebooks.run(paths[0], tmp_path / "cache")
    caplog.set_level("INFO", "mkdocs")  # as `mkdocs build` does
    notebooks.run_all([paths[0]], tmp_path / "cache")
    assert caplog.messages == []
    notebooks.run_all(paths, tmp_path / "cache")
    first, running, ran = caplog.messages
    assert first == "Notebooks to run: 1 (nothing has changed for the other 1)"
    assert running == "Running notebook day02_b-01_try"
    assert re.fullmatch(r"1 of 1: notebook day02_b-01_try ran, \d+ s", ran)


def test_a_change_of_the_package_or_the_versions_invalidates_what_is_kept(tmp_path: Path) -> None:
    for name in ("learnvllm/a.py", "learnvllm/study/site/b.py", "learnvllm/t.jinja", "constraints.txt"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")
    seen = {notebooks.sources_hash(tmp_path)}
    for name in ("learnvllm/a.py", "learnvllm/t.jinja", "constraints.txt"):
        (tmp_path / name).write_text("42")
        seen.add(notebooks.sources_hash(tmp_path))
    (tmp_path / "learnvllm/new.py").write_text("")
    seen.add(notebooks.sources_hash(tmp_path))
    assert len(seen) == 5
    (tmp_path / "learnvllm/study/site/b.py").write_text("42")
    assert notebooks.sources_hash(tmp_path) in seen, "what makes pages does not make outputs"


def test_old_results_are_thrown_away(tmp_path: Path) -> None:
    for number in range(4):
        notebooks.run(write(tmp_path, f"print({number})"), tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_the_learners_code_is_not_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNVLLM_OVERLAY", "all")
    notebook = notebooks.execute(write(tmp_path, "import os\nprint(os.environ.get('LEARNVLLM_OVERLAY'))"))
    assert outputs(notebook)[0].text == "None\n"


def test_the_page_shows_code_tables_text_and_plots_in_the_pages_colours(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "from learnvllm.study import show\nprint('said', object())",
        "show.table([(1, 'a')], ['n', 'x'])",
        "fig, ax = show.figure()\nax.plot([1, 2], label='line')\nax.legend()",
    )
    page = notebook_pages.notebook_markdown(notebooks.execute(path), path)
    assert page.startswith("# Title\n")
    assert "](../../index.md)" in page
    assert 'href="01_try.ipynb"' in page
    assert "```{.text .output}\nsaid <object object at 0x…>\n```" in page
    assert "| n | x |\n| ---: | --- |\n| 1 | a |" in page
    assert page.count("<svg ") == 1
    svg = page[page.index("<svg ") : page.index("</svg>")]
    assert "currentColor" in svg
    assert "#7d7c7b" not in svg
    assert "\n" not in svg
    assert 'aria-label="Plot: line"' in svg
    assert "Legend" not in page


def test_terminal_colours_and_overwritten_lines_do_not_reach_a_page() -> None:
    assert notebooks.plain_text("\x1b[31mred\x1b[0m\n10%\r100%\n<A at 0x7f12ab34cd>") == (
        "red\n100%\n<A at 0x…>"
    )


def test_keys_are_quick() -> None:
    begun = time.monotonic()
    notebooks.sources_hash(notebooks.ROOT)
    assert time.monotonic() - begun < 5
