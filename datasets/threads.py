"""The threads that read images: Pillow and NumPy leave the interpreter to others meanwhile."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache


@cache
def reading_threads() -> ThreadPoolExecutor:
    """The process's threads for reading, shared by all data sets.

    As many as ``$OMP_NUM_THREADS`` says, which a run sets for the processes of its cells, else one
    for each core. A task must not wait for another one.
    """
    return ThreadPoolExecutor(number_of_threads(), thread_name_prefix="uqbench-images")


def number_of_threads() -> int:
    """How many threads :func:`reading_threads` has."""
    stated = os.environ.get("OMP_NUM_THREADS", "")
    return int(stated) if stated.isdecimal() and int(stated) else os.cpu_count() or 1


if hasattr(os, "register_at_fork"):
    # a forked process has the pool but none of its threads, and would wait for them for ever
    os.register_at_fork(after_in_child=reading_threads.cache_clear)
