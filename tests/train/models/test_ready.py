"""Ready changes of networks: what they make, and what they refuse."""

from collections.abc import Callable

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

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(4 * 16, 2)

    def forward(self, given: Tensor) -> Tensor:
        result: Tensor = functional.max_pool2d(functional.relu(self.conv(given)), 2)
        return self.head(torch.flatten(self.block(result), 1))  # type: ignore[no-any-return]


def sizes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(named_parameter.shape) for name, named_parameter in network.named_parameters()
    }


def test_a_block_takes_the_place_of_another() -> None:
    network = models.replace(Functions(), "block.1", nn.Tanh())
    assert isinstance(network.get_submodule("block.1"), nn.Tanh)
    models.replace(network, "conv", lambda old: nn.Conv2d(1, old.out_channels, 5, padding=2))
    assert sizes(network)["conv.weight"] == (4, 1, 5, 5)
    assert network(IMAGES).shape == (3, 2)


def test_inserted_layers_come_behind_and_others_keep_their_names() -> None:
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


def test_what_is_repeated_has_weights_of_its_own() -> None:
    network = models.repeat(Functions(), "block.0", 3)
    names = [name for name, _ in network.get_submodule("block").named_children()]
    assert names == ["0", "0_2", "0_3", "1"]
    result = [network.get_parameter(f"block.{name}.weight") for name in names[:3]]
    assert not torch.equal(result[0], result[1])
    assert not torch.equal(result[1], result[2])
    assert network(IMAGES).shape == (3, 2)
    assert sizes(models.repeat(Functions(), "block", 1)) == sizes(Functions())
    assert models.repeat(Functions(), "block", 2)(IMAGES).shape == (3, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: models.replace(Functions(), "blok", nn.ReLU()), "Did you mean 'block'"),
        (lambda: models.insert_after(Functions(), "", nn.ReLU()), "no submodule ''"),
        (lambda: models.repeat(Functions(), "conv", 2), "it takes 1 and gives 4"),
        (lambda: models.repeat(Functions(), "head", 2), "it takes 64 and gives 2"),
        (lambda: models.repeat(Functions(), "block", 0), "write a whole number from 1 on"),
    ],
)
def test_mistakes_are_reported(change: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        change()
