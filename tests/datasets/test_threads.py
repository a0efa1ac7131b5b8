"""The threads that read images."""

import os
import subprocess
import sys

import pytest

from uqbench.datasets.threads import number_of_threads


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_process_gets_threads_of_its_own():
    program = """
import os, signal
from uqbench.datasets.threads import reading_threads
reading_threads().submit(abs, -1).result()
child = os.fork()
if not child:
    signal.alarm(30)  # ends a process that waits for threads which it has not
    os._exit(reading_threads().submit(abs, -7).result())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-P", "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "7\n", run.stderr


@pytest.mark.parametrize(
    ("stated", "number"), [("3", 3), ("0", None), ("4,2", None), ("²", None), ("", None)]
)
def test_as_many_as_the_variable_says_else_one_for_each_core(stated, number, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", stated)
    assert number_of_threads() == (number or os.cpu_count())
