"""Errors that a person reads: one or two lines that name what is at fault and what to do.

The command line prints the message of a :class:`UQBenchError` without a traceback and exits with
status 2. Inside a cell the same error becomes the record's reason.
"""


class UQBenchError(Exception):
    """Base of all errors that uqbench raises on purpose."""


class UsageError(UQBenchError):
    """A flag, a name, a setting or a configuration file is wrong."""


class DataError(UQBenchError):
    """A data file is missing, malformed or unusable."""


class UnsupportedError(UQBenchError):
    """A method refuses a task or a network that its definition does not cover (cell: skipped)."""


class TuningError(UQBenchError):
    """No point of a hyper-parameter grid gave a finite validation score (cell: failed)."""


class ContractError(UQBenchError):
    """A method returned what the contract between it and the benchmark forbids (cell: failed)."""


class DivergenceError(UQBenchError):
    """An optimiser's iterates became non-finite (cell: failed)."""
