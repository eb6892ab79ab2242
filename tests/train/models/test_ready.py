"""Ready changes of networks: what they make, and what they refuse."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cloudtune import models
from cloudtune.errors import UsageError

IMAGES = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def images() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(6 * 4, 10),
        nn.LayerNorm(10),
        nn.Linear(10, 3),
    )


class Functions(nn.Module):
    """As scripts have it: layers as attributes, the rest as functions."""

    def __init__(self, end: str = "plain") -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(4 * 16, 2)
        self.end = end

    def forward(self, given: Tensor) -> Tensor:
        found: Tensor = functional.max_pool2d(functional.relu(self.conv(given)), 2)
        if self.end == "sum":
            found = found + self.block(found)
        elif self.end == "twice":
            found = self.block(self.block(found))
        else:
            found = self.block(found)
        if self.end == "view":
            return self.head(found.view(3, -1))  # type: ignore[no-any-return]
        if self.end == "size":
            return self.head(found.view(found.size(0), -1))  # type: ignore[no-any-return]
        if self.end == "shape":
            return self.head(found.reshape(found.shape[0], -1))  # type: ignore[no-any-return]
        if self.end == "channels":
            return self.head(found.reshape(found.shape[1], -1))  # type: ignore[no-any-return]
        if self.end == "rows":
            return self.head(found.view(found.size(1), -1))  # type: ignore[no-any-return]
        if self.end == "turned":
            return self.head(found.mT.flatten(1))  # type: ignore[no-any-return]
        if self.end == "pixels":
            return self.head(found)  # type: ignore[no-any-return]
        return self.head(torch.flatten(found, 1))  # type: ignore[no-any-return]


def sizes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in network.named_parameters()}


def test_a_block_takes_the_place_of_another() -> None:
    network = models.replace(Functions(), "block.1", nn.Tanh())
    assert isinstance(network.get_submodule("block.1"), nn.Tanh)
    models.replace(network, "conv", lambda old: nn.Conv2d(1, old.out_channels, 5, padding=2))
    assert sizes(network)["conv.weight"] == (4, 1, 5, 5)
    assert network(IMAGES).shape == (3, 2)


def test_what_is_inserted_comes_behind_and_the_others_keep_their_names() -> None:
    network = images()
    before = list(network.state_dict())
    models.insert_after(network, "1", nn.Identity())
    models.insert_after(network, "1", nn.Conv2d(4, 4, 1))
    assert list(dict(network.named_children()))[:5] == ["0", "1", "1_then_", "1_then", "2"]
    assert set(before) < set(network.state_dict())
    seen: list[str] = []
    for name, child in network.named_children():
        child.register_forward_hook(lambda *_, name=name: seen.append(name))
    network(IMAGES)
    assert seen == [name for name, _ in network.named_children()]


def test_elsewhere_than_in_a_sequence_the_two_are_wrapped() -> None:
    network = models.insert_after(Functions(), "conv", nn.BatchNorm2d(4))
    assert "conv.kept.weight" in sizes(network)
    assert "conv.then.weight" in sizes(network)
    assert network(IMAGES).shape == (3, 2)


def test_what_is_repeated_has_weights_of_its_own() -> None:
    network = models.repeat(Functions(), "block.0", 3)
    names = [name for name, _ in network.get_submodule("block").named_children()]
    assert names == ["0", "0_2", "0_3", "1"]
    found = [network.get_parameter(f"block.{name}.weight") for name in names[:3]]
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])
    assert network(IMAGES).shape == (3, 2)
    assert sizes(models.repeat(Functions(), "block", 1)) == sizes(Functions())
    assert models.repeat(Functions(), "block", 2)(IMAGES).shape == (3, 2)


def test_what_follows_a_wider_layer_is_fitted() -> None:
    network = images()
    models.widen(network, "0", 7)
    models.widen(network, "4", 9)
    models.widen(network, "6", 5)
    assert network(IMAGES).shape == (3, 3)
    found = sizes(network)
    assert found["0.weight"] == (7, 1, 3, 3)
    assert "0.bias" not in found
    assert found["1.weight"] == (7,)
    assert found["4.weight"] == (9, 7, 3, 3)
    assert found["6.weight"] == (5, 9 * 4)
    assert found["7.weight"] == (5,)
    assert found["8.weight"] == (3, 5)
    conv = network.get_submodule("4")
    assert isinstance(conv, nn.Conv2d)
    assert conv.stride == (2, 2)
    functions = models.widen(models.widen(Functions(), "conv", 6), "block.0", 3)
    assert functions(IMAGES).shape == (3, 2)
    assert sizes(functions)["head.weight"] == (2, 3 * 16)


@pytest.mark.parametrize("end", ["plain", "size", "shape"])
def test_flattening_is_known_in_all_its_ways(end: str) -> None:
    network = models.widen(Functions(end), "block.0", 3)
    assert sizes(network)["head.weight"] == (2, 3 * 16)
    assert network(IMAGES).shape == (3, 2)


def test_the_same_width_changes_nothing() -> None:
    network = images()
    before = network[0]
    assert models.widen(network, "0", 4)[0] is before  # type: ignore[index]


def groups() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 1, groups=4))


def pooled_features() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.MaxPool2d(2), nn.Linear(4, 2))


def flat_from_two() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 4), nn.Flatten(2), nn.Linear(4, 2))


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, given: Tensor) -> Any:
        return self.layer(given) if given.sum() > 0 else given


@pytest.mark.parametrize(
    ("network", "name", "told"),
    [
        (lambda: Functions("sum"), "conv", r"add\(\) is behind it"),
        (lambda: Functions("view"), "block.0", r"view\(\) is behind it"),
        (lambda: Functions("channels"), "block.0", r"reshape\(\) is behind it"),
        (lambda: Functions("rows"), "block.0", r"view\(\) is behind it"),
        (lambda: Functions("turned"), "block.0", r"getattr\(\) is behind it"),
        (lambda: Functions("twice"), "conv", "block.0, behind it, is used more than once"),
        (lambda: Functions("twice"), "block.0", "uses it 2 times, not once"),
        (lambda: Functions("pixels"), "block.0", "head, behind it, is a Linear"),
        (groups, "0", "1, behind it, is a Conv2d with groups"),
        (groups, "1", "it is a Conv2d; name a Linear, or a Conv2d without groups"),
        (pooled_features, "0", "1, behind it, is a MaxPool2d"),
        (flat_from_two, "0", "flattened from another dimension than 1"),
        (images, "8", "the network gives its outputs away"),
        (images, "1", "it is a BatchNorm2d"),
        (images, "11", "no submodule '11'"),
        (Decides, "layer", "torch.fx can't follow"),
    ],
)
def test_what_can_not_be_fitted_is_refused_and_left(
    network: Callable[[], nn.Module], name: str, told: str
) -> None:
    given = network()
    before = sizes(given)
    with pytest.raises(UsageError, match=told):
        models.widen(given, name, 5)
    assert sizes(given) == before


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda: models.replace(Functions(), "blok", nn.ReLU()), "Did you mean 'block'"),
        (lambda: models.insert_after(Functions(), "", nn.ReLU()), "no submodule ''"),
        (lambda: models.repeat(Functions(), "conv", 2), "it takes 1 and gives 4"),
        (lambda: models.repeat(Functions(), "head", 2), "it takes 64 and gives 2"),
        (lambda: models.repeat(Functions(), "block", 0), "write a whole number from 1 on"),
        (lambda: models.widen(Functions(), "conv", 0), "write a whole number from 1 on"),
    ],
)
def test_mistakes_are_told(change: Callable[[], nn.Module], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        change()
