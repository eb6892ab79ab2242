"""Weights that a network takes over from another."""

import pytest
import torch
from torch import nn

import cloudtune
from cloudtune import models
from cloudtune.errors import UsageError

IMAGES = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 16, 10),
        nn.ReLU(),
        nn.Linear(10, 3),
    )


def train_network() -> nn.Sequential:
    """Return a network with weights and statistics of its own."""
    torch.manual_seed(1)
    result = network()
    result.train()(IMAGES)
    return result.eval()


def pair() -> nn.Module:
    return nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})


def test_the_same_network_is_taken_whole() -> None:
    parent, child = train_network(), network().eval()
    result = cloudtune.inherit(child, parent.state_dict())
    assert result.whole
    assert len(result.taken) == len(parent.state_dict())
    assert torch.equal(child(IMAGES), parent(IMAGES))


def test_weights_are_taken_where_names_and_shapes_agree() -> None:
    parent, child = train_network(), network()
    child[7], child[9] = nn.Linear(6 * 16, 17), nn.Linear(17, 3)
    new = {name: item.clone() for name, item in child.state_dict().items()}
    result = cloudtune.inherit(child, parent.state_dict())
    assert not result.whole
    assert set(result.new) == set(result.left) - {"9.bias"} == {"7.weight", "7.bias", "9.weight"}
    for name, item in child.state_dict().items():
        expected = new if name in result.new else parent.state_dict()
        assert torch.equal(item, expected[name]), name
    assert str(result) == "10 tensors taken over, 3 new, 3 left"


def test_inserted_layers_are_new_and_old_ones_are_found() -> None:
    parent = train_network()
    child = models.repeat(models.insert_after(network(), "4", nn.BatchNorm2d(6)), "4_then", 2)
    result = cloudtune.inherit(child, parent.state_dict())
    assert set(result.taken) == set(parent.state_dict())
    assert {name.partition(".")[0] for name in result.new} == {"4_then", "4_then_2"}
    back = cloudtune.inherit(network(), child.state_dict())
    assert back.new == ()
    assert set(back.left) == set(result.new)


def test_a_wrapped_layer_is_found_by_its_old_name() -> None:
    parent, other = pair(), pair()
    child = models.insert_after(pair(), "a", nn.LayerNorm(2))
    result = cloudtune.inherit(child, parent.state_dict())
    assert set(result.new) == {"a.then.weight", "a.then.bias"}
    weight = parent.get_parameter("a.weight")
    assert torch.equal(child.get_parameter("a.kept.weight"), weight)
    assert cloudtune.inherit(other, child.state_dict()).new == ()
    assert torch.equal(other.get_parameter("a.weight"), weight)


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing of it fits the model: the state has 'network"):
        cloudtune.inherit(network(), {"network": network().state_dict(), "epoch": 3})
