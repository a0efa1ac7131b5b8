"""Deep ensembles as in the code behind the NUQLS paper: python docs/paper_ensemble.py uci/kin8nm

A plain loop over members, for two of the paper's numbers that the recipe it prints does not give
(leaderboards/paper/explanations.toml). Each departure from the recipe is an option: the members'
weights are drawn from Xavier's uniform distribution, and their biases are one draw of torch's
default (--shared-biases); the cosine schedule is stepped at every batch (--step-batches); batches
come in one order (--in-order). Prints mean ± standard deviation over seeds of RMSE, NLL and ECE.
"""

import argparse
import copy
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from uqbench.metrics.regression import ece, nll, rmse
from uqbench.problems import Problem, all_problems, problem_data


class TwoHeads(nn.Module):
    """An MLP with a mean and a variance head."""

    def __init__(self, features: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        widths = [features, *hidden]
        layers = [(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(widths)]
        self.body = nn.Sequential(*(module for pair in layers for module in pair))
        self.mean, self.variance = nn.Linear(widths[-1], 1), nn.Linear(widths[-1], 1)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(inputs)
        variance = nn.functional.softplus(self.variance(features)) + 1e-6
        return self.mean(features)[:, 0], variance[:, 0]


def trained(
    problem: Problem, inputs: Tensor, targets: Tensor, options: argparse.Namespace
) -> Iterator[TwoHeads]:
    """Yield the ten members."""
    recipe = problem.methods["de"]
    start = TwoHeads(inputs.shape[1], problem.network.hidden).double()
    for _ in range(10):
        network = copy.deepcopy(start)
        for layer in network.modules():
            if isinstance(layer, nn.Linear) and options.shared_biases:
                nn.init.xavier_uniform_(layer.weight)
            elif isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                nn.init.normal_(layer.bias)
        decay = problem.training.weight_decay
        optimizer = torch.optim.Adam(network.parameters(), recipe["lr"], weight_decay=decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe["epochs"])
        for _ in range(recipe["epochs"]):
            rows = torch.arange(len(inputs)) if options.in_order else torch.randperm(len(inputs))
            for batch in rows.split(recipe["batch_size"]):
                mean, variance = network(inputs[batch])
                loss = nn.functional.gaussian_nll_loss(mean, targets[batch], variance)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if options.step_batches:
                    schedule.step()
            if not options.step_batches:
                schedule.step()
        yield network


def numbers(problem: Problem, seed: int, options: argparse.Namespace) -> list[float]:
    """RMSE, NLL and ECE of the ensemble on the test split."""
    arrays = problem_data(problem, seed)
    torch.manual_seed(seed)
    train = [torch.tensor(part) for part in (arrays.train.inputs, arrays.train.targets)]
    inputs, targets = torch.tensor(arrays.test.inputs), arrays.test.targets
    networks = list(trained(problem, *train, options))
    with torch.no_grad():
        outputs = [network(inputs) for network in networks]
    means, variances = (torch.stack(part).numpy() for part in zip(*outputs, strict=True))
    mean, variance = means.mean(0), variances.mean(0) + means.var(0)
    return [rmse(targets, mean), nll(targets, mean, variance), ece(targets, mean, variance)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("problem", choices=["uci/kin8nm", "uci/yacht"])
    parser.add_argument("--seeds", type=int, default=3)
    for option in ("shared-biases", "step-batches", "in-order"):
        parser.add_argument(f"--{option}", action="store_true")
    given = parser.parse_args()
    chosen = all_problems()[given.problem]
    found = np.array([numbers(chosen, seed, given) for seed in range(given.seeds)])
    spread = found.std(0, ddof=1) if given.seeds > 1 else np.full(3, np.nan)
    for name, mean, std in zip(("RMSE", "NLL", "ECE"), found.mean(0), spread, strict=True):
        print(f"{name} {mean:.4f} ± {std:.4f}")
