import hashlib
import time

import pytest
import torch

from uqbench.context import Context
from uqbench.seeds import derive_seed
from uqbench.timing import Stopwatch, median_seconds

CPU = torch.device("cpu")


def test_a_seed_is_the_first_eight_bytes_of_the_digest_of_its_names():
    digest = hashlib.sha256(b"base\x00uci/energy\x003\x00map").digest()
    assert derive_seed("uci/energy", 3, "map", base="base") == int.from_bytes(digest[:8], "big")


def test_seeds_differ_by_problem_seed_and_role():
    names = [("a", 0, "map"), ("a", 1, "map"), ("b", 0, "map"), ("a", 0, "split")]
    assert len({derive_seed(*name) for name in names}) == 4


def test_a_stopwatch_measures_wall_clock_time():
    with Stopwatch(CPU) as stopwatch:
        time.sleep(0.05)
    assert 0.05 <= stopwatch.seconds < 1


def test_the_median_of_at_least_three_repeats_counts():
    pauses = iter([0.0, 0.2, 0.0])
    seconds, repeats = median_seconds(lambda: time.sleep(next(pauses)), CPU)
    assert repeats == 3
    assert seconds < 0.1


def test_repeats_stop_when_their_time_is_spent_but_not_before_the_third():
    _, repeats = median_seconds(lambda: time.sleep(0.01), CPU, repeats=100, budget=0.0)
    assert repeats == 3
    _, repeats = median_seconds(lambda: None, CPU, repeats=5)
    assert repeats == 5


def test_tuning_time_and_grid_sizes_add_up():
    context = Context(CPU, torch.float64, seed=2**64 - 1)
    for _ in range(2):
        with context.tuning(grid_size=10):
            time.sleep(0.01)
    assert context.grid_size == 20
    assert context.tune_seconds == pytest.approx(0.02, abs=0.2)
    assert context.tune_seconds >= 0.02


def test_a_context_draws_from_its_own_generator():
    state = torch.get_rng_state()
    first, again = (Context(CPU, torch.float64, seed=5).generator for _ in range(2))
    assert torch.equal(torch.randn(3, generator=first), torch.randn(3, generator=again))
    assert torch.equal(torch.get_rng_state(), state)
