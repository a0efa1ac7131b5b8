"""The report: one page of HTML that holds tables, pictures, tests and how to repeat it all.

The page needs no network. Its tables are HTML, which DataTables (in the package itables) lets the
reader sort and filter; its policy forbids every script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uqbench.boards import LEVEL, Board, Column, Statistic, direction
from uqbench.errors import UsageError
from uqbench.formatting import UNDEFINED, counted, printable, setting_text
from uqbench.leaderboard import Leaderboard
from uqbench.leaderboard_columns import (
    TextColumn,
    interval_column,
    metric_column,
    seeds_column,
    time_columns,
)
from uqbench.records import Record
from uqbench.replacement import replacement
from uqbench.report_ranks import LEAST_METHODS, LEAST_PROBLEMS, Ranks, ranks
from uqbench.statistics import LEAST_SEEDS

if TYPE_CHECKING:
    import jinja2

    from uqbench.results import Results

PAGE = "index.html"


def write_report(results: Results, out: str | Path, runs: Sequence[str] = ()) -> Path:
    """Write the page, which is whole or unchanged at any time, and return its path.

    out: a folder, which gets an ``index.html``, or a file ``*.html``. runs: how the runs are named
    in the command that repeats the page. Raises :class:`UsageError` if it cannot be written.
    """
    path = Path(out)
    if path.suffix.lower() not in (".html", ".htm"):
        path = path / PAGE
    command = ["uqbench", "leaderboard", *map(str, runs), "--format", "html", "--out", str(out)]
    text = report(results, shlex.join(command))
    try:
        with replacement(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def report(results: Results, page_command: str) -> str:
    """Return the page. page_command: what wrote it, for those who want to repeat it."""
    from uqbench.report_pictures import pictures
    from uqbench.run_commands import run_commands

    board_views, found = [], Leaderboard.of(results.records)
    for position, board in enumerate(found.boards):
        own = _own_results(results, board)
        view = _board_view(board)
        view |= {"anchor": f"problem-{position + 1}", "pictures": list(pictures(own, board))}
        view |= {
            "intervals": _intervals(board),
            "settings": _settings(board),
            "setup": list(_setup(own.records)),
        }
        board_views.append(view)
    script = _template_text("report.js")
    tables = files("itables") / "html"
    return (
        _environment()
        .get_template("report.html")
        .render(
            title="Uncertainty quantification: results",
            summary=_summary(found.boards, results.records),
            boards=board_views,
            legend=found.legend(),
            level=f"{1 - LEVEL:.0%}",
            least_seeds=LEAST_SEEDS,
            ranks=[_ranks_view(one) for one in ranks(_ranked(found.boards))],
            least_methods=LEAST_METHODS,
            least_problems=LEAST_PROBLEMS,
            commands=run_commands(results.records),
            page_command=page_command,
            environments=list(_environments(results.records)),
            version=version("uqbench"),
            itables_version=version("itables"),
            css=_template_text("report.css"),
            tables_css=(tables / "dt_bundle.css").read_text(encoding="utf-8"),
            tables_js=base64.b64encode((tables / "dt_bundle.js").read_bytes()).decode(),
            script=script,
            script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def notebook_tables(leaderboard: Leaderboard) -> str:
    """Return the boards as plain HTML tables, as a notebook shows them."""
    template = _environment().get_template("results.html")
    views = [_board_view(board) for board in leaderboard.boards]
    return template.render(boards=views, legend=leaderboard.legend())


def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("uqbench", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )


def _template_text(name: str) -> str:
    return (files("uqbench") / "templates" / name).read_text(encoding="utf-8")


def _own_results(results: Results, board: Board) -> Results:
    """The records of one board, of which a quick run's may lie beside others of its problem."""
    from uqbench.plots.selection import records_of
    from uqbench.results import Results

    return Results(tuple(records_of(results, board)), results.folders)


def _board_view(board: Board) -> dict[str, Any]:
    columns = [
        _column_view(seeds_column(board), [float(row.seeds) for row in board.shown_rows], "desc")
    ]
    columns += [_metric_view(board, column) for column in board.columns]
    for shown, name in zip(
        time_columns(board, with_std=True), ("total_seconds", "post_hoc_seconds"), strict=True
    ):
        seconds = [row.cost[name].mean for row in board.shown_rows]
        columns.append(_column_view(shown, seconds, "asc"))
    rows = [
        {"label": row.label, "cells": [column["cells"][position] for column in columns]}
        for position, row in enumerate(board.shown_rows)
    ]
    about = {"title": board.title, "problem": printable(board.problem), "quick": board.quick}
    return {**about, "columns": columns, "rows": rows, "notes": board.notes}


def _metric_view(board: Board, column: Column) -> dict[str, Any]:
    from uqbench.metrics import METRICS

    better, target = direction(column.metric)
    numbers: list[Statistic] = [row.metrics[column] for row in board.shown_rows]
    losses = [one.mean if target is None else abs(one.mean - target) for one in numbers]
    first = "desc" if better == "higher" else "asc"
    shown = metric_column(board, column, " ± ", align=False)
    marks = [one.mark for one in numbers]
    description = METRICS[column.metric].description if column.metric in METRICS else ""
    return _column_view(shown, losses, first, marks, description)


