"""What a learner's disk may hold besides an exercise: each is told in a sentence, and nothing of theirs is lost."""

from __future__ import annotations

import pytest
from tests.study.loop.conftest import Shell


@pytest.mark.parametrize("limit", ["0", "-1", "inf", "nan", "x"])
def test_a_time_limit_is_a_number_above_0(limit: str, shell: Shell) -> None:
    with pytest.raises(SystemExit):
        shell(f"check --timeout={limit}")
    assert "is no number of seconds above 0" in shell.capsys.readouterr().err
