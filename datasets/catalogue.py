"""All data sets by name: loading, listing, verifying, fetching. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Literal

from uqbench.datasets import bundled, image_folders, images, synthetic, uci, weights
from uqbench.datasets.arrays import PreparedData, Table
from uqbench.datasets.image_problems import NAMES as IMAGE_SETS
from uqbench.datasets.image_problems import is_image_set
from uqbench.datasets.root import data_root
from uqbench.datasets.splits import prepare
from uqbench.datasets.tables import read_table
from uqbench.errors import DataError, UsageError
from uqbench.method import Task
from uqbench.suggestions import did_you_mean

__all__ = [
    "FILE_PREFIX",
    "Entry",
    "Outcome",
    "data_root",
    "entries",
    "fetch",
    "load_problem_data",
    "load_table",
    "names",
    "verify",
]

FILE_PREFIX = "file:"
_BUNDLED_TABLES: dict[str, Callable[[], Table]] = {
    "sklearn/diabetes": bundled.load_diabetes,
    "sklearn/digits": bundled.load_digits,
}


@dataclass(frozen=True)
class Entry:
    """A line of ``uqbench data list``.

    rows: of weights, the number of parameters. shape: of one row: (d,), or (C, H, W) of an image.
    path: where its file or folder is or would be; None if bundled.
    """

    name: str
    task: Task
    rows: int
    shape: tuple[int, ...]
    status: Literal["present", "missing", "bundled"]
    path: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of one data set in ``verify`` or ``fetch``."""

    name: str
    status: Literal[
        "ok", "unchecked", "missing", "wrong", "fetched", "present", "failed", "bundled"
    ]
    message: str = ""


def load_problem_data(
    dataset: str,
    *,
    task: Task | str,
    split: tuple[float, float, float],
    seed: int,
    standardise: bool,
    held_out_classes: Sequence[int | str] = (),
    root: str | Path | None = None,
    target: str | None = None,
) -> PreparedData:
    """Return the data of one (problem, seed) of a table.

    dataset: a name of :func:`entries`, or ``file:PATH`` for a table of one's own, of which
    ``target`` names the column to predict. seed: of the split, or of generated data.
    root: the data folder (see :func:`data_root`).
    """
    task = Task(task)
    if dataset in synthetic.SETS:
        _require_task(dataset, task, Task.REGRESSION)
        if standardise:
            raise UsageError(
                f"{dataset}: generated data is not standardised; say standardise = false"
            )
        return synthetic.SETS[dataset].draw(seed)
    table = load_table(dataset, root=root, target=target, task=task)
    _require_task(dataset, task, table.task)
    return prepare(
        table, split=split, seed=seed, standardise=standardise, held_out_classes=held_out_classes
    )


def load_table(
    dataset: str,
    *,
    root: str | Path | None = None,
    target: str | None = None,
    task: Task | str | None = None,
) -> Table:
    """Return a data set before it is split; a file is read once per process while it is unchanged.

    task: for ``file:PATH`` alone; None: found from the target column.
    """
    if dataset in _BUNDLED_TABLES:
        return _bundled_table(dataset)
    if dataset.startswith(FILE_PREFIX):
        if target is None:
            raise UsageError(f'{dataset}: no target column named; give it, like target = "price"')
        path = Path(dataset.removeprefix(FILE_PREFIX)).expanduser()
        return _own_table(path, target, task, _stamp(path))
    if dataset.startswith("uci/"):
        name = dataset.removeprefix("uci/")
        if name in uci.SETS:
            folder = data_root(root)
            return _uci_table(name, folder, _stamp(uci.path_of(name, folder)))
    if is_image_set(dataset):
        raise UsageError(
            f'{dataset}: images need validation: a fraction of the training part, "val" or "test"'
        )
    raise UsageError(f"no data set named '{dataset}'.{did_you_mean(dataset, names())}")


def names() -> list[str]:
    """Names of all data sets, and of the weights of trained networks."""
    return [*_WITHOUT_FILE, *_FILES]


def entries(root: str | Path | None = None) -> list[Entry]:
    """All data sets: what they are, and whether they are there."""
    found = [
        *(
            Entry(name, Task.REGRESSION, drawn.rows, (drawn.features,), "bundled")
            for name, drawn in synthetic.SETS.items()
        ),
        Entry("sklearn/diabetes", Task.REGRESSION, 442, (10,), "bundled"),
        Entry("sklearn/digits", Task.CLASSIFICATION, 1797, (64,), "bundled"),
    ]
    for name in _FILES:
        found.append(_on_disk(name, data_root(root)).entry)
    return found


