"""What every grader relies on: the points marker, repeatable hypothesis, failures that a learner can read."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

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

# Hypothesis also tries the constants that it finds in local modules: the examples would be others for each
# learner's file, and after each change of a number anywhere in the engine. There is no setting for it.
with suppress(AttributeError):  # an older one does not look for them
    NO_CONSTANTS = providers._local_constants  # empty, as no example has been drawn yet
    providers._get_local_constants = lambda: NO_CONSTANTS


def pytest_configure(config: pytest.Config) -> None:
    from learnvllm.study import grader_plugin

    config.addinivalue_line("markers", "points(n): what a test is worth")
    if not config.pluginmanager.is_registered(grader_plugin):  # `learnvllm check` has asked for it already
        config.pluginmanager.register(grader_plugin)
