"""The command line. Commands import what they need when they run, so that --help is immediate."""

from __future__ import annotations

import errno
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from uqbench.errors import UQBenchError
from uqbench.plots import KINDS

if TYPE_CHECKING:
    from uqbench.api import Execution
    from uqbench.datasets.catalogue import Outcome
    from uqbench.method import Method
    from uqbench.problems import Problem

_LISTED_FAILURES = 10
_LISTS = ("methods", "problems", "suites", "metrics")


class _Group(click.Group):
    """Turns errors meant for people into one or two lines and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UQBenchError as error:
            _fail(str(error), 2)
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else "uqbench"
            message = " ".join(error.format_message().split()).rstrip(".")
            _fail(f"{message}{'' if message.endswith('?') else '.'} See '{command} --help'.", 2)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of a pipe is gone; click ends quietly
                raise
            place = f"{error.filename}: " if error.filename else ""
            _fail(f"{place}{error.strerror or error}", 2)
        except KeyboardInterrupt as error:
            _fail(str(error) or "Interrupted.", 130)


def _fail(message: str, status: int) -> None:
    prefix = "" if status == 130 else "Error: "
    click.echo(f"{prefix}{message}", err=True)
    sys.exit(status)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="uqbench")
def main() -> None:
    """Benchmark Bayesian uncertainty-quantification methods for neural networks."""
    if threading.current_thread() is threading.main_thread():
        # a batch system that ends a job gets what Ctrl-C gets: workers that end, and what is left
        signal.signal(signal.SIGTERM, signal.default_int_handler)


class _Text(click.ParamType):
    """Text that is not empty: an unset shell variable must not pass for an option left out."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value.strip():
            self.fail("it is empty", param, ctx)
        return value


class _AtLeastOne(click.ParamType):
    """A whole number, 1 or more."""

    name = "number"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            number = int(value)
        except ValueError:
            number = 0
        if number < 1:
            self.fail(f"must be a whole number, at least 1; got '{value}'", param, ctx)
        return number


_COUNT = _AtLeastOne()
_text_option = partial(click.option, type=_Text())

_plugin_option = _text_option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE.py",
    help="Python file that defines a method (repeatable).",
)
_setting_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="METHOD.SETTING=VALUE",
    help="Change a method's setting (repeatable).",
)
_device_option = _text_option(
    "--device", default="auto", show_default=True, metavar="auto|cpu|cuda[:i]"
)
_data_dir_option = _text_option(
    "--data-dir",
    metavar="DIR",
    help="Data folder (default: $UQBENCH_DATA, else a user cache).",
)


@main.command()
@_text_option("--methods", required=True, metavar="NAME,...", help="Methods to compare.")
@_text_option("--suite", metavar="NAME|FILE.toml", help="Problems to run (default: starter).")
@_text_option("--problems", metavar="NAME,...", help="Run these problems alone.")
@click.option("--seeds", type=_COUNT, default=3, show_default=True)
@_setting_option
@_device_option
@_text_option("--out", metavar="DIR", help="The run's folder (default: runs/SUITE).")
@click.option(
    "--jobs",
    type=_COUNT,
    default=1,
    show_default=True,
    help="Cells at a time; with more than one, timings are marked as shared.",
)
@_text_option("--timeout", metavar="TIME", help="Limit for each cell, like 90s, 30m or 2h.")
@click.option(
    "--rerun",
    type=click.Choice(["failed", "all"]),
    help="Run cells again that failed, or all, from training the MAP networks on; the newest "
    "record of a cell counts.",
)
@_plugin_option
@_data_dir_option
@_text_option("--data", metavar="FILE", help="A table of your own instead of a suite.")
@_text_option("--target", metavar="COLUMN", help="The column of --data to predict.")
@click.option("--task", type=click.Choice(["regression", "classification"]), help="For --data.")
@_text_option(
    "--images",
    metavar="FOLDER",
    help="Images of your own instead of a suite: train/CLASS/*, test/CLASS/*, optionally val/.",
)
@_text_option(
    "--ood",
    multiple=True,
    metavar="FOLDER|NAME",
    help="Images unlike those of --images, or in place of a problem's own OoD sets: a folder or a "
    "data set (repeatable).",
)
@click.option(
    "--image-size",
    type=_COUNT,
    metavar="PIXELS",
    help="Height and width that --images get (default: their most common size).",
)
@click.option(
    "--quick",
    is_flag=True,
    help="A tenth of the training epochs, and of images a few thousand, to try things out.",
)
@click.option("--dry-run", is_flag=True, help="List the cells and what is done; write nothing.")
def run(
    dry_run: bool,
    device: str,
    out: str | None,
    jobs: int,
    timeout: str | None,
    rerun: str | None,
    plugins: tuple[str, ...],
    **asked: Any,
) -> None:
    """Run methods on problems, and show the leaderboard.

    Cells that have a record in the run's folder are not run again.
    """
    from uqbench import api

    request = api.request(**asked)
    if dry_run:
        api.parse_duration(timeout)
        _show_plan(api.dry_run(request, device=device, out=out, plugins=plugins))
        return
    execution = api.execute(
        request,
        device=device,
        out=out,
        jobs=jobs,
        timeout=timeout,
        rerun=rerun,
        plugins=plugins,
    )
    _show_results(execution)
    sys.exit(1 if execution.failures else 0)


