"""What a run takes beyond its methods' own work.

    UQBENCH_DATA=... python benchmarks/harness.py [--problems uci/energy,...] [--methods ...]

A run's own time is that of MAP training (once per problem and seed), fitting, tuning, and
predicting the test split once for the metrics and again for each timed repeat. The rest of the
wall-clock time of ``uqbench run`` is overhead: start-up, data, metrics, records, the leaderboard.
"""

import argparse
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from machine import describe
from rich.console import Console
from rich.table import Table

from uqbench.records import RecordFile


def own_seconds(record, counted):
    """Seconds of a cell's own work; ``counted`` holds the MAP networks of earlier cells."""
    cost = record.cost
    checkpoint = record.identity.map_checkpoint
    trained = 0.0 if checkpoint in counted else cost.map_seconds
    counted.add(checkpoint)
    predicted = (1 + cost.repeats) * cost.predict_seconds
    return trained + cost.fit_seconds + cost.tune_seconds + predicted


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", default="uci/energy,uci/concrete,uci/wine,uci/kin8nm")
    parser.add_argument("--methods", default="map,nuqls,de,lla,swag")
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        command = ["uqbench", "run", "--suite", "uci", "--problems", arguments.problems]
        command += ["--methods", arguments.methods, "--seeds", str(arguments.seeds)]
        start = time.perf_counter()
        subprocess.run([*command, "--out", str(run)], check=True, capture_output=True)
        wall = time.perf_counter() - start
        start = time.perf_counter()
        subprocess.run([*command, "--out", str(run)], check=True, capture_output=True)
        nothing_to_do = time.perf_counter() - start
        records = RecordFile(run).read()
    counted, by_method = set(), defaultdict(float)
    for record in records:
        by_method[record.identity.method] += own_seconds(record, counted)
    own = sum(by_method.values())
    table = Table("", "s", "share of own work")
    for method, seconds in by_method.items():
        table.add_row(f"{method}, own work", f"{seconds:.2f}", "")
    table.add_row("own work", f"{own:.2f}", "100%")
    table.add_row(f"overhead of {len(records)} cells", f"{wall - own:.2f}", f"{wall / own - 1:.1%}")
    table.add_row("  of it the run repeated, nothing to do", f"{nothing_to_do:.2f}", "")
    console = Console()
    console.print(describe())
    console.print(table)


if __name__ == "__main__":
    main()
