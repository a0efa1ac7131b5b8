"""Where data sets lie on this machine."""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT_VARIABLE = "UQBENCH_DATA"


def data_root(explicit: str | Path | None = None) -> Path:
    """Return the explicit folder, else $UQBENCH_DATA, else a folder in the user's cache."""
    if explicit:
        return Path(explicit).expanduser()
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("uqbench")) / "data"


def fetch_command(dataset: str, root: Path) -> str:
    """The command line that downloads a data set to this root, for error messages."""
    elsewhere = "" if root == data_root() else f" --data-dir {root}"
    return f"uqbench data fetch {dataset}{elsewhere}"
