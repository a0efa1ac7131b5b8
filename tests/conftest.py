"""Fixtures that all tests share."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

# Python processes that tests start must find the installed package: in the repository's root the
# folder uqbench/ would shadow it, without the subpackages that come from the other folders.
os.environ["PYTHONSAFEPATH"] = "1"


@pytest.fixture(scope="session")
def truths() -> ModuleType:
    """The closed-form problems of ``tests/truths.py``."""
    name = "uqbench_test_truths"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("truths.py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The data root that ``UQBENCH_DATA`` names; the test is skipped where there is none."""
    if "UQBENCH_DATA" not in os.environ:
        pytest.skip("set UQBENCH_DATA to a folder with the UCI tables")
    return Path(os.environ["UQBENCH_DATA"])


@pytest.fixture(scope="session")
def paper(data_root: Path) -> Path:
    """The folder of the paper's numbers, beside the data root; without it the test is skipped."""
    folder = data_root.parent / "paper"
    if not folder.is_dir():
        pytest.skip("needs the folder paper/ beside $UQBENCH_DATA")
    return folder
