"""Run by mkdocs-gen-files: puts the generated pages into the site's tree. reference.py makes their text."""

import sys
from pathlib import Path

import mkdocs_gen_files

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent.parent)]

import reference

for path, markdown in reference.pages().items():
    with mkdocs_gen_files.open(path, "w") as page:
        page.write(markdown)
