"""Problems whose MAP network is one that somebody has trained."""

from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image

from uqbench import evaluator
from uqbench.cells import Request, plan
from uqbench.checkpoints import check_given
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


def resaved(root, change):
    path = root / "weights" / "mine.pth"
    torch.save(change(torch.load(path)), path)


def renamed(prefix):
    return lambda state: {f"{prefix}{name}": tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda state: {}, "Missing key"),
        (lambda state: state | {"extra": torch.ones(1)}, 'Unexpected key.* "extra"'),
        (lambda state: state | {"3.bias": torch.ones(5)}, r"size mismatch for 3\.bias"),
        (lambda state: state | {"3.bias": torch.ones(2).int()}, "'3.bias' is torch.int32, not"),
        (lambda state: state | {"3.bias": torch.ones(2) * 1j}, "'3.bias' is torch.complex64, not"),
        (renamed("module."), r"its names begin with 'module\.'; save the state of the network ins"),
        (renamed("_orig_mod."), r"its names begin with '_orig_mod\.'"),
    ],
)
def test_weights_that_do_not_fit_are_an_error_before_anything_runs(root, change, fault):
    save(root, seed=3)
    resaved(root, change)
    with pytest.raises(
        DataError, match=rf"mine\.pth: does not fit the .*network: {fault}"
    ) as error:
        planned(root, "map")
    assert "\n" not in str(error.value)


def test_weights_for_other_classes_are_an_error_that_names_the_layer(root):
    save(root, seed=3, classes=5)
    with pytest.raises(DataError, match=r"mine\.pth: does not fit .* size mismatch for 3\.weight"):
        planned(root, "map")


def test_weights_that_change_after_planning_are_not_taken_for_the_planned_ones(root):
    save(root, seed=3)
    (cell,) = planned(root, "map")
    save(root, seed=4)
    with pytest.raises(DataError, match=r"mine\.pth: has changed since the run was planned"):
        evaluate_cell(cell, data_root=root, cache_dir=root)


@pytest.mark.parametrize("kind", get_args(get_type_hints(NetworkSpec)["kind"]))
def test_every_kind_of_network_is_checked_without_being_built(kind, tmp_path):
    spec = NetworkSpec(kind=kind, weights=str(tmp_path / "w.pth"))
    torch.save(build_network(spec, (3, 32, 32), 4).state_dict(), tmp_path / "w.pth")
    check_given(spec, (3, 32, 32), 4, tmp_path)
    with pytest.raises(DataError, match="size mismatch"):
        check_given(spec, (3, 32, 32), 5, tmp_path)
