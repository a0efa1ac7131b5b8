"""Results: the records of one or more runs, as objects, tables and a leaderboard."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uqbench.errors import DataError, UsageError
from uqbench.leaderboard import Leaderboard
from uqbench.records import Cost, Record, RecordFile

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from uqbench.saved_predictions import SavedPredictions


@dataclass(frozen=True)
class Results:
    """What ``uqbench.run`` returns.

    records: one per cell, the newest of each.
    folders: record's key -> folder of the run that it was read from.
    """

    records: tuple[Record, ...] = field(repr=False)
    folders: Mapping[str, Path] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", tuple(self.records))

    @classmethod
    def load(cls, runs: str | Path | Iterable[str | Path]) -> Results:
        """Read one run folder, or several; of a cell that several hold, the last result counts.

        A failure counts only where no folder has a result.
        Raises :class:`UsageError` if a folder holds no records.
        """
        folders = [runs] if isinstance(runs, str | Path) else list(runs)
        records: dict[str, Record] = {}
        homes: dict[str, Path] = {}
        for folder in folders:
            file = RecordFile(folder)
            if not file.path.is_file():
                raise UsageError(
                    f"{folder}: no run here (there is no {file.path.name}). Name the folder that "
                    "'uqbench run' wrote to."
                )
            found = {
                record.key: record
                for record in file.read()
                if record.status == "ok"
                or record.key not in records
                or records[record.key].status != "ok"
            }
            records |= found
            homes |= dict.fromkeys(found, Path(folder))
        return cls(tuple(records.values()), homes)

    @property
    def frame(self) -> pd.DataFrame:
        """One row per cell: its identity, status and error, metrics, OoD metrics and costs.

        Metrics on OoD sets are named ``ood:SET:metric``; what a cell lacks is NaN.
        """
        import pandas as pd

        rows = [_flat(record) for record in self.records]
        names = {group: _ordered(row[group] for row in rows) for group in ("metrics", "ood")}
        columns = [*_IDENTITY, *names["metrics"], *names["ood"], *_COST]
        flat = [{**row["identity"], **row["metrics"], **row["ood"], **row["cost"]} for row in rows]
        return pd.DataFrame(flat, columns=columns)

    def summary(self) -> pd.DataFrame:
        """Mean, deviation and 95% interval over seeds: one row per problem, method and number.

        The rows of the CSV leaderboard; see :meth:`uqbench.leaderboard.Leaderboard.tidy_rows`.
        """
        import pandas as pd

        from uqbench.leaderboard import CSV_COLUMNS

        return pd.DataFrame(Leaderboard.of(self.records).tidy_rows(), columns=CSV_COLUMNS)

    def leaderboard(self, format: str = "table", *, width: int = 120) -> str:
        """Return the leaderboard as text; format: ``table``, ``csv`` or ``md``."""
        return Leaderboard.of(self.records).render(format, width=width)

    def _repr_html_(self) -> str:
        from uqbench.report import notebook_tables

        return notebook_tables(Leaderboard.of(self.records))

    def report(self, out: str | Path) -> Path:
        """Write the results as one page of HTML, ``index.html`` in the folder ``out``.

        The page needs no network. It returns the page's path; UsageError if it cannot be written.
        """
        from uqbench.report import write_report

        runs = dict.fromkeys(map(str, self.folders.values()))
        return write_report(self, out, tuple(runs))

    def table(self) -> None:
        """Print the leaderboard, as wide as the terminal."""
        from rich.console import Console

        Console().print(Leaderboard.of(self.records))

    def predictions(self, record: Record) -> SavedPredictions:
        """Return what the run kept of a finished cell's predictions.

        Raises :class:`DataError` if the cell has no result or the file is missing or damaged.
        """
        from uqbench.saved_predictions import predictions_path, read_predictions

        cell = f"{record.identity.problem} {record.identity.method} seed {record.identity.seed}"
        if record.status != "ok":
            raise DataError(f"{cell}: no predictions, the cell has no result ({record.status})")
        if record.key not in self.folders:
            raise DataError(f"{cell}: no predictions, the record was not read from a run's folder")
        return read_predictions(predictions_path(self.folders[record.key], record.key))

    def plot(
        self,
        kind: str,
        out: str | Path | None = None,
        *,
        problem: str | None = None,
        seed: int | None = None,
        ood: str | None = None,
        log: bool = False,
    ) -> Figure:
        """Return a picture as a matplotlib figure; with ``out``, write it to that file as well.

        kind: ``toy``, mean ± 3σ of every method on a regression with one feature; of any
        regression ``calibration``, observed against nominal coverage; of a classification
        ``violin``, VMSP of ID correct, ID incorrect and OoD points; ``reliability``, accuracy
        against confidence; ``risk-coverage``, error rate against coverage; ``ood-roc``, the ROC of
        telling OoD points by the predictive entropy; of any problem ``pareto``, NLL against
        seconds, and ``convergence``, NLL against a setting of which methods have several values.
        out: a PNG, SVG or PDF file, by its suffix.
        problem: which one, where several can be drawn. seed: which one (default: the lowest;
        all for ``pareto`` and ``convergence``).
        ood: the OoD set of ``violin`` and ``ood-roc`` (default: the only one). log: a logarithmic
        axis for ``violin``.
        Raises UsageError if there is nothing to draw, DataError if predictions are missing.
        """
        from uqbench import plots

        if out is not None:
            plots.check_suffix(out)
        figure = plots.draw(kind, self, problem, seed, ood=ood, log=log)
        if out is not None:
            plots.write(figure, out)
        return figure


_IDENTITY = ("suite", "problem", "method", "settings", "seed", "quick", "status", "error")
_COST = tuple(f.name for f in fields(Cost))


def _flat(record: Record) -> dict[str, dict[str, Any]]:
    identity = record.identity
    error = ": ".join(part for part in (record.error_type, record.error_message) if part)
    return {
        "identity": {
            "suite": identity.suite,
            "problem": identity.problem,
            "method": identity.method,
            "settings": json.dumps(identity.settings, sort_keys=True, default=str),
            "seed": identity.seed,
            "quick": identity.quick,
            "status": record.status,
            "error": error,
        },
        "metrics": dict(record.outcome.metrics),
        "ood": {
            f"ood:{ood_set}:{name}": value
            for ood_set, metrics in record.outcome.ood.items()
            for name, value in metrics.items()
        },
        "cost": {name: getattr(record.cost, name) for name in _COST},
    }


def _ordered(mappings: Iterable[dict[str, Any]]) -> list[str]:
    """Every key once, in the order of first appearance."""
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))
