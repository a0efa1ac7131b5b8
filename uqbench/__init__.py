"""uqbench: a benchmark of Bayesian uncertainty-quantification methods for neural networks."""

from importlib import import_module
from importlib.metadata import version
from typing import Any

__version__ = version("uqbench")

_PUBLIC = {
    "Method": "uqbench.method",
    "Posterior": "uqbench.method",
    "Task": "uqbench.method",
    "RegressionPrediction": "uqbench.prediction",
    "ClassificationPrediction": "uqbench.prediction",
    "ClassificationMoments": "uqbench.prediction",
    "Results": "uqbench.results",
    "run": "uqbench.api",
    "compare": "uqbench.api",
    "publish": "uqbench.publishing",
    "evaluate": "uqbench.own_network",
    "check": "uqbench.conformance",
    "UsageError": "uqbench.errors",
    "UnsupportedError": "uqbench.errors",
    "DataError": "uqbench.errors",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; nothing is loaded before it is asked for
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'uqbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
