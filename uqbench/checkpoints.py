"""The MAP network of a (problem, seed): trained and cached on disk, or given; shared read-only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from filelock import FileLock
from torch import nn

from uqbench.datasets.weights import content_digest, path_of, read_weights
from uqbench.errors import DataError
from uqbench.networks import build_network
from uqbench.problems import NetworkSpec, digest
from uqbench.replacement import replacement
from uqbench.timing import Stopwatch

_WRAPPERS = ("module.", "_orig_mod.")
"""What DataParallel and torch.compile put before the names of a network's parameters."""

_log = logging.getLogger(__name__)


def cached_network(
    template: nn.Module,
    train: Callable[[], nn.Module],
    key: str,
    folder: Path,
    device: torch.device,
    code: Mapping[str, Any],
) -> tuple[nn.Module, float]:
    """Return the network of checkpoint ``key`` in eval mode, and the seconds its training took.

    ``train`` is called only if ``folder/KEY.pt`` is not there, damaged or not to be trusted; of
    several processes that ask at the same time one trains and the others wait. ``template`` has the
    architecture to load into. ``code``: the ``commit`` of the present code and whether it is
    ``dirty``. Code that equals its commit trusts no network but those of such code, for its results
    can be published; any other code takes what is there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{key}.pt"
    with FileLock(f"{path}.lock"):
        seconds = _loaded(template, path, device, code)
        if seconds is None:
            with Stopwatch(device) as stopwatch:
                network = train()
            with replacement(path) as file:
                torch.save(
                    {
                        "state": network.state_dict(),
                        "seconds": stopwatch.seconds,
                        "commit": code["commit"],
                        "dirty": code["dirty"],
                    },
                    file,
                )
            seconds = _loaded(template, path, device, code)
    return template.eval(), seconds


def given_id(weights: str, root: Path) -> str:
    """The id of the MAP network that ``network.weights`` names; DataError if there is no file."""
    return digest(content_digest(weights, root))


def given_network(template: nn.Module, weights: str, root: Path) -> nn.Module:
    """Return ``template`` in eval mode with the state that ``network.weights`` names.

    Raises DataError if the file is missing, or holds no state of this network.
    """
    _fill(template, weights, root)
    return template.eval()


def check_given(spec: NetworkSpec, shape: tuple[int, ...], outputs: int, root: Path) -> None:
    """Raise what :func:`given_network` would for a network of this kind, and build none."""
    with torch.device("meta"):
        template = build_network(spec, shape, outputs)
    _fill(template, spec.weights, root, assign=True)


def _fill(template: nn.Module, weights: str, root: Path, assign: bool = False) -> None:
    state, path = read_weights(weights, root), path_of(weights, root)
    for name, tensor in template.state_dict().items():
        if name in state and state[name].is_floating_point() != tensor.is_floating_point():
            kinds = f"{state[name].dtype}, not {tensor.dtype}"
            raise DataError(f"{path}: does not fit the problem's network: '{name}' is {kinds}")
    try:
        template.load_state_dict(state, assign=assign)
    except RuntimeError as error:
        fault = str(error).splitlines()[1].strip().rstrip(".")[:200]
        for prefix in _WRAPPERS:
            if all(name.startswith(prefix) for name in state) and state:
                fault = f"its names begin with '{prefix}'; save the state of the network inside"
        raise DataError(f"{path}: does not fit the problem's network: {fault}") from None


def _loaded(
    template: nn.Module, path: Path, device: torch.device, code: Mapping[str, Any]
) -> float | None:
    """Load the checkpoint into ``template`` and return its training's seconds; None without one.

    A file that is damaged or not to be trusted counts as none: the network is trained again from
    the same seed.
    """
    if not path.exists():
        return None
    try:
        stored = torch.load(path, map_location=device, weights_only=True)
        seconds = float(stored["seconds"])
        # checkpoints did not always say of what code they are
        if code["dirty"] is False and stored.get("dirty") is not False:
            _log.warning("%s: of changed or unknown code; the network is trained again", path)
            return None
        template.load_state_dict(stored["state"])
        return seconds
    except (UnpicklingError, EOFError, RuntimeError, KeyError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0]
        _log.warning("%s: unreadable (%s); the network is trained again", path, reason)
        return None
