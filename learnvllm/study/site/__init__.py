"""The site's pages, as plain Markdown: docs/ with its directives followed, and what is made from the code.

`tree.site_tree()` gives every file of it. mkdocs gets them through docs/hooks/gen_pages.py, any other
generator from the folder that `tree.write_site(folder)` fills.
"""

from learnvllm.study.files import ROOT

DOCS = ROOT / "docs"
