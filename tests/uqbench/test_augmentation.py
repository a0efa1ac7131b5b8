import torch

from uqbench.augmentation import PADDING, augmented
from uqbench.data import Split
from uqbench.problems import Recipe
from uqbench.training import cross_entropy, train


def images(count=400, seed=0):
    return torch.randn(count, 2, 6, 5, generator=torch.Generator().manual_seed(seed))


def generator():
    return torch.Generator().manual_seed(3)


def test_a_crop_is_a_window_of_the_padded_image_and_every_window_comes_up():
    original = images()
    cropped = augmented(original, ["crop"], generator())
    padded = torch.nn.functional.pad(original, (PADDING,) * 4)
    seen = set()
    for image, found in zip(padded, cropped, strict=True):
        places = [
            (row, column)
            for row in range(2 * PADDING + 1)
            for column in range(2 * PADDING + 1)
            if torch.equal(image[:, row : row + 6, column : column + 5], found)
        ]
        assert places
        seen.add(places[0])
    # 400 draws of 81 windows: 81 (1 − 1/81)^400 ≈ 0.6 are missed on average
    assert len(seen) >= 77


def test_about_half_of_the_images_are_flipped_left_to_right():
    original = images()
    flipped = augmented(original, ["flip"], generator())
    kept = (flipped == original).flatten(1).all(1)
    mirrored = (flipped == original.flip(-1)).flatten(1).all(1)
    assert (kept ^ mirrored).all()
    assert abs(mirrored.double().mean().item() - 0.5) < 4 * (0.25 / 400) ** 0.5


def test_augmentation_leaves_the_images_alone_and_follows_its_generator():
    original = images(20)
    before = original.clone()
    first = augmented(original, ["crop", "flip"], generator())
    assert torch.equal(first, augmented(original, ["crop", "flip"], generator()))
    assert not torch.equal(first, original)
    assert torch.equal(original, before)


def test_training_sees_augmented_images():
    split = Split(images(30), torch.randint(3, (30,), generator=generator()))
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 3))
    recipe = {"epochs": 2, "batch_size": 10, "optimizer": "sgd"}
    plain = train(network, split, Recipe(**recipe), cross_entropy, 1)
    changed = train(network, split, Recipe(**recipe, augment=("crop",)), cross_entropy, 1)
    assert not torch.equal(plain[1].weight, changed[1].weight)
