"""The MAP network of a (problem, seed): trained and cached on disk, or given; shared read-only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError

import torch
from filelock import FileLock
from torch import nn

from uqbench.datasets.weights import path_of, read_weights
from uqbench.errors import DataError
from uqbench.replacement import replacement
from uqbench.timing import Stopwatch

_log = logging.getLogger(__name__)


def cached_network(
    template: nn.Module,
    train: Callable[[], nn.Module],
    key: str,
    folder: Path,
    device: torch.device,
) -> tuple[nn.Module, float]:
    """Return the network of checkpoint ``key`` in eval mode, and the seconds its training took.

    ``train`` is called only if ``folder/KEY.pt`` is not there or damaged; of several processes that
    ask at the same time one trains and the others wait. ``template`` has the architecture to load
    into.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{key}.pt"
    with FileLock(f"{path}.lock"):
        seconds = _loaded(template, path, device)
        if seconds is None:
            with Stopwatch(device) as stopwatch:
                network = train()
            with replacement(path) as file:
                torch.save({"state": network.state_dict(), "seconds": stopwatch.seconds}, file)
            seconds = _loaded(template, path, device)
    return template.eval(), seconds


def given_network(template: nn.Module, weights: str, root: Path) -> nn.Module:
    """Return ``template`` in eval mode with the state that ``network.weights`` names.

    Raises DataError if the file is missing, or holds no state of this network.
    """
    state = read_weights(weights, root)
    try:
        template.load_state_dict(state)
    except RuntimeError as error:
        fault = str(error).splitlines()[1].strip().rstrip(".")
        raise DataError(
            f"{path_of(weights, root)}: does not fit the problem's network: {fault[:200]}"
        ) from None
    return template.eval()


def _loaded(template: nn.Module, path: Path, device: torch.device) -> float | None:
    """Load the checkpoint into ``template`` and return its training's seconds; None without one.

    A damaged file counts as none: the network is trained again from the same seed.
    """
    if not path.exists():
        return None
    try:
        stored = torch.load(path, map_location=device, weights_only=True)
        template.load_state_dict(stored["state"])
        return float(stored["seconds"])
    except (UnpicklingError, EOFError, RuntimeError, KeyError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0]
        _log.warning("%s: unreadable (%s); the network is trained again", path, reason)
        return None