def _show_plan(execution: Execution) -> None:
    from uqbench.formatting import counted

    status = {record.key: record.status for record in execution.records}
    for problem in {cell.problem.name: cell.problem for cell in execution.cells}.values():
        if problem.description:
            click.echo(f"{problem.name}: {problem.description}")
    for cell in execution.cells:
        there = cell.key in status
        click.echo(f"{cell}: {f'already there, {status[cell.key]}' if there else 'to run'}")
    done = sum(cell.key in status for cell in execution.cells)
    cells = counted(len(execution.cells), "cell")
    click.echo(f"{cells}, {done} with a record in {execution.run_dir}")


def _show_results(execution: Execution) -> None:
    from uqbench.formatting import counted
    from uqbench.records import FILE_NAME
    from uqbench.results import Results
    from uqbench.runner import reason

    Results.load([execution.run_dir]).table()
    failures = execution.failures
    for record in failures[:_LISTED_FAILURES]:
        cell = f"{record.identity.problem} {record.identity.method} seed {record.identity.seed}"
        log = execution.run_dir / record.log
        click.echo(f"{record.status}: {cell}: {reason(record)} (log: {log})")
    if len(failures) > _LISTED_FAILURES:
        click.echo(f"... and {len(failures) - _LISTED_FAILURES} more that have no result")
    counts = ", ".join(f"{count} {status}" for status, count in execution.statuses.most_common())
    where = execution.run_dir / FILE_NAME
    click.echo(f"{counted(len(execution.cells), 'cell')}: {counts}. Records: {where}")


@main.command("list")
@click.argument("what", metavar="|".join(_LISTS), type=click.Choice(_LISTS))
@_plugin_option
def list_(what: str, plugins: tuple[str, ...]) -> None:
    """List methods, problems, suites or metrics."""
    listing = {
        "methods": lambda: _methods(plugins),
        "problems": _problems,
        "suites": _suites,
        "metrics": _metrics,
    }
    for line in listing[what]():
        click.echo(line)


def _methods(plugins: tuple[str, ...]) -> Iterator[str]:
    from uqbench.registry import load_plugins, method_names, method_title

    load_plugins(plugins)
    yield from _columns((name, method_title(name)) for name in method_names())


def _problems() -> Iterator[str]:
    from uqbench.problems import all_problems

    problems = all_problems()
    yield from _columns(
        (name, problem.task, problem.description) for name, problem in problems.items()
    )


def _suites() -> Iterator[str]:
    from uqbench.formatting import counted
    from uqbench.problems import load_suite, suite_names

    suites = map(load_suite, suite_names())
    yield from _columns(
        (s.name, counted(len(s.problems), "problem"), s.description) for s in suites
    )


def _metrics() -> Iterator[str]:
    from uqbench.metrics import METRICS

    yield from _columns(
        (
            metric.name,
            metric.task,
            f"{metric.better} is better" if metric.better else "",
            metric.description,
        )
        for metric in METRICS.values()
    )


