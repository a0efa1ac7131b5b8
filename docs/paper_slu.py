"""NUQLS on the LeNet of the code behind the paper: python docs/paper_slu.py --sigmoids

For the number of Table 5 that the problem fashion-mnist/slu-lenet does not give
(leaderboards/paper/explanations.toml). The paper refers to another one's training details and
prints no activations; the code behind it has sigmoids after the two hidden dense layers. All else
is the problem's. Prints, for each seed, the accuracy and the logit-variance AUC on digits and on
turned clothes, a mean over the angles.
"""

import argparse
from statistics import fmean

import numpy as np
import torch
from torch import nn

import uqbench
from uqbench.data import Split, TrainingData
from uqbench.datasets.arrays import Arrays
from uqbench.evaluator import train_map
from uqbench.networks import build_network
from uqbench.problems import Problem, all_problems, problem_data
from uqbench.seeds import derive_seed


def with_sigmoids(network: nn.Sequential) -> nn.Sequential:
    """Put a sigmoid in the place of the activation of each hidden dense layer."""
    for position, module in enumerate(network[:-1]):
        if isinstance(module, nn.Linear):
            network[position + 1] = nn.Sigmoid()
    return network


def split(part: Arrays) -> Split:
    return Split(torch.tensor(part.inputs), torch.tensor(part.targets, dtype=torch.int64))


def numbers(problem: Problem, seed: int, sigmoids: bool) -> dict[str, float]:
    arrays = problem_data(problem, seed)
    train, validation, test = map(split, (arrays.train, arrays.validation, arrays.test))
    network = build_network(problem.network, train.inputs.shape[1:], arrays.num_classes)
    if sigmoids:
        network = with_sigmoids(network)
    data = TrainingData(problem.task, train, validation, arrays.num_classes)
    network = train_map(problem, network, data, derive_seed(problem.name, seed, "map"))
    result = uqbench.evaluate(
        "nuqls",
        network,
        *((part.inputs, part.targets) for part in (train, validation, test)),
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
    parser.add_argument("--sigmoids", action="store_true")
    given = parser.parse_args()
    chosen = all_problems()["fashion-mnist/slu-lenet"]
    for seed in range(given.seeds):
        found = numbers(chosen, seed, given.sigmoids)
        print(f"seed {seed}:", ", ".join(f"{name} {value:.4f}" for name, value in found.items()))
