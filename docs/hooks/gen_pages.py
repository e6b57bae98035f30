"""Run by mkdocs-gen-files: puts the pages of learnvllm.study.site into mkdocs, and its navigation."""

import logging
import os

import jieba
import mkdocs_gen_files
from mkdocs.exceptions import Abort

from learnvllm.architecture.errors import LearnVLLMError
from learnvllm.study.site import nav, tree

jieba.setLogLevel(logging.WARNING)  # the search asks it for Chinese words
try:
    files = tree.site_tree(with_log=not os.environ.get("CI"))
    navigation = nav.navigation(files)
except LearnVLLMError as error:
    raise Abort(str(error)) from None
for path, text in files.items():
    with mkdocs_gen_files.open(path, "w") as file:
        file.write(text)
mkdocs_gen_files.config["nav"] = navigation