def _columns(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Pad all cells but a row's last to the width of their column."""
    table = [tuple(str(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()


@main.command()
@click.argument("name", metavar="METHOD|PROBLEM")
@_plugin_option
def show(name: str, plugins: tuple[str, ...]) -> None:
    """Describe a method and its settings, or a problem and its recipe."""
    from uqbench.errors import UsageError
    from uqbench.problems import all_problems
    from uqbench.registry import find_method, load_plugins, method_names
    from uqbench.suggestions import did_you_mean

    load_plugins(plugins)
    methods = method_names()
    if name in methods:
        lines = _describe_method(name, find_method(name))
    else:
        problems = all_problems()
        if name not in problems:
            hint = did_you_mean(name, [*methods, *problems])
            raise UsageError(f"no method or problem named '{name}'.{hint}")
        lines = _describe_problem(problems[name])
    for line in lines:
        click.echo(line)


def _describe_method(name: str, method: type[Method]) -> Iterator[str]:
    import inspect
    from dataclasses import MISSING, fields
    from typing import get_type_hints

    from uqbench.formatting import setting_text

    yield f"{name} ({method.__module__}.{method.__qualname__})"
    yield ""
    yield inspect.getdoc(method) or ""
    yield ""
    yield f"tasks: {', '.join(sorted(method.tasks))}"
    network = "the shared MAP network" if method.post_hoc else "networks that it trains itself"
    yield f"starts from: {network}"
    types = get_type_hints(method)  # without what Annotated adds for validation
    rows = []
    for field in fields(method):
        default = field.default_factory() if field.default is MISSING else field.default
        rows.append(
            (f"  {field.name}", _type_text(types[field.name]), f"default {setting_text(default)}")
        )
    yield "settings:" if rows else "settings: none"
    yield from _columns(rows)


def _type_text(annotation: Any) -> str:
    import inspect

    return inspect.formatannotation(annotation).replace("typing.", "")


def _describe_problem(problem: Problem) -> Iterator[str]:
    from dataclasses import asdict

    from uqbench.formatting import setting_text

    parts = asdict(problem)
    methods = parts.pop("methods")
    yield f"{parts.pop('name')}: {problem.description}".rstrip(": ")
    for part in ("description", *problem.unused_fields):
        del parts[part]
    for part in problem.network.unused_fields:
        del parts["network"][part]
    for part, value in parts.items():
        if isinstance(value, dict):
            yield f"{part}:"
            yield from _columns((f"  {key}", str(item)) for key, item in value.items())
        else:
            yield f"{part}: {', '.join(map(str, value)) if isinstance(value, tuple) else value}"
    for method, settings in sorted(methods.items()):
        yield f"settings of {method}:"
        yield from _columns((f"  {key}", setting_text(item)) for key, item in settings.items())


@main.command()
@click.argument("runs", metavar="RUN...", nargs=-1)
@click.option(
    "--format",
    "format_",
    metavar="table|csv|md|html",
    help="Default: table, or what the suffix of --out says. html: a page with tables, pictures and "
    "tests, index.html in the folder --out.",
)
@_text_option("--out", metavar="FILE|DIR", help="Write to a file instead of the terminal.")
@_text_option("--verify", metavar="DIR", help="Check a folder of published leaderboards instead.")
def leaderboard(
    runs: tuple[str, ...], format_: str | None, out: str | None, verify: str | None
) -> None:
    """Aggregate the records of one or more runs, and show who is best.

    With --verify, the exit status is 0 if all is well, 1 if not, with one line for each kind of
    fault in a file.
    """
    if verify is not None:
        _verify(
            verify, unfit=[*runs, *(["--format"] if format_ else []), *(["--out"] if out else [])]
        )
    if not runs:
        raise click.UsageError("Missing argument 'RUN...'")
    as_page = format_ == "html" or (format_ is None and (out or "").lower().endswith(".html"))
    if as_page and out is None:
        raise click.UsageError("--format html needs --out: the folder that the page is written to")
    from uqbench.results import Results

    results = Results.load(runs)
    for run in runs:
        _warn_of_missing_cells(run)
    if as_page:
        from uqbench.report import write_report

        click.echo(f"Report: {write_report(results, out, runs)}", err=True)
    elif out is not None:
        from uqbench.leaderboard import Leaderboard

        Leaderboard.of(results.records).write(out, format_)
        click.echo(f"Leaderboard: {out}", err=True)
    elif format_ in (None, "table"):
        results.table()
    else:
        click.echo(results.leaderboard(format_), nl=False)


def _verify(folder: str, unfit: Sequence[str]) -> None:
    """Report on published leaderboards, and exit."""
    if unfit:
        raise click.UsageError(f"{unfit[0]}: not together with --verify")
    from uqbench.formatting import counted
    from uqbench.verification import report, summary, verify

    faults = verify(folder)
    for line in report(faults):
        click.echo(line)
    files = len({fault.file for fault in faults})
    total = f"{folder}: {counted(len(faults), 'fault')} in {counted(files, 'file')}"
    click.echo(total if faults else summary(folder))
    sys.exit(1 if faults else 0)


@main.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@_text_option(
    "--to", required=True, metavar="DIR", help="The folder leaderboards/ of a checkout of uqbench."
)
@_text_option("--who", metavar="NAME", help="Whose results (default: the name of your account).")
@_text_option("--methods", metavar="NAME,...", help="Publish these alone (default: all).")
def publish(runs: tuple[str, ...], to: str, who: str | None, methods: str | None) -> None:
    """Write a submission for each method of one or more runs, and the leaderboards anew.

    Nothing is written if a submission could not be verified; the reason is said.
    """
    from uqbench.publishing import publish as publish_runs

    names = [name.strip() for name in (methods or "").split(",") if name.strip()]
    published = publish_runs(runs, to, who=who, methods=names)
    for path in published.submissions:
        click.echo(f"Submission: {path}")
    for path in published.boards:
        click.echo(f"Board: {path}")


def _warn_of_missing_cells(run: str) -> None:
    from uqbench.records import RecordFile

    file = RecordFile(run)
    planned = set(file.planned())
    missing = len(planned - {record.key for record in file.read()})
    if missing:
        text = f"{run}: {missing} of the {len(planned)} cells that were asked for have not run yet"
        click.echo(f"{text}; this is a part of the result.", err=True)


@main.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@_text_option(
    "--against", default="paper", show_default=True, metavar="paper", help="What to compare with."
)
@click.option(
    "--format",
    "format_",
    metavar="table|csv|md",
    help="Default: table, or what the suffix of --out says.",
)
@_text_option("--out", metavar="FILE", help="Write to a file instead of the terminal.")
@_data_dir_option
def compare(
    runs: tuple[str, ...], against: str, format_: str | None, out: str | None, data_dir: str | None
) -> None:
    """Show results beside the numbers that the NUQLS paper prints.

    A number counts as reproduced if it is within 3 of the paper's standard deviations, or better.
    """
    from uqbench.api import comparison
    from uqbench.comparison_report import Report
    from uqbench.results import Results

    results = Results.load(runs)
    report = Report(comparison(results, against, data_dir), results)
    for run in runs:
        _warn_of_missing_cells(run)
    if out is not None:
        report.write(out, format_)
        click.echo(f"Comparison: {out}", err=True)
    elif format_ in (None, "table"):
        from rich.console import Console

        Console().print(report)
    else:
        click.echo(report.render(format_), nl=False)


@main.command()
@click.argument("run_dir", metavar="[RUN]", required=False)
@click.option("--kind", type=click.Choice(tuple(KINDS)), help="What to draw.")
@_text_option("--out", metavar="FILE", help="A .png, .svg or .pdf file (default: RUN/KIND.png).")
@_text_option("--problem", metavar="NAME", help="Which one, where several can be drawn.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Which one (default: the lowest; all for pareto and convergence).",
)
@_text_option(
    "--ood", metavar="NAME", help="OoD set of violin and ood-roc (default: the only one)."
)
@click.option("--log", is_flag=True, help="A logarithmic axis for violin.")
@_text_option(
    "--vmsp",
    metavar="FILE.npz",
    help="Violins of VMSP values from elsewhere, arrays METHOD/id_correct, METHOD/id_incorrect "
    "and METHOD/ood, and their statistics (default of --out: FILE.png in this folder).",
)
def plot(
    run_dir: str | None,
    kind: str | None,
    out: str | None,
    vmsp: str | None,
    log: bool,
    **chosen: Any,
) -> None:
    """Draw a picture of a run, or of VMSP values in a file.

    \b
    toy            mean ± 3σ of every method on a regression with one feature
    calibration    observed against nominal coverage of a regression's intervals
    violin         VMSP of ID correct, ID incorrect and OoD points
    reliability    accuracy against confidence
    risk-coverage  error rate against coverage, most confident points first
    ood-roc        telling OoD points by the predictive entropy
    pareto         NLL against seconds
    convergence    NLL against a setting with several values; SEV beside ntk_gp
    """
    from pathlib import Path

    from uqbench.errors import UsageError

    if (run_dir is None) == (vmsp is None):
        raise UsageError("name either the folder of a RUN or --vmsp FILE.npz, and not both")
    if vmsp is not None:
        unfit = [f"--{name}" for name, value in chosen.items() if value is not None]
        if kind not in (None, "violin"):
            unfit.append(f"--kind {kind}")
        if unfit:
            raise UsageError(f"{unfit[0]}: only for a picture of a RUN, not for --vmsp")
        out = out or f"{Path(vmsp).stem}.png"
        _plot_vmsp(vmsp, out, log)
    else:
        if kind is None:
            raise UsageError(f"--kind: say what to draw: {', '.join(KINDS)}")
        from uqbench.results import Results

        out = out or str(Path(run_dir) / f"{kind}.png")
        Results.load([run_dir]).plot(kind, out, log=log, **chosen)
    click.echo(f"Picture: {out}", err=True)


def _plot_vmsp(path: str, out: str, log: bool) -> None:
    from pathlib import Path

    from uqbench import plots
    from uqbench.leaderboard_columns import WORSE_THAN_BASE
    from uqbench.plots.violin import picture
    from uqbench.vmsp_values import read_vmsp, statistics_table

    plots.check_suffix(out)
    values = read_vmsp(path)
    plots.write(picture(values, Path(path).stem, log=log), out)
    table = "\n".join(_columns(statistics_table(values)))
    click.echo(table)
    if WORSE_THAN_BASE in table:
        click.echo(f"{WORSE_THAN_BASE}: worse than BASE, which knows nothing.")


@main.command()
@click.argument("name", metavar="METHOD")
@_setting_option
@_device_option
@_plugin_option
def check(name: str, settings: tuple[str, ...], device: str, plugins: tuple[str, ...]) -> None:
    """Check that a method keeps the contract, on tiny problems.

    The exit status is 0 if all checks pass, 1 if one fails.
    """
    from uqbench.cells import parse_setting
    from uqbench.errors import UsageError
    from uqbench.registry import check_method_name, load_plugins

    load_plugins(plugins)
    check_method_name(name)
    layers = []
    for text in settings:
        method, layer = parse_setting(text)
        if method != name:
            raise UsageError(f"{layer.source}: the method that is checked is {name}")
        layers.append(layer)
    from uqbench.conformance import check_names, check_results, summary

    width = max(map(len, check_names()))
    colours = {"ok": "green", "failed": "red", "skipped": "yellow"}
    results = []
    for result in check_results(name, layers, device):
        results.append(result)
        status = click.style(result.status, fg=colours[result.status])
        gap = " " * (9 - len(result.status)) if result.reason else ""
        click.echo(f"{result.check.ljust(width)}  {status}{gap}{result.reason}")
    click.echo(summary(name, results))
    sys.exit(1 if any(result.status == "failed" for result in results) else 0)


@main.group()
def new() -> None:
    """Write a starting point for something of your own."""


@new.command("method")
@click.argument("name")
@_text_option("--dir", "folder", default=".", metavar="DIR", help="Where to write (default: here).")
def new_method(name: str, folder: str) -> None:
    """Write NAME.py, a method that works, and its test."""
    from uqbench.scaffold import next_steps, write_method

    files = write_method(name, folder)
    for line in next_steps(name, files):
        click.echo(line)


@main.group()
def data() -> None:
    """List, verify and fetch data sets."""


@data.command("list")
@_data_dir_option
def data_list(data_dir: str | None) -> None:
    """List the data sets, and whether they are there."""
    from uqbench.datasets.catalogue import data_root, entries

    click.echo(f"data folder: {data_root(data_dir)}")
    for line in _columns(
        (entry.name, entry.task, " x ".join(map(str, (entry.rows, *entry.shape))), entry.status)
        for entry in entries(data_dir)
    ):
        click.echo(line)


@data.command("verify")
@click.argument("names", nargs=-1)
@_data_dir_option
def data_verify(names: tuple[str, ...], data_dir: str | None) -> None:
    """Check data sets (default: all) against their fingerprints."""
    from uqbench.datasets.catalogue import verify

    bad = ("wrong", "missing") if names else ("wrong",)
    _report(verify(data_dir, names or None), bad, status=2)


@data.command("fetch")
@click.argument("names", nargs=-1)
@_data_dir_option
def data_fetch(names: tuple[str, ...], data_dir: str | None) -> None:
    """Download data sets (default: all) that are not there."""
    from uqbench.datasets.catalogue import fetch

    outcomes = fetch(
        names or None, data_dir, report=lambda name: click.echo(f"{name} ...", err=True)
    )
    _report(outcomes, bad=("failed",), status=1)


def _report(outcomes: Sequence[Outcome], bad: Sequence[str], status: int) -> None:
    for line in _columns((outcome.name, outcome.status, outcome.message) for outcome in outcomes):
        click.echo(line)
    sys.exit(status if any(outcome.status in bad for outcome in outcomes) else 0)
