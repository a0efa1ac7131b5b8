"""Memory at hand, and the peak that a piece of work used."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import torch


def available_bytes(device: torch.device) -> int:
    """Free memory of the device (of the machine, on the CPU)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def reset_peak_host_bytes() -> None:
    """Start to measure this process's peak anew, where the kernel lets it (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_host_bytes() -> int:
    """The largest resident size of this process since the reset (else so far)."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def reset_peak_device_bytes(device: torch.device) -> None:
    """Start to measure the device's peak anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_device_bytes(device: torch.device) -> int:
    """The largest allocation on the device since the reset (0 on the CPU)."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
