"""The reference section: made from the code, so that it says what the code does."""

from __future__ import annotations

from learnvllm.study.site.reference import (
    cli,
    glossary,
    http_api,
    kill_matrix,
    mechanisms,
    metrics,
    settings,
)

PAGES = {
    "reference/cli.md": cli.page,
    "reference/configuration.md": settings.configuration,
    "reference/environment.md": settings.environment,
    "reference/http_api.md": http_api.page,
    "reference/metrics.md": metrics.page,
    "reference/glossary.md": glossary.page,
    "reference/mechanisms.md": mechanisms.page,
    "reference/kill_matrix.md": kill_matrix.page,
}
"""Path in the site's tree -> what makes its Markdown; in the order of the navigation."""
