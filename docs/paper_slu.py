"""NUQLS on the LeNet of the code behind the paper: python docs/paper_slu.py

For the number of Table 5 that the problem fashion-mnist/slu-lenet does not give
(leaderboards/paper/explanations.toml). The paper refers to another one's training details and
prints no activations; the code behind it has sigmoids after the two hidden dense layers, and trains
on batches in one order. Each departure from the problem is an option. Prints, for each seed, the
accuracy and the logit-variance AUC on digits and on turned clothes, a mean over the angles.
"""

import argparse
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn

import uqbench
from uqbench.datasets.arrays import Arrays
from uqbench.networks import build_network
from uqbench.problems import Problem, load_suite, problem_data


def lenet(problem: Problem, shape: tuple[int, ...], sigmoids: bool) -> nn.Sequential:
    """Return the problem's network, drawn from Kaiming's normal distribution."""
    network = build_network(problem.network, shape, 10)
    dense = False
    for position, module in enumerate(network):
        dense = dense or isinstance(module, nn.Linear)
        if sigmoids and dense and isinstance(module, nn.Tanh):
            network[position] = nn.Sigmoid()
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)
    return network


def train(
    network: nn.Module, problem: Problem, data: tuple[Tensor, Tensor], in_order: bool
) -> None:
    """Minimise the cross-entropy by Adam."""
    recipe = problem.training
    optimizer = torch.optim.Adam(network.parameters(), recipe.lr)
    inputs, targets = data
    for _ in range(recipe.epochs):
        rows = torch.arange(len(inputs)) if in_order else torch.randperm(len(inputs))
        for batch in rows.split(recipe.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs[batch]), targets[batch]).backward()
            optimizer.step()


def pair(part: Arrays) -> tuple[Tensor, Tensor]:
    return torch.tensor(part.inputs), torch.tensor(part.targets, dtype=torch.int64)


def numbers(problem: Problem, seed: int, options: argparse.Namespace) -> dict[str, float]:
    arrays = problem_data(problem, seed)
    torch.manual_seed(seed)
    network = lenet(problem, arrays.train.inputs.shape[1:], options.sigmoids)
    train(network, problem, pair(arrays.train), options.in_order)
    result = uqbench.evaluate(
        "nuqls",
        network,
        pair(arrays.train),
        pair(arrays.validation),
        pair(arrays.test),
        ood={name: np.asarray(inputs) for name, inputs in arrays.ood.items()},
        settings=problem.methods["nuqls"],
        seed=seed,
    )
    turned = [one["logit_var_auc"] for name, one in result.ood.items() if "rotated" in name]
    return {
        "accuracy": result.metrics["accuracy"],
        "digits": result.ood["mnist"]["logit_var_auc"],
        "turned clothes": fmean(turned),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1)
    for option in ("sigmoids", "in-order"):
        parser.add_argument(f"--{option}", action="store_true")
    given = parser.parse_args()
    (chosen,) = [
        one for one in load_suite("images").problems if one.name == "fashion-mnist/slu-lenet"
    ]
    for seed in range(given.seeds):
        found = numbers(chosen, seed, given)
        print(f"seed {seed}:", ", ".join(f"{name} {value:.4f}" for name, value in found.items()))
