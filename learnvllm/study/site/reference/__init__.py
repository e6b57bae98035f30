"""The reference section: made from the code, so that it says what the code does."""

from __future__ import annotations

from learnvllm.study.site.reference import mechanisms, settings

PAGES = {
    "reference/configuration.md": settings.configuration,
    "reference/environment.md": settings.environment,
    "reference/mechanisms.md": mechanisms.page,
}
"""Path in the site's tree -> what makes its Markdown; in the order of the navigation."""
