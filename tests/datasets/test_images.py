"""torchvision's data sets, on small files in their original formats."""

import gzip
import pickle
import re
import struct
from dataclasses import replace

import numpy as np
import pytest
import scipy.io
import torchvision.datasets

from uqbench.datasets import images
from uqbench.datasets.image_inputs import channel_statistics
from uqbench.errors import DataError

ROWS = {"train": 6, "test": 4}
MNIST_LIKE = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "kmnist": "KMNIST"}


def drawn(shape, classes=10, seed=0):
    """Pixels and labels, every class among them if there are rows enough."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, shape, dtype=np.uint8)
    return pixels, (np.arange(shape[0]) * 7 + seed) % classes


def idx(array):
    """The format of yann.lecun.com/exdb/mnist: 0, 0, type 8 (uint8), dimensions, sizes, data."""
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_mnist_like(root, folder, packed=False, rows=ROWS):
    raw = root / folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    parts = {}
    for seed, (part, prefix) in enumerate({"train": "train", "test": "t10k"}.items()):
        pixels, labels = parts[part] = drawn((rows[part], 28, 28), seed=seed)
        for name, content in (("images-idx3", idx(pixels)), ("labels-idx1", idx(labels))):
            file = raw / f"{prefix}-{name}-ubyte"
            if packed:
                file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(content))
            else:
                file.write_bytes(content)
    return {part: (pixels[:, None], labels) for part, (pixels, labels) in parts.items()}


def write_cifar(folder, files, label_key):
    """Files of pickled dictionaries; rows are 1,024 values of red, then of green, then of blue."""
    folder.mkdir()
    parts = {}
    for seed, (name, rows) in enumerate(files.items()):
        pixels, labels = parts[name] = drawn((rows, 3, 32, 32), 10, seed)
        batch = {"data": pixels.reshape(rows, -1), label_key: labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(batch))
    return parts


def write_cifar_10(root, monkeypatch):
    batches = [f"data_batch_{i}" for i in range(1, 6)]
    files = {**dict.fromkeys(batches, 2), "test_batch": 4}
    parts = write_cifar(root / "cifar-10-batches-py", files, "labels")
    names = [f"kind {i}" for i in range(10)]
    meta = root / "cifar-10-batches-py" / "batches.meta"
    meta.write_bytes(pickle.dumps({"label_names": names}))
    unchecked(monkeypatch, "CIFAR10", batches, ["test_batch"], "batches.meta")
    train = [np.concatenate(arrays) for arrays in zip(*(parts[b] for b in batches), strict=True)]
    return {"train": tuple(train), "test": parts["test_batch"]}, tuple(names)


def write_cifar_100(root, monkeypatch):
    parts = write_cifar(root / "cifar-100-python", {"train": 10, "test": 4}, "fine_labels")
    names = [f"kind {i}" for i in range(100)]
    meta = root / "cifar-100-python" / "meta"
    meta.write_bytes(pickle.dumps({"fine_label_names": names}))
    unchecked(monkeypatch, "CIFAR100", ["train"], ["test"], "meta")
    return parts, tuple(names)


def unchecked(monkeypatch, reader, train, test, meta):
    """Take the MD5 sums of the real files away."""
    kind = getattr(torchvision.datasets, reader)
    monkeypatch.setattr(kind, "train_list", [[name, None] for name in train])
    monkeypatch.setattr(kind, "test_list", [[name, None] for name in test])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "filename": meta, "md5": None})


def write_svhn(root, monkeypatch):
    """Matlab files with X (32, 32, 3, N) and y (N, 1), in which the digit 0 has the label 10."""
    parts = {}
    for seed, part in enumerate(("train", "test")):
        pixels, labels = parts[part] = drawn((ROWS[part], 3, 32, 32), seed=seed)
        y = np.where(labels == 0, 10, labels)[:, None].astype(np.uint8)
        x = pixels.transpose(2, 3, 1, 0)
        scipy.io.savemat(root / f"{part}_32x32.mat", {"X": x, "y": y})
    split_list = {part: ["", f"{part}_32x32.mat", None] for part in parts}
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", split_list)
    return parts, tuple("0123456789")


def small(monkeypatch, name, rows=ROWS):
    """Let a data set have as few images as its small files hold."""
    known = replace(images.SETS[name], rows=rows, fingerprints={})
    monkeypatch.setitem(images.SETS, name, known)


def assert_parts(name, root, parts):
    for part, (pixels, labels) in parts.items():
        found = images.load(name, part, root)
        assert found.shape == pixels.shape[1:]
        assert found.targets.dtype == np.int64
        np.testing.assert_array_equal(found.targets, labels)
        np.testing.assert_array_equal(found.pixels(), pixels)
        assert found.pixels().dtype == np.uint8


class TestReading:
    @pytest.mark.parametrize("packed", [False, True])
    @pytest.mark.parametrize("name", MNIST_LIKE)
    def test_idx_files_are_read_packed_or_not(self, tmp_path, monkeypatch, name, packed):
        small(monkeypatch, name)
        assert_parts(name, tmp_path, write_mnist_like(tmp_path, MNIST_LIKE[name], packed))

    def test_a_set_of_which_some_files_are_packed_is_read(self, tmp_path, monkeypatch):
        small(monkeypatch, "mnist")
        parts = write_mnist_like(tmp_path, "MNIST")
        for file in (tmp_path / "MNIST" / "raw").glob("t10k*"):
            file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
        assert_parts("mnist", tmp_path, parts)

    @pytest.mark.parametrize(
        ("name", "write", "rows"),
        [
            ("cifar-10", write_cifar_10, {"train": 10, "test": 4}),
            ("cifar-100", write_cifar_100, {"train": 10, "test": 4}),
            ("svhn", write_svhn, ROWS),
        ],
    )
    def test_pickles_and_matlab_files_are_read(self, tmp_path, monkeypatch, name, write, rows):
        small(monkeypatch, name, rows)
        parts, class_names = write(tmp_path, monkeypatch)
        assert_parts(name, tmp_path, parts)
        assert images.load(name, "test", tmp_path).class_names == class_names

    def test_a_part_is_read_once_until_its_files_change(self, tmp_path, monkeypatch):
        small(monkeypatch, "mnist")
        write_mnist_like(tmp_path, "MNIST")
        first = images.load("mnist", "test", tmp_path)
        assert images.load("mnist", "test", tmp_path) is first
        file = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
        file.write_bytes(idx(255 - first.pixels()[:, 0]))
        np.testing.assert_array_equal(
            images.load("mnist", "test", tmp_path).pixels(), 255 - first.pixels()
        )


class TestFaults:
    def test_a_missing_file_is_named_with_the_command(self, tmp_path):
        with pytest.raises(DataError) as caught:
            images.load("kmnist", "train", tmp_path)
        assert str(caught.value) == (
            f"{tmp_path / 'KMNIST' / 'raw' / 'train-images-idx3-ubyte'}: no such file; get it with "
            f"`uqbench data fetch kmnist --data-dir {tmp_path}`"
        )

    def test_a_truncated_file_is_one_line_that_says_what_to_do(self, tmp_path, monkeypatch):
        small(monkeypatch, "mnist")
        write_mnist_like(tmp_path, "MNIST")
        file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
        file.write_bytes(file.read_bytes()[:1000])
        with pytest.raises(DataError) as caught:
            images.load("mnist", "train", tmp_path)
        text = str(caught.value)
        assert text.startswith(f"{tmp_path / 'MNIST'}: cannot be read (")
        assert "move it away and get the right one with `uqbench data fetch mnist" in text
        assert "\n" not in text

    def test_a_damaged_packed_file_is_one_line_that_says_what_to_do(self, tmp_path, monkeypatch):
        small(monkeypatch, "mnist")
        write_mnist_like(tmp_path, "MNIST", packed=True)
        file = tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
        for content in (file.read_bytes()[:-6], b"no gzip file"):
            file.write_bytes(content)
            with pytest.raises(DataError) as caught:
                images.load("mnist", "train", tmp_path)
            place = re.escape(f"{tmp_path / 'MNIST'}")
            assert re.fullmatch(f"{place}: cannot be read \\(.+\\); move it .+", str(caught.value))

    @pytest.mark.parametrize("number", [5, 7])
    def test_a_label_for_every_image_is_required(self, tmp_path, monkeypatch, number):
        small(monkeypatch, "kmnist")
        write_mnist_like(tmp_path, "KMNIST")
        file = tmp_path / "KMNIST" / "raw" / "train-images-idx3-ubyte"
        file.write_bytes(idx(drawn((number, 28, 28))[0]))
        message = rf"KMNIST: cannot be read \({number} images, but 6 labels\); move it"
        with pytest.raises(DataError, match=message):
            images.load("kmnist", "train", tmp_path)

    def test_files_with_other_md5_sums_are_refused(self, tmp_path, monkeypatch):
        write_cifar_10(tmp_path, monkeypatch)
        monkeypatch.undo()
        with pytest.raises(DataError, match=r"cifar-10-batches-py: cannot be read \(Dataset not"):
            images.load("cifar-10", "train", tmp_path)

    def test_another_number_of_images_is_an_error(self, tmp_path, monkeypatch):
        small(monkeypatch, "mnist", {"train": 7, "test": 4})
        write_mnist_like(tmp_path, "MNIST")
        wanted = "train part has shape 6 x 1 x 28 x 28, not the known 7 x 1 x 28 x 28"
        with pytest.raises(DataError, match=wanted):
            images.load("mnist", "train", tmp_path)

    def test_a_label_that_is_no_class_is_an_error(self, tmp_path, monkeypatch):
        small(monkeypatch, "mnist")
        write_mnist_like(tmp_path, "MNIST")
        labels = np.array([0, 1, 2, 10])
        (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").write_bytes(idx(labels))
        with pytest.raises(DataError, match=r"test part has the label 10, which is outside 0\.\.9"):
            images.load("mnist", "test", tmp_path)

    def test_other_pixels_than_the_known_are_an_error(self, tmp_path, monkeypatch):
        small(monkeypatch, "mnist")
        write_mnist_like(tmp_path, "MNIST")
        known = replace(images.SETS["mnist"], fingerprints={"test": "0" * 64})
        monkeypatch.setitem(images.SETS, "mnist", known)
        with pytest.raises(DataError, match=r"test part are not the known ones \(fingerprint"):
            images.load("mnist", "test", tmp_path)


class TestFetch:
    def download(self, expected, folder):
        write_mnist_like(folder, expected.reader)
        (folder / expected.reader / "raw" / "train-images-idx3-ubyte.gz").write_bytes(b"archive")

    def test_the_files_alone_are_put_into_the_data_root(self, tmp_path, monkeypatch):
        small(monkeypatch, "kmnist")
        root = tmp_path / "data"
        assert images.fetch("kmnist", root, self.download)
        found = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
        assert found == sorted(images.SETS["kmnist"].files)
        assert len(images.load("kmnist", "train", root)) == 6

    def test_a_set_that_is_there_is_not_downloaded_again(self, tmp_path, monkeypatch):
        small(monkeypatch, "kmnist")
        write_mnist_like(tmp_path, "KMNIST")
        assert not images.fetch("kmnist", tmp_path, lambda *_: pytest.fail("downloaded"))

    def test_a_wrong_set_that_is_there_is_an_error(self, tmp_path, monkeypatch):
        small(monkeypatch, "kmnist")
        write_mnist_like(tmp_path, "KMNIST", rows={"train": 5, "test": 4})
        with pytest.raises(DataError, match="move it away"):
            images.fetch("kmnist", tmp_path, lambda *_: pytest.fail("downloaded"))

    def test_data_that_is_not_the_known_data_is_refused(self, tmp_path, monkeypatch):
        small(monkeypatch, "kmnist", {"train": 60, "test": 4})
        with pytest.raises(DataError, match=r"^kmnist: its train part .*; nothing was written$"):
            images.fetch("kmnist", tmp_path, self.download)
        assert list(tmp_path.iterdir()) == []

    def test_a_failed_download_is_one_line(self, tmp_path, monkeypatch):
        def offline(*arguments, **settings):
            raise OSError("the disc is full\nsecond line")

        monkeypatch.setattr(torchvision.datasets, "KMNIST", offline)
        with pytest.raises(DataError) as caught:
            images.fetch("kmnist", tmp_path)
        assert str(caught.value) == (
            "KMNIST: download failed (OSError: the disc is full); check the network connection and "
            "run the command again"
        )
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_cannot_be_made_is_an_error(self, tmp_path, monkeypatch):
        small(monkeypatch, "kmnist")
        (tmp_path / "KMNIST").write_text("a file where the folder should be")
        with pytest.raises(DataError, match="cannot write kmnist"):
            images.fetch("kmnist", tmp_path, self.download)


class TestRealData:
    """Mean and standard deviation are those that everybody normalises with."""

    @pytest.fixture
    def load(self, data_root):
        def load_or_skip(name, part):
            if images.missing_file(name, data_root):
                pytest.skip(f"{name} is not in UQBENCH_DATA")
            return images.load(name, part, data_root)

        return load_or_skip

    @pytest.mark.parametrize(
        ("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530)]
    )
    def test_it_is_the_known_data(self, load, name, mean, std):
        train = load(name, "train")
        assert len(train) == 60_000
        found = channel_statistics(train)
        np.testing.assert_allclose(np.concatenate(found), [mean, std], atol=5e-5)

    def test_pixels_are_those_of_the_file(self, load, data_root):
        found = load("fashion-mnist", "test")
        content = (data_root / "FashionMNIST" / "raw" / "t10k-images-idx3-ubyte").read_bytes()
        pixels = np.frombuffer(content, np.uint8, offset=16).reshape(10_000, 1, 28, 28)
        np.testing.assert_array_equal(found.pixels(), pixels)
        assert found.class_names[9] == "Ankle boot"  # the first image of the test part
        assert found.targets[0] == 9
