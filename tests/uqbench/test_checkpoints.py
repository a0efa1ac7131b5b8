import threading

import pytest
import torch

from uqbench.checkpoints import cached_network, given_network
from uqbench.errors import DataError

CODE = {"commit": "c" * 40, "dirty": False}


def test_a_network_is_trained_once_and_loaded_afterwards(truths, tmp_path):
    trained = truths.mlp(3, 1, seed=1)
    calls = []

    def train():
        calls.append(1)
        return trained

    cpu = torch.device("cpu")
    networks = [
        cached_network(truths.mlp(3, 1, seed=2).train(), train, "key", tmp_path, cpu, CODE)
        for _ in range(2)
    ]
    assert calls == [1]
    for network, seconds in networks:
        assert not network.training
        assert seconds > 0
        for ours, theirs in zip(network.parameters(), trained.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    assert networks[0][1] == networks[1][1]


def test_a_training_that_fails_leaves_no_file(truths, tmp_path):
    def fail():
        raise RuntimeError("diverged")

    with pytest.raises(RuntimeError, match="diverged"):
        cached_network(truths.mlp(3, 1), fail, "key", tmp_path, torch.device("cpu"), CODE)
    assert not list(tmp_path.glob("*.pt")) + list(tmp_path.glob("*.tmp"))


def test_of_several_askers_one_trains_and_the_others_wait(truths, tmp_path):
    calls = []
    started = threading.Barrier(4)

    def train():
        calls.append(1)
        return truths.mlp(3, 1, seed=1)

    def ask():
        started.wait()
        cached_network(truths.mlp(3, 1), train, "key", tmp_path, torch.device("cpu"), CODE)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_a_damaged_checkpoint_is_trained_again(truths, tmp_path, content, caplog):
    template = torch.nn.Linear(2, 1)
    trained = torch.nn.Linear(2, 1)
    calls = []

    def train():
        calls.append(1)
        return trained

    cached_network(template, train, "key", tmp_path, torch.device("cpu"), CODE)
    path = tmp_path / "key.pt"
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    network, _ = cached_network(template, train, "key", tmp_path, torch.device("cpu"), CODE)
    assert len(calls) == 2
    assert "key.pt: unreadable" in caplog.text
    assert network.weight.equal(trained.weight)
    cached_network(template, train, "key", tmp_path, torch.device("cpu"), CODE)
    assert len(calls) == 2


COMMITTED = {"commit": "a" * 40, "dirty": False}
CHANGED = {"commit": "a" * 40, "dirty": True}
UNKNOWN = {"commit": None, "dirty": None}
OLD = {}
"""What a checkpoint says that was written before they said anything."""


@pytest.mark.parametrize(
    ("trained_by", "now", "trained_again"),
    [
        (COMMITTED, CODE, False),
        (CHANGED, CODE, True),
        (UNKNOWN, CODE, True),
        (OLD, CODE, True),
        *((before, CHANGED, False) for before in (COMMITTED, CHANGED, UNKNOWN, OLD)),
        *((before, UNKNOWN, False) for before in (COMMITTED, CHANGED, UNKNOWN, OLD)),
    ],
)
def test_committed_code_starts_from_networks_of_committed_code_alone(
    tmp_path, trained_by, now, trained_again
):
    def layer(weight):
        network = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(network.weight, weight)
        return network

    def cached(train):
        return cached_network(layer(0.0), train, "key", tmp_path, torch.device("cpu"), now)[0]

    stored = {"state": layer(1.0).state_dict(), "seconds": 1.0, **trained_by}
    torch.save(stored, tmp_path / "key.pt")
    assert cached(lambda: layer(2.0)).weight.item() == (2.0 if trained_again else 1.0)
    assert cached(pytest.fail).weight.item() == (2.0 if trained_again else 1.0)
    if trained_again:
        assert torch.load(tmp_path / "key.pt").items() >= now.items()


class TestGivenWeights:
    def save(self, state, path):
        torch.save(state, path)
        return str(path)

    def test_the_network_has_the_state_in_the_file(self, truths, tmp_path):
        wanted = truths.mlp(3, 1, seed=5)
        path = self.save(wanted.state_dict(), tmp_path / "x.pth")
        network = given_network(truths.mlp(3, 1, seed=2).train(), path, tmp_path)
        assert not network.training
        for name, value in network.state_dict().items():
            torch.testing.assert_close(value, wanted.state_dict()[name], rtol=0, atol=0)

    @pytest.mark.parametrize(
        ("outputs", "change", "fault"),
        [
            (2, lambda state: state, "size mismatch for"),
            (1, lambda state: dict(list(state.items())[1:]), "Missing key"),
            (1, lambda state: state | {"more": torch.ones(1)}, "Unexpected key"),
        ],
    )
    def test_a_state_of_another_network_is_one_line(self, truths, tmp_path, outputs, change, fault):
        path = self.save(change(truths.mlp(3, outputs).state_dict()), tmp_path / "x.pth")
        with pytest.raises(DataError, match=f"^{path}: does not fit the .* {fault}") as caught:
            given_network(truths.mlp(3, 1), path, tmp_path)
        assert "\n" not in str(caught.value)
