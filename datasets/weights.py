"""Files with the weights of trained networks: a problem's network may start from one.

A file holds the state of a network (what ``torch.save(network.state_dict(), file)`` writes), with
the names and shapes of :mod:`uqbench.architectures`, which for ``resnet50_imagenet`` are those of
torchvision. torch is imported when a file is read or fetched.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from uqbench.datasets.downloads import failed_download
from uqbench.datasets.root import fetch_command
from uqbench.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "weights"
"""Below the data root."""


class Known(NamedTuple):
    """Weights that can be fetched.

    file: ends in the first digits of its sha256. source: their name in ``torchvision.models``.
    """

    file: str
    source: str
    parameters: int


WEIGHTS = {
    "resnet50-imagenet": Known(
        "resnet50-0676ba61.pth", "ResNet50_Weights.IMAGENET1K_V1", 25_557_032
    )
}
"""By the names of ``uqbench data``. Accuracy on ImageNet's validation images: 76.1%."""


def path_of(weights: str, root: Path) -> Path:
    """The file that ``network.weights`` names: a plain name is that of one in ROOT/weights."""
    return root / FOLDER / weights if Path(weights).name == weights else Path(weights).expanduser()


def content_digest(weights: str, root: Path) -> str:
    """sha256 of the file, 64 hex digits; DataError if there is none."""
    path = path_of(weights, root)
    try:
        status = path.stat()
        return _digest(path, status.st_mtime_ns, status.st_size)
    except FileNotFoundError:
        name = next((name for name, known in WEIGHTS.items() if known.file == weights), None)
        remedy = f"get it with `{fetch_command(name, root)}`" if name else "correct network.weights"
        raise DataError(f"{path}: no such file; {remedy}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def read_weights(weights: str, root: Path) -> Mapping[str, Tensor]:
    """The state in the file; DataError if it is missing, or holds anything but finite numbers.

    Nothing that a file may hold besides tensors is loaded: no code of its is run.
    """
    import torch

    content_digest(weights, root)
    path = path_of(weights, root)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file does to unpickling
        raise DataError(
            f"{path}: cannot be read as weights ({type(error).__name__}): it must be a whole file "
            "of torch.save(network.state_dict(), FILE), which holds tensors alone"
        ) from None
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and torch.is_tensor(tensor) for name, tensor in state.items()
    ):
        raise DataError(
            f"{path}: must hold a state_dict, parameters by name; save network.state_dict()"
        )
    for name, tensor in state.items():
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise DataError(f"{path}: '{name}' must be a dense tensor of plain numbers")
        if not tensor.isfinite().all():
            raise DataError(f"{path}: '{name}' has values that are not finite; train again")
    return state


def check(name: str, root: Path) -> None:
    """Raise DataError unless the weights ``name`` are there, with the content that is known."""
    file = WEIGHTS[name].file
    found = content_digest(file, root)
    known = Path(file).stem.rpartition("-")[2]
    if not found.startswith(known):
        raise DataError(
            f"{path_of(file, root)}: its content is not the known one (sha256 {found[:8]}, "
            f"expected {known}); move it away and run `{fetch_command(name, root)}`"
        )


def fetch(name: str, root: Path) -> bool:
    """Download weights from torchvision's source, unless they are there; return whether it did.

    torchvision checks the content; the file appears whole or not at all.
    """
    known = WEIGHTS[name]
    path = path_of(known.file, root)
    if path.exists():
        check(name, root)
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{name}-") as folder:
            _download(known, Path(folder))
            os.replace(Path(folder) / known.file, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from None
    return True


def _download(known: Known, folder: Path) -> None:
    from torchvision.models import get_weight

    try:
        get_weight(known.source).get_state_dict(
            model_dir=folder, file_name=known.file, check_hash=True, progress=False
        )
    except Exception as error:  # of urllib, and of the check of the content
        raise failed_download(known.source, error) from None


@lru_cache(maxsize=8)
def _digest(path: Path, modified: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
