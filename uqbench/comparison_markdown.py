"""A comparison with the paper as a page of Markdown: docs/reproduction.md is one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from uqbench.comparison import Comparison, Pair
from uqbench.formatting import counted
from uqbench.leaderboard_markdown import escaped, markdown_row
from uqbench.paper import TITLES
from uqbench.records import Record
from uqbench.run_commands import run_commands

if TYPE_CHECKING:
    from uqbench.comparison_figures import DrawnFigure
    from uqbench.comparison_report import Report


def page(report: Report, figures: Sequence[DrawnFigure] = ()) -> str:
    """Return the whole page: summary, the rule, a section per table and figure, what is missing."""
    from uqbench.comparison_report import RULE

    comparison = report.comparison
    parts = [
        "# Reproduction of the paper",
        "This page is generated: `uqbench compare RUN... --against paper --format md --out FILE`. "
        "The paper is Wilson et al., *Uncertainty Quantification with the Empirical Neural Tangent "
        "Kernel* (arXiv 2502.02870); its numbers are in `leaderboards/paper/`. "
        "Figure 2 has a script and a picture of its own, `docs/convergence.py` and "
        "`docs/convergence.svg`.",
        *map(escaped, comparison.summary()),
        *(f"- {escaped(note)}" for note in comparison.notes),
        "How to read the tables:",
        "\n".join(f"- {escaped(sentence)}" for sentence in RULE),
    ]
    for table, pairs in comparison.tables.items():
        parts.append("\n".join(_section(report, table, pairs)))
    parts += ["\n".join(_figure(figure)) for figure in figures]
    if comparison.not_covered:
        parts.append("## Tables without a result")
        parts.append("\n".join(f"- {escaped(text)}" for text in report.tables_without_result()))
    return "\n\n".join(parts) + "\n"


def _section(report: Report, table: str, pairs: Sequence[Pair]) -> Iterator[str]:
    from uqbench.comparison_report import HEADINGS, state

    yield f"## {escaped(TITLES[table])}"
    yield ""
    yield f"- State: {escaped(state(pairs))}."
    records = _records(report.comparison, pairs)
    for command in run_commands(records):
        yield f"- Command: {_code(command)}"
    yield f"- Seeds: {_seeds(pairs)}."
    for environment in dict.fromkeys(map(_environment, records)):
        yield f"- Environment: {escaped(environment)}."
    yield ""
    yield markdown_row(["problem", *HEADINGS])
    yield markdown_row([":--", ":--", ":--", "--:", "--:", "--:", "--:", ":--"])
    problem = ""
    for line in report.lines(pairs):
        shown = line.problem if line.problem != problem else ""
        problem = line.problem
        yield markdown_row([escaped(cell) for cell in (shown, *line.cells)])
    yield ""
    for text in report.remarks(pairs):
        yield f"- {escaped(text)}"
    for letter, one in report.explanations(pairs):
        yield f"- ({letter}) {one.because} Experiment: {one.evidence}"


def _code(text: str) -> str:
    """A code span, which ends at as many backticks as it begins with: more than are inside."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks} {text} {ticks}" if len(ticks) > 1 else f"`{text}`"


def _seeds(pairs: Sequence[Pair]) -> str:
    counts = sorted({pair.ours.seeds for pair in pairs if pair.ours.seeds})
    compared = [pair for pair in pairs if pair.ours.seeds]
    theirs = sorted({pair.number.seeds for pair in compared if pair.number.seeds})
    text = f"{' or '.join(map(str, counts))} of ours"
    return f"{text}, {' or '.join(map(str, theirs))} of the paper" if theirs else text


def _figure(figure: DrawnFigure) -> Iterator[str]:
    yield f"## {escaped(figure.title)}"
    yield ""
    for command in run_commands(figure.records):
        yield f"- Command: {_code(command)}"
    yield f"- Picture: {_code(f'uqbench plot RUN {figure.plot}')}"
    yield ""
    if figure.file is None:
        yield f"Not drawn: {escaped(figure.reason)}"
    else:
        yield f"![{escaped(figure.title)}]({figure.file.name})"


def _records(comparison: Comparison, pairs: Sequence[Pair]) -> list[Record]:
    """The finished records behind these pairs, each once."""
    records = {record.key: record for pair in pairs for record in comparison.records_of(pair)}
    return list(records.values())


def _environment(record: Record) -> str:
    origin = record.provenance
    versions = origin.get("packages") or {}
    parts = [f"{name} {version}" for name, version in versions.items()]
    if origin.get("python"):
        parts.append(f"Python {origin['python']}")
    parts += [str(origin[name]) for name in ("cpu", "gpu") if origin.get(name)]
    threads = counted(record.cost.threads, "thread")
    parts.append(f"device {record.cost.device or 'unknown'}, {threads}")
    if origin.get("commit"):
        dirty = " with changes" if origin.get("dirty") else ""
        parts.append(f"commit {str(origin['commit'])[:10]}{dirty}")
    return ", ".join(parts)
