"""The suite of image problems: the paper's recipes, and settings that every method accepts."""

import pytest
import torch

from uqbench.datasets import image_folders, images
from uqbench.datasets.weights import WEIGHTS
from uqbench.method import Task
from uqbench.networks import build_network
from uqbench.problems import load_suite
from uqbench.registry import build_method

PROBLEMS = {problem.name: problem for problem in load_suite("images").problems}


@pytest.mark.parametrize(
    ("name", "kind", "training", "nuqls", "ood"),
    [
        (
            "mnist/lenet5",
            "lenet5",
            ("adam", 5e-3, 35, 152, 1e-4, "cosine"),
            (1e-2, 10, 152, 1.0),
            "fashion-mnist",
        ),
        (
            "fashion-mnist/lenet5",
            "lenet5",
            ("adam", 5e-3, 35, 152, 1e-4, "cosine"),
            (1e-2, 10, 152, 0.7),
            "mnist",
        ),
        (
            "fashion-mnist/resnet9",
            "resnet9",
            ("adam", 1e-3, 10, 100, 1e-4, "cosine"),
            (1e-1, 2, 50, 0.1),
            "mnist",
        ),
        (
            "cifar-10/resnet50",
            "resnet50",
            ("sgd", 1e-2, 200, 128, 1e-4, "cosine"),
            (1e-1, 50, 128, 0.01),
            "cifar-100",
        ),
        (
            "cifar-100/resnet50",
            "resnet50",
            ("sgd", 1e-1, 200, 128, 5e-4, "cosine"),
            (1e-2, 10, 128, 0.05),
            "cifar-10",
        ),
        (
            "svhn/resnet50",
            "resnet50",
            ("sgd", 1e-2, 50, 128, 5e-4, "cosine"),
            (1e-2, 2, 256, 0.05),
            "cifar-10",
        ),
        (
            "fashion-mnist/wrn",
            "wrn",
            ("adam", 5e-3, 20, 152, 1e-4, "cosine"),
            (1e-2, 10, 152, 1.0),
            "mnist",
        ),
    ],
)
def test_a_recipe_is_that_of_table_13_or_figure_6(name, kind, training, nuqls, ood):
    problem = PROBLEMS[name]
    recipe, settings = problem.training, problem.methods["nuqls"]
    assert problem.network.kind == kind
    assert problem.network.weight_init == "xavier_uniform"
    assert training == (
        recipe.optimizer,
        recipe.lr,
        recipe.epochs,
        recipe.batch_size,
        recipe.weight_decay,
        recipe.schedule,
    )
    assert nuqls == tuple(settings[key] for key in ("lr", "epochs", "batch_size", "gamma"))
    assert settings["members"] == 10
    assert problem.ood == (ood,)
    assert problem.methods["be"]["epochs"] == recipe.epochs * 3 // 2
    times = 1 if name in ("cifar-100/resnet50", "svhn/resnet50") else 100
    assert problem.methods["swag"]["lr"] == pytest.approx(times * recipe.lr)


def test_the_networks_of_table_5_have_its_numbers_of_parameters():
    for name, parameters in (("mnist/slu-mlp", 15_910), ("fashion-mnist/slu-lenet", 44_426)):
        network = build_network(PROBLEMS[name].network, (1, 28, 28), 10)
        assert sum(p.numel() for p in network.parameters()) == parameters
        assert any(name.startswith("rotated:") for name in PROBLEMS[name].ood)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_network_takes_the_images_and_every_method_its_settings(name):
    problem = PROBLEMS[name]
    shape, classes = image_folders.IMAGENET_SHAPE, 1000
    if problem.dataset in images.SETS:
        shape, classes = images.SETS[problem.dataset].shape, images.SETS[problem.dataset].classes
    with torch.device("meta"):  # shapes alone
        network = build_network(problem.network, shape, classes)
        assert network(torch.zeros(2, *shape)).shape == (2, classes)
    for method, settings in problem.methods.items():
        build_method(method, settings).check_task(Task.CLASSIFICATION)


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_are_in_float32_and_eNUQLS_has_the_settings_of_NUQLS(name):
    problem = PROBLEMS[name]
    assert problem.dtype == "float32"
    assert problem.methods["enuqls"] == problem.methods["nuqls"]
    assert (problem.training.augment != ()) is (
        problem.dataset in ("cifar-10", "cifar-100", "svhn", "imagenet")
    )


def test_imagenets_network_is_torchvisions_with_its_weights_and_constants():
    from torchvision.models import ResNet50_Weights, resnet50

    problem, weights = PROBLEMS["imagenet/resnet50"], ResNet50_Weights.IMAGENET1K_V1
    known = WEIGHTS["resnet50-imagenet"]
    assert known.file == problem.network.weights == weights.url.rsplit("/", 1)[1]
    assert known.source == str(weights)
    assert known.parameters == weights.meta["num_params"]
    crop = weights.transforms()
    assert (crop.mean, crop.std) == tuple(
        list(values) for values in (problem.normalisation.mean, problem.normalisation.std)
    )
    assert (crop.resize_size, crop.crop_size) == ([256], [224])
    with torch.device("meta"):
        network = build_network(problem.network, image_folders.IMAGENET_SHAPE, 1000)
        wanted = resnet50()
    shapes = [{n: t.shape for n, t in each.state_dict().items()} for each in (network, wanted)]
    assert shapes[0] == shapes[1]
    settings = problem.methods["nuqls"]
    assert [settings[key] for key in ("lr", "epochs", "batch_size", "gamma")] == [1e-2, 2, 56, 0.7]
    assert settings["members"] == 10
