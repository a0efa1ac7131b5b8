"""Where a number came from: package versions, hardware, commit.

Importing this module imports no torch.
"""

from __future__ import annotations

import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PACKAGES = ("uqbench", "torch", "numpy", "scipy", "scikit-learn", "laplace-torch")
CODE = ("uqbench", "methods", "metrics", "datasets", "leaderboards/*.py", "pyproject.toml")
"""What of a checkout decides the results. Documents, and what publishing writes, do not."""


@cache
def environment(device: torch.device) -> dict[str, Any]:
    """Versions, processor, GPU, the commit of uqbench, and whether its code differs from it.

    Both are None where uqbench is not installed from a checkout.
    """
    import torch

    commit, changed = code_state()
    return {
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "commit": commit,
        "dirty": None if commit is None else bool(changed),
    }


@cache
def code_state(checkout: Path = Path(__file__).parents[1]) -> tuple[str | None, tuple[str, ...]]:
    """Return the commit and the files of the code that differ from it, those not added included.

    (None, ()) where uqbench is not installed from a checkout.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(checkout), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=True, timeout=10
        ).stdout

    with suppress(OSError, subprocess.SubprocessError):
        git("ls-files", "--error-unmatch", "uqbench/provenance.py")  # inside another project?
        status = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
        entries = git(*status, "--", *CODE).split("\0")[:-1]
        # each entry is two letters, a blank and a file's name
        return git("rev-parse", "HEAD").strip(), tuple(entry[3:] for entry in entries)
    return None, ()


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
