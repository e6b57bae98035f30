"""What every grader relies on: the points marker, repeatable hypothesis, failures that a learner can read."""

import pytest
from hypothesis import HealthCheck, Phase, settings

pytest.register_assert_rewrite("support")

# derandomize: the same examples on every machine, so that "passed here" means passed everywhere.
settings.register_profile(
    "exercises",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=False,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],  # no "explain": a learner has our messages
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("exercises")


def pytest_configure(config: pytest.Config) -> None:
    from learnvllm.study import grader_plugin

    config.addinivalue_line("markers", "points(n): what a test is worth")
    if not config.pluginmanager.is_registered(grader_plugin):  # `learnvllm check` has asked for it already
        config.pluginmanager.register(grader_plugin)
