"""Fixtures shared by the tests of data sets."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data():
    """The folder with the eight UCI sets; tests that need it are skipped where there is none."""
    root = os.environ.get("UQBENCH_DATA")
    if not root or not (Path(root) / "uci").is_dir():
        pytest.skip("UQBENCH_DATA names no folder with the UCI sets")
    return Path(root)
