"""Where data sets lie on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from uqbench.errors import UsageError

ENVIRONMENT_VARIABLE = "UQBENCH_DATA"


def data_root(explicit: str | Path | None = None) -> Path:
    """Return the explicit folder, else $UQBENCH_DATA, else a folder in the user's cache.

    Raises UsageError if it is a file.
    """
    if explicit:
        return _folder(explicit, "data folder")
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        return _folder(named, f"${ENVIRONMENT_VARIABLE}")
    import platformdirs

    return Path(platformdirs.user_cache_dir("uqbench")) / "data"


def _folder(named: str | Path, what: str) -> Path:
    path = Path(named).expanduser()
    if path.exists() and not path.is_dir():
        raise UsageError(f"{what} {path}: is a file; give a folder")
    return path


def fetch_command(dataset: str, root: Path) -> str:
    """The command line that downloads a data set to this root, for error messages."""
    elsewhere = "" if root == data_root() else f" --data-dir {root}"
    return f"uqbench data fetch {dataset}{elsewhere}"
