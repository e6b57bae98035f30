"""Tables on narrow screens: cells know their columns, long paths may break at their joints."""

from __future__ import annotations

from learnvllm.study.site.wide_tables import breakable, cells, with_labels

LONG = "A sentence that is long enough to make its table a list on a phone."


def test_cells_of_a_table_with_sentences_know_their_column() -> None:
    page = f'| Ours | `vLLM`\'s "x" |\n|---|---:|\n| a | {LONG} |\n| b | |\n\nText | no table.\n'
    assert with_labels(page) == (
        '| Ours | `vLLM`\'s "x" |\n|---|---:|\n'
        f'| a {{ data-label="Ours" }} | {LONG} {{ data-label="vLLM&#x27;s &quot;x&quot;" }} |\n'
        '| b { data-label="Ours" } | |\n\nText | no table.\n'
    )


def test_a_table_of_short_cells_and_one_in_a_code_block_stay() -> None:
    numbers = "| n | s |\n|---|---|\n| 1 | 2 |\n"
    code = f"```text\n| a | b |\n|---|---|\n| x | {LONG} |\n```\n"
    assert with_labels(numbers + "\n" + code) == numbers + "\n" + code


def test_a_bar_in_code_or_escaped_is_no_border() -> None:
    assert cells(r"| `a | b` | c \| d | | e |") == ["`a | b`", r"c \| d", "", "e"]


def test_a_long_path_may_break_after_its_joints_and_stays_code() -> None:
    assert breakable("see `vllm/v1/core/scheduler.py:Scheduler.__init__`") == (
        "see <code>vllm/<wbr>v1/<wbr>core/<wbr>scheduler.py:<wbr>Scheduler.<wbr>"
        "&#95;&#95;init&#95;&#95;</code>"
    )
    assert breakable("`short/path.py` and `x = a if b else c, whatever`") == (
        "`short/path.py` and `x = a if b else c, whatever`"
    )
