"""A notebook that has run, as Markdown: code, and what it showed. Plots are SVG in the page's colours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from learnvllm.study import show
from learnvllm.study.site.snippets import fenced
from learnvllm.study.site.words import Say

_IMAGES = ("image/svg+xml", "image/png", "image/jpeg")
_AN_OBJECT = re.compile(r"^(\[?<[\w.]+ .*>,?\]?|Text\(.*\)|<.* at 0x…>.*)$", re.DOTALL)
"""What the last expression of a cell that plots looks like: matplotlib's objects."""


def notebook_markdown(notebook: Any, path: Path, say: Say = str) -> str:
    """The page.

    Args:
        notebook: the one that has run.
        path: its .py file.
    """
    heading, _, rest = notebook.cells[0].source.partition("\n")
    note = (
        f'<p class="notebook-source"><a href="{path.stem}.ipynb" download>{say("Download the notebook")}</a>'
        f"{say(', or run it: ')}<code>learnvllm notebook {int(path.parent.name[3:5])}</code></p>"
    )
    parts = [heading, note, _links(rest.strip())]
    for number, cell in enumerate(notebook.cells[1:], 1):
        if cell.cell_type == "markdown":
            parts.append(_links(cell.source))
        elif cell.cell_type == "code" and cell.source.strip():
            if "hide-input" not in cell.metadata.get("tags", ()):
                parts.append(fenced(cell.source, "python"))
            parts += _outputs(cell.outputs, number)
    return "\n\n".join(part for part in parts if part) + "\n"


def _links(markdown: str) -> str:
    """Links that work from the notebook's file work from its page."""
    return markdown.replace("](../../docs/", "](../../")


def _outputs(outputs: list[Any], cell: int) -> list[str]:
    plots = any(kind in output.get("data", {}) for output in outputs for kind in _IMAGES)
    parts: list[str] = []
    stream = ""
    for number, output in enumerate([*outputs, None]):
        if output is not None and output.output_type == "stream":
            stream += output.text
            continue
        if stream.strip():
            parts.append(_plain(stream))
        stream = ""
        if output is not None:
            parts.append(_rich(output, f"c{cell}o{number}", plots))
    return [part for part in parts if part]


def _rich(output: Any, prefix: str, plots: bool) -> str:
    """The most telling form of an output."""
    data = output.get("data", {})
    if output.output_type == "error":  # of a cell that is tagged raises-exception
        return _plain(f"{output.ename}: {output.evalue}")
    if "image/svg+xml" in data:
        return _plot(inline_svg(data["image/svg+xml"], prefix))
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            source = f"data:{kind};base64,{''.join(data[kind].split())}"
            return _plot(f'<img alt="The plot that the code above draws" src="{source}">')
    if "text/markdown" in data:
        return str(data["text/markdown"])
    if "text/html" in data:
        html = re.sub(r"\n\s*\n+", "\n", data["text/html"].strip())
        return f'<div class="output html">\n{html}\n</div>'
    text = data.get("text/plain", "")
    return "" if plots and _AN_OBJECT.match(text) else _plain(text)


def _plot(html: str) -> str:
    return f'<div class="output plot" data-search-exclude>{html}</div>'


def _plain(text: str) -> str:
    return fenced(text.rstrip("\n"), "{.text .output}")


def inline_svg(svg: str, prefix: str) -> str:
    """SVG to stand within a page: its grey becomes the page's text colour, its ids are its own."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = body.replace(show.INK, "currentColor")
    body = re.sub(r"\bid=\"", f'id="{prefix}-', body)
    body = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{prefix}-", body)
    # The style sheet in an inline SVG would count for the whole page.
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
    width, height = (float(body.partition(f'{side}="')[2].partition("pt")[0]) for side in ("width", "height"))
    title = _title(body)
    opening = (
        f'<svg role="img" aria-label="{title}" class="notebook-plot" '
        f'style="--drawn:{width * 4 / 3:.0f}px; max-width:var(--drawn)" '
        f'viewBox="0 0 {width:g} {height:g}" stroke-linejoin="round" stroke-linecap="butt"'
        ' xmlns:xlink="http://www.w3.org/1999/xlink" xmlns="http://www.w3.org/2000/svg">'
    )
    body = opening + body[body.index(">") + 1 :]
    return re.sub(r"\s*\n\s*", " ", body)


def _title(svg: str) -> str:
    """What a screen reader says of it: all the words in it."""
    words = [word.strip() for word in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]
    named = [word for word in dict.fromkeys(words) if re.search(r"[A-Za-z]", word)]
    return ("Plot: " + ", ".join(named)).replace('"', "&quot;") if named else "Plot"
