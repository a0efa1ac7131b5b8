"""Draw a run's leaderboard as the terminal shows it: python docs/picture.py RUN docs/starter.svg"""

import sys

from rich.console import Console

from uqbench.leaderboard import Leaderboard
from uqbench.results import Results

run, picture = sys.argv[1:]
console = Console(record=True, width=120, force_terminal=True, color_system="truecolor")
console.print(Leaderboard.of(Results.load(run).records))
console.save_svg(picture, title="uqbench run --methods nuqls,de,lla")
