"""Problems whose MAP network is one that somebody has trained."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from uqbench import evaluator
from uqbench.cells import Request, plan
from uqbench.errors import DataError
from uqbench.evaluator import evaluate_cell
from uqbench.networks import build_network, initialise
from uqbench.problems import NetworkSpec

NETWORK = NetworkSpec(kind="mlp", hidden=(2,))
SHAPE = (3, 224, 224)
SUITE = """
[problems."tiny/imagenet"]
dataset = "imagenet"
task = "classification"
dtype = "float32"
validation = "test"
ood = ["imagenet-o"]
network = { kind = "mlp", hidden = [2], weights = "mine.pth" }
normalisation = { mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225] }
predict_batch = 2
"""


def save(root: Path, seed: int, classes: int = 2) -> torch.nn.Module:
    """Write the weights of a network; return the network."""
    network = initialise(build_network(NETWORK, SHAPE, classes), NETWORK, seed)
    (root / "weights").mkdir(exist_ok=True)
    torch.save(network.state_dict(), root / "weights" / "mine.pth")
    return network


@pytest.fixture
def root(tmp_path):
    """ImageNet's layout with two classes."""
    random = np.random.default_rng(0)
    for place in ("imagenet/train/n1", "imagenet/train/n2", "imagenet/val/n2", "imagenet-o/n9"):
        for i in range(3):
            path = tmp_path / place / f"{i}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 256, (6, 6, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((260, 256)).save(path)
    (tmp_path / "suite.toml").write_text(SUITE)
    return tmp_path


def planned(root, *methods):
    return plan(Request(methods=methods, suite=str(root / "suite.toml"), seeds=1, data_dir=root))


def test_post_hoc_methods_start_from_the_weights_and_nothing_is_trained(root, monkeypatch):
    monkeypatch.setattr(evaluator, "train", lambda *_: pytest.fail("trained"))
    network = save(root, seed=3).eval()
    (cell,) = planned(root, "map")
    saved = []
    outcome, cost, _ = evaluate_cell(
        cell, data_root=root, cache_dir=root / "cache", keep=saved.append
    )
    assert cost.map_seconds == 0
    assert outcome.sizes == {"train": 6, "validation": 3, "test": 3, "ood:imagenet-o": 3}
    image = Image.open(root / "imagenet" / "val" / "n2" / "0.JPEG").crop((18, 16, 242, 240))
    mean, std = (np.array(values) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    pixels = (np.asarray(image) / 255 - mean) / std
    inputs = torch.from_numpy(pixels.transpose(2, 0, 1)[None].astype(np.float32))
    wanted = network(inputs).softmax(-1).max().item()
    assert saved[0].test.confidence[0] == pytest.approx(wanted, abs=1e-5)


def test_streamed_images_give_the_same_numbers(root, monkeypatch):
    save(root, seed=3)
    (cell,) = planned(root, "map")
    held, _, _ = evaluate_cell(cell, data_root=root, cache_dir=root)
    monkeypatch.setenv("UQBENCH_IMAGE_MEMORY", "0")
    found, _, _ = evaluate_cell(cell, data_root=root, cache_dir=root)
    assert found.streamed == ("train", "validation", "test", "ood:imagenet-o")
    assert found.metrics == pytest.approx(held.metrics, nan_ok=True)


def test_the_id_of_the_map_network_follows_the_files_content(root):
    save(root, seed=3)
    before, trained = planned(root, "map", "de")
    save(root, seed=4)
    after, _ = planned(root, "map", "de")
    assert before.map_checkpoint != after.map_checkpoint
    assert before.key != after.key
    assert trained.map_checkpoint == ""
    assert before.identity().network["weights"] == "mine.pth"


def test_a_file_that_is_missing_is_an_error_before_anything_runs(root):
    with pytest.raises(DataError, match=r"weights/mine\.pth: no such file; correct network\.weig"):
        planned(root, "map")


def test_weights_for_other_classes_are_an_error_that_names_the_layer(root):
    save(root, seed=3, classes=5)
    (cell,) = planned(root, "map")
    with pytest.raises(DataError, match=r"mine\.pth: does not fit .* size mismatch for 3\.weight"):
        evaluate_cell(cell, data_root=root, cache_dir=root)
