"""The parts of the site that the code, CONTRIBUTING.md and the notebook say already, for MkDocs.

A line ``<!-- generated: KIND ARGUMENT -->`` in a page is replaced when the site is built.
"""

from __future__ import annotations

import html
import importlib
import inspect
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).parent
MARKER = re.compile(r"^<!-- generated: (\w+) ?(\S*) -->$", re.MULTILINE)

_NAME = r"[a-z][a-z0-9_\\]*"  # with backslashes before underscores
SETTING = re.compile(rf"(?:^|(?<=[;.] ))({_NAME}(?:, {_NAME})*): ", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this with the text of every page."""
    return MARKER.sub(lambda found: KINDS[found[1]](found[2]), markdown)


def on_post_page(output: str, **_: Any) -> str:
    """MkDocs calls this with every page's HTML. ValueError if viewing it would fetch something."""
    if found := re.search(r"""(?:\bsrc=|<link[^>]*\bhref=)["']?(https?:)?//[^\s"'>]+""", output):
        raise ValueError(f"a page fetches something from the network: {found[0]}")
    return output


def as_markdown(docstring: str) -> str:
    """A docstring as Markdown: its formulas as they are, its settings as a list."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", docstring):
        if all(line.startswith("    ") for line in paragraph.splitlines()):
            parts.append(paragraph)
            continue
        text = re.sub(r":(?:func|class|mod|data):`([^`]*)`", r"``\1``", paragraph)
        # what is between double backquotes is code, the rest is plain text
        pieces = text.split("``")
        pieces[::2] = [re.sub(r"([\\*_\[\]])", r"\\\1", html.escape(p, False)) for p in pieces[::2]]
        text = "`".join(pieces)
        before, *items = SETTING.split(text)
        listed = [
            f"- **{names}**: {said.strip().removesuffix(';')}"
            for names, said in zip(items[::2], items[1::2], strict=True)
        ]
        text = "\n\n".join(filter(None, [before.strip(), "\n".join(listed)]))
        parts.append(text)
    return "\n\n".join(parts)


def metrics(family: str) -> str:
    """The module's docstring, and a section for each of its public functions."""
    module = importlib.import_module(f"uqbench.metrics.{family}")
    sections = [as_markdown(inspect.getdoc(module))]
    for name, function in _functions(module):
        sections += [f"### {name}", as_markdown(inspect.getdoc(function))]
    return "\n\n".join(sections)


def catalogue(_: str) -> str:
    """The names that records and leaderboards use, in the order of tables."""
    from uqbench.metrics import METRICS

    lines = ["| name | task | better | range | what |", "| --- | --- | --- | --- | --- |"]
    for metric in METRICS.values():
        limits = _limits(*metric.range_in(metric.task))
        if metric.classification_range:
            limits += f"; classification: {_limits(*metric.classification_range)}"
        cells = f"`{metric.name}`", metric.task, metric.better or "–", limits, metric.description
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _limits(lowest: float, highest: float) -> str:
    if math.isinf(highest):
        return "any" if math.isinf(lowest) else f"≥ {lowest:g}"
    return f"{lowest:g} to {highest:.3g}"


def definitions(_: str) -> str:
    """A section for each method, in alphabetical order."""
    from uqbench.registry import find_method, method_names

    sections = []
    for name in method_names():
        method = find_method(name)
        if not method.__module__.startswith("uqbench."):  # of another package in this environment
            continue
        title, docstring = inspect.getmodule(method).__doc__, inspect.getdoc(method)
        sections += [f"## {name}", f"*{as_markdown(title.strip())}*", as_markdown(docstring)]
    return "\n\n".join(sections)


def contributing(_: str) -> str:
    """CONTRIBUTING.md without its title, which the page has itself."""
    text = (DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return from_docs(text.partition("\n")[2])


def from_docs(text: str) -> str:
    """A text of the root with links as from docs/; other files, no part of the site, by name."""

    def link(found: re.Match[str]) -> str:
        name, target = found.groups()
        if target.startswith("docs/"):
            return f"[{name}]({target.removeprefix('docs/')})"
        return found[0] if re.match(r"https?:|#", target) else name

    return re.sub(r"\[([^\]]*)\]\(([^)]*)\)", link, text)


def notebook(name: str) -> str:
    """The notebook's cells with the outputs that it was saved with."""
    cells = json.loads((DOCS / name).read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _cell(cell))


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            picture = "".join(data["image/png"]).replace("\n", "")
            yield f'<img alt="Output of the cell" src="data:image/png;base64,{picture}">'
        else:
            text = "".join(data.get("text/plain", output.get("text", "")))
            yield f"```text\n{text.rstrip()}\n```"


def _functions(module: ModuleType) -> list[tuple[str, Any]]:
    functions = [f for f in vars(module).values() if inspect.isfunction(f)]
    own = [f for f in functions if f.__module__ == module.__name__]
    return [(f.__name__, f) for f in own if not f.__name__.startswith("_")]


KINDS = {
    "metrics": metrics,
    "catalogue": catalogue,
    "definitions": definitions,
    "contributing": contributing,
    "notebook": notebook,
}