def _column_view(
    column: TextColumn,
    numbers: Sequence[float],
    first: str,
    marks: Sequence[str] = (),
    description: str = "",
) -> dict[str, Any]:
    """A column with the numbers that it is sorted by; the undefined count as the worst.

    first: "asc" or "desc", the order of the first click.
    """
    worst = "-Infinity" if first == "desc" else "Infinity"
    orders = [_javascript(number) if not math.isnan(number) else worst for number in numbers]
    cells = [
        {"text": cell.text, "order": order, "mark": mark}
        for cell, order, mark in zip(
            column.cells, orders, marks or [""] * len(column.cells), strict=True
        )
    ]
    return {
        "header": " ".join(column.header_lines),
        "description": description,
        "first": first,
        "then": "asc" if first == "desc" else "desc",
        "cells": cells,
    }


def _javascript(number: float) -> str:
    return repr(float(number)) if math.isfinite(number) else f"{'-' * (number < 0)}Infinity"


def _intervals(board: Board) -> dict[str, Any]:
    """The intervals of the table's means; empty if there is none."""
    columns = [interval_column(board, column) for column in board.columns]
    rows = [
        (row.label, [column.cells[position].text for column in columns])
        for position, row in enumerate(board.shown_rows)
    ]
    if all(text == UNDEFINED for _, texts in rows for text in texts):
        return {}
    return {"headers": [" ".join(column.header_lines) for column in columns], "rows": rows}


def _settings(board: Board) -> list[tuple[str, str]]:
    return [
        (row.label, ", ".join(f"{key}={setting_text(item)}" for key, item in row.settings.items()))
        for row in board.rows
    ]


def _setup(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """What all methods of a board share."""
    shown = next((one for one in records if one.status == "ok"), records[0])
    identity = shown.identity
    sizes = shown.outcome.sizes.items()
    yield "rows", ", ".join(f"{part} {number}" for part, number in sizes)
    yield "split", ", ".join(map(str, identity.split)) or "official"
    yield "data fingerprint", identity.fingerprint
    yield "precision", identity.dtype
    yield "network", _listed(identity.network)
    for name, value in identity.training.items():
        if value not in (None, [], {}, ""):
            yield name, _listed(value) if isinstance(value, dict) else str(value)


def _listed(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _summary(boards: Sequence[Board], records: Sequence[Record]) -> str:
    methods = {record.identity.method for record in records}
    statuses = Counter(record.status for record in records)
    parts = [counted(len(boards), "problem"), counted(len(methods), "method")]
    counts = ", ".join(f"{number} {status}" for status, number in statuses.most_common())
    return f"{', '.join(parts)}; {counted(len(records), 'cell')}: {counts or 'none'}."


def _ranked(boards: Sequence[Board]) -> list[Board]:
    """The boards whose ranks are comparable: quick runs only where there is nothing else."""
    return [board for board in boards if not board.quick] or list(boards)


def _ranks_view(one: Ranks) -> dict[str, Any]:
    from uqbench.metrics import METRICS
    from uqbench.report_pictures import Picture

    title = METRICS[one.metric].title
    where = f"{counted(len(one.methods), 'method')} on {counted(len(one.problems), 'problem')}"
    sentences = [f"Problems: {', '.join(map(printable, one.problems))}."]
    if one.left_out:
        sentences.append(f"Left out: {', '.join(one.left_out)}.")
    picture = None
    if one.tested:
        from uqbench.plots.critical_difference import picture as drawn
        from uqbench.report_pictures import as_svg

        sentences.append(_verdict(one))
        caption = f"Critical-difference diagram of {title}"
        picture = Picture(caption, as_svg(drawn(one), caption))
    return {
        "heading": f"{title}: {where}",
        "sentences": sentences,
        "picture": picture,
        "rows": list(zip(one.methods, one.mean_ranks, strict=True)),
        "tested": one.tested,
    }


def _verdict(one: Ranks) -> str:
    differ = one.p_value < LEVEL
    finding = "the methods differ" if differ else "the methods are not shown to differ"
    verdict = (
        f"Friedman: p = {one.p_value:.2g}, {finding} at {LEVEL:.0%}. Nemenyi: the critical "
        f"difference is {one.critical_difference:.2f}"
    )
    return f"{verdict}." if differ else f"{verdict}; after that result it is an illustration only."


_PARTS = ("python", "platform", "cpu", "gpu", "commit", "dirty")


def _environments(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """Each environment that cells ran in, and when."""
    groups: dict[tuple[tuple[str, str], ...], list[Record]] = {}
    for record in records:
        if record.status != "skipped":  # nothing ran
            groups.setdefault(tuple(_environment_parts(record)), []).append(record)
    for parts, group in groups.items():
        started = sorted(str(r.provenance["started"]) for r in group if "started" in r.provenance)
        shown = list(parts)
        if started:
            shown.append(("started", f"{started[0]} to {started[-1]}"))
        yield {"heading": counted(len(group), "cell"), "parts": shown}


def _environment_parts(record: Record) -> Iterator[tuple[str, str]]:
    provenance = record.provenance
    packages = provenance.get("packages")
    if isinstance(packages, dict):
        yield "packages", _listed(packages)
    for name in _PARTS:
        if provenance.get(name) is not None:
            yield name, str(provenance[name])
    if record.cost.device:
        yield "device", f"{record.cost.device}, {counted(record.cost.threads, 'thread')}"
