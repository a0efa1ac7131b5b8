"""Where a number came from: package versions, hardware, commit."""

from __future__ import annotations

import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("uqbench", "torch", "numpy", "scipy", "scikit-learn", "laplace-torch")


@cache
def environment(device: torch.device) -> dict[str, Any]:
    """Versions, processor, GPU, and the commit of uqbench (None where it is not a checkout)."""
    commit, dirty = _git_state(Path(__file__).parent)
    return {
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "commit": commit,
        "dirty": dirty,
    }


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


def _git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return the commit and whether files differ from it; (None, None) outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return finished.stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):
        git("ls-files", "--error-unmatch", Path(__file__).name)  # installed inside another project?
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    return None, None
