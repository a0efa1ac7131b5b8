"""Start-up times of the command line, warm: the median of ten runs of each command.

python benchmarks/startup.py
"""

import shutil
import statistics
import subprocess
import time

COMMANDS = {"uqbench --help": 0.4, "uqbench list methods": 0.5}


def main():
    if shutil.which("uqbench") is None:
        raise SystemExit("uqbench is not on the PATH; activate its virtual environment")
    for command, reach in COMMANDS.items():
        seconds = []
        for _ in range(11):
            start = time.perf_counter()
            subprocess.run(command.split(), check=True, capture_output=True)
            seconds.append(time.perf_counter() - start)
        print(f"{command:24} {statistics.median(seconds[1:]):.3f} s (at most {reach} s)")


if __name__ == "__main__":
    main()
