"""The MAP network of a (problem, seed): trained once, cached on disk, shared read-only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from filelock import FileLock
from torch import nn

from uqbench.timing import Stopwatch


def cached_network(
    template: nn.Module,
    train: Callable[[], nn.Module],
    key: str,
    folder: Path,
    device: torch.device,
) -> tuple[nn.Module, float]:
    """Return the network of checkpoint ``key`` in eval mode, and the seconds its training took.

    ``train`` is called only if ``folder/KEY.pt`` is not there; of several processes that ask at
    the same time one trains and the others wait. The file is written under a temporary name and
    renamed, so that it is whole or absent. ``template`` has the architecture to load into.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{key}.pt"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            with Stopwatch(device) as stopwatch:
                network = train()
            _write({"state": network.state_dict(), "seconds": stopwatch.seconds}, path)
        stored = torch.load(path, map_location=device, weights_only=True)
    template.load_state_dict(stored["state"])
    return template.eval(), stored["seconds"]


def _write(value: object, path: Path) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
