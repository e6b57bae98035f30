"""Tables on narrow screens: cells know their columns, long paths may break at their joints."""

from __future__ import annotations

from learnvllm.study.site.wide_tables import breakable, cells, with_labels

LONG = "A sentence that is long enough to make its table a list on a phone."


def test_cells_of_a_table_that_does_not_fit_a_phone_know_their_column() -> None:
    page = (
        f'| Ours | `vLLM`\'s "x" | Why |\n|---|---:|---|\n| {LONG} | {LONG} | {LONG} {LONG} |\n| b | | |\n\n'
        "Text | no table.\n"
    )
    assert with_labels(page) == (
        '| Ours | `vLLM`\'s "x" | Why |\n|---|---:|---|\n'
        f'| {LONG} {{ data-label="Ours" }} | {LONG} {{ data-label="vLLM&#x27;s &quot;x&quot;" }} | '
        f'{LONG} {LONG} {{ data-label="Why" }} |\n'
        '| b { data-label="Ours" } | | |\n\nText | no table.\n'
    )


def test_a_table_that_fits_and_one_in_a_code_block_stay() -> None:
    numbers = "| n | s |\n|---|---|\n| 1 | 2 |\n"
    costs = f"| Message | Bytes |\n|---|---:|\n| {LONG} | 1,621 |\n"
    code = f"```text\n| a | b | c |\n|---|---|---|\n| {LONG} | {LONG} | {LONG} |\n```\n"
    page = numbers + "\n" + costs + "\n" + code
    assert with_labels(page) == page


def test_a_matrix_stays_however_wide_it_is() -> None:
    matrix = f"| Wrong | Why | 1 | 2 | 3 | 4 |\n|---|---|---|---|---|---|\n| {LONG} | {LONG} | ✗ | | ✗ | |\n"
    assert with_labels(matrix) == matrix


def test_tables_of_a_page_with_the_same_columns_look_alike() -> None:
    head = "| Field | Type | Meaning |\n|---|---|---|\n"
    wide = f"{head}| {'x' * 30} | {LONG} | {LONG} |\n"
    small = f"{head}| a | b | c |\n"
    assert 'a { data-label="Field" }' in with_labels(small + "\n" + wide)
    assert with_labels(small) == small


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