def verify(root: str | Path | None = None, chosen: Iterable[str] | None = None) -> list[Outcome]:
    """Check data sets on disk (all of them if ``chosen`` is None) against their fingerprints.

    ``unchecked``: readable and of the right size, but its fingerprint is not known.
    """
    outcomes = []
    for name in _chosen(chosen, _FILES):
        if name in _WITHOUT_FILE:
            outcomes.append(Outcome(name, "bundled", "comes with its package; nothing to verify"))
            continue
        found = _on_disk(name, data_root(root))
        try:
            found.check()
        except DataError as error:
            status = "wrong" if found.entry.status == "present" else "missing"
            outcomes.append(Outcome(name, status, str(error)))
            continue
        outcomes.append(Outcome(name, "ok" if found.known else "unchecked", str(found.entry.path)))
    return outcomes


def fetch(
    chosen: Iterable[str] | None = None,
    root: str | Path | None = None,
    report: Callable[[str], None] = lambda name: None,
) -> list[Outcome]:
    """Download data sets that are not there (all that can be if ``chosen`` is None).

    One that fails does not stop the others. ``report`` is called with each name before its turn.
    """
    outcomes = []
    for name in _chosen(chosen, [*_GROUPS["uci"], *_GROUPS["images"]]):
        if name in _WITHOUT_FILE:
            outcomes.append(Outcome(name, "bundled", "comes with its package; nothing to fetch"))
            continue
        report(name)
        found = _on_disk(name, data_root(root))
        try:
            fetched = found.fetch()
        except DataError as error:
            outcomes.append(Outcome(name, "failed", str(error)))
            continue
        outcomes.append(Outcome(name, "fetched" if fetched else "present", str(found.entry.path)))
    return outcomes


_WITHOUT_FILE = (*synthetic.SETS, *_BUNDLED_TABLES)
_GROUPS = {"uci": [f"uci/{name}" for name in uci.SETS], "images": list(images.SETS)}
_FILES = [*_GROUPS["uci"], *IMAGE_SETS, *weights.WEIGHTS]


@dataclass(frozen=True)
class _OnDisk:
    """A data set with files.

    check: raises DataError if it is missing or wrong. known: whether its fingerprint is.
    fetch: returns whether anything was downloaded, or raises DataError.
    """

    entry: Entry
    check: Callable[[], object]
    fetch: Callable[[], bool]
    known: bool


def _on_disk(name: str, root: Path) -> _OnDisk:
    if name in images.SETS:
        described = images.SETS[name]
        there = images.missing_file(name, root) is None
        rows, shape = sum(described.rows.values()), described.shape
        return _OnDisk(
            _entry(name, Task.CLASSIFICATION, rows, shape, there, images.path_of(name, root)),
            lambda: [images.load(name, part, root) for part in images.PARTS],
            partial(images.fetch, name, root),
            set(described.fingerprints) == set(images.PARTS),
        )
    if name in image_folders.BY_HAND:
        folder = root / name
        rows, shape = image_folders.BY_HAND[name].images, image_folders.IMAGENET_SHAPE
        return _OnDisk(
            _entry(name, Task.CLASSIFICATION, rows, shape, folder.is_dir(), folder),
            partial(image_folders.check_by_hand, name, root),
            partial(image_folders.check_by_hand, name, root),
            False,
        )
    if name in weights.WEIGHTS:
        known = weights.WEIGHTS[name]
        path = weights.path_of(known.file, root)
        return _OnDisk(
            _entry(name, Task.CLASSIFICATION, known.parameters, (), path.exists(), path),
            partial(weights.check, name, root),
            partial(weights.fetch, name, root),
            True,
        )
    short = name.removeprefix("uci/")
    path, table = uci.path_of(short, root), uci.SETS[short]
    return _OnDisk(
        _entry(name, Task.REGRESSION, table.rows, (table.features,), path.exists(), path),
        partial(uci.load, short, root),
        partial(uci.fetch, short, root),
        table.fingerprint is not None,
    )


def _entry(
    name: str, task: Task, rows: int, shape: tuple[int, ...], there: bool, path: Path
) -> Entry:
    return Entry(name, task, rows, shape, "present" if there else "missing", path)


def _chosen(chosen: Iterable[str] | None, default: Sequence[str]) -> list[str]:
    """The data sets asked for; ``uci`` and ``images`` stand for all that can be fetched."""
    if chosen is None:
        return list(default)
    wanted: list[str] = []
    for name in chosen:
        if name in _GROUPS:
            wanted += _GROUPS[name]
        elif name in names():
            wanted.append(name)
        else:
            raise UsageError(f"no data set named '{name}'.{did_you_mean(name, names())}")
    return list(dict.fromkeys(wanted))


def _require_task(dataset: str, asked: Task, found: Task) -> None:
    if asked is not found:
        raise UsageError(f"{dataset} is for {found}, but the problem says task = '{asked}'")


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is rewritten: part of the key under which its table is kept."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@cache
def _bundled_table(dataset: str) -> Table:
    return _BUNDLED_TABLES[dataset]()


@lru_cache(maxsize=16)
def _uci_table(name: str, root: Path, stamp: tuple[int, int] | None) -> Table:
    return uci.load(name, root)


@lru_cache(maxsize=16)
def _own_table(path: Path, target: str, task: Task | None, stamp: tuple[int, int] | None) -> Table:
    return read_table(path, target, task)
