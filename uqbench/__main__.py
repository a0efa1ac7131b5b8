"""``python -m uqbench``."""

from uqbench.cli import main

main(prog_name="uqbench")
