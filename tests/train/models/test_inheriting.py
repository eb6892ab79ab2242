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


def trained() -> nn.Sequential:
    """Return a network with weights and statistics of its own."""
    torch.manual_seed(1)
    found = network()
    found.train()(IMAGES)
    return found.eval()


def wider(channels: int = 11, more: int = 6, hidden: int = 17) -> nn.Module:
    found = models.widen(models.widen(network(), "0", channels), "4", more)
    return models.widen(found, "7", hidden).eval()


def pair() -> nn.Module:
    return nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})


def test_the_same_network_is_taken_whole() -> None:
    parent, child = trained(), network().eval()
    found = cloudtune.inherit(child, parent.state_dict())
    assert found.whole
    assert len(found.taken) == len(parent.state_dict())
    assert torch.equal(child(IMAGES), parent(IMAGES))


def test_where_names_and_shapes_agree_weights_are_taken_and_the_rest_is_new() -> None:
    parent, child = trained(), wider(channels=4, more=6, hidden=17)
    new = {name: each.clone() for name, each in child.state_dict().items()}
    found = cloudtune.inherit(child, parent.state_dict())
    assert not found.whole
    assert found.resized == ()
    assert set(found.new) == set(found.left) - {"9.bias"} == {"7.weight", "7.bias", "9.weight"}
    for name, each in child.state_dict().items():
        expected = new if name in found.new else parent.state_dict()
        assert torch.equal(each, expected[name]), name
    assert str(found) == "10 tensors taken over, 3 new, 3 left"


def test_what_mutators_insert_is_new_and_what_was_there_is_found() -> None:
    parent = trained()
    child = models.repeat(models.insert_after(network(), "4", nn.BatchNorm2d(6)), "4_then", 2)
    found = cloudtune.inherit(child, parent.state_dict())
    assert set(found.taken) == set(parent.state_dict())
    assert {name.partition(".")[0] for name in found.new} == {"4_then", "4_then_2"}
    back = cloudtune.inherit(network(), child.state_dict())
    assert back.new == ()
    assert set(back.left) == set(found.new)


def test_what_was_wrapped_is_found_by_its_old_name_both_ways() -> None:
    parent, other = pair(), pair()
    child = models.insert_after(pair(), "a", nn.LayerNorm(2))
    found = cloudtune.inherit(child, parent.state_dict())
    assert set(found.new) == {"a.then.weight", "a.then.bias"}
    weight = parent.get_parameter("a.weight")
    assert torch.equal(child.get_parameter("a.kept.weight"), weight)
    assert cloudtune.inherit(other, child.state_dict()).new == ()
    assert torch.equal(other.get_parameter("a.weight"), weight)


@pytest.mark.parametrize("sizes", [(8, 12, 20), (11, 6, 10), (4, 13, 10), (4, 6, 17), (5, 7, 11)])
def test_a_wider_network_computes_what_the_narrow_one_did(sizes: tuple[int, int, int]) -> None:
    """Convolutions, statistics of normalisation, flattened channels and linear layers."""
    parent, child = trained(), wider(*sizes)
    found = cloudtune.inherit(child, parent.state_dict(), resize=True)
    assert found.new == found.left == ()
    assert found.resized
    assert torch.allclose(child(IMAGES), parent(IMAGES), atol=1e-5)


def test_units_that_repeat_learn_different_things() -> None:
    child = wider(hidden=20)
    cloudtune.inherit(child, trained().state_dict(), resize=True)
    layer = child.get_submodule("7")
    assert isinstance(layer, nn.Linear)
    assert torch.equal(layer.weight[:10], layer.weight[10:])
    child(IMAGES)[:, 0].sum().backward()
    assert layer.weight.grad is not None
    one, other = layer.weight.grad[:10], layer.weight.grad[10:]
    used = one.abs().amax(dim=1) > 0
    assert used.any()
    assert not torch.isclose(one[used], other[used]).all(dim=1).any()


def test_all_workers_inherit_the_same_whatever_was_drawn_before() -> None:
    state, found = trained().state_dict(), []
    for seed in (1, 2):
        child = wider()
        torch.manual_seed(seed)
        cloudtune.inherit(child, state, resize=True)
        found.append(child.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_a_narrower_network_takes_the_first_units() -> None:
    parent, child = wider(), network()
    cloudtune.inherit(child, parent.state_dict(), resize=True)
    weight = parent.get_parameter("4.weight")
    assert torch.equal(child.get_parameter("4.weight"), weight[:6, :4])


def test_other_kernels_groups_and_kinds_are_not_resized() -> None:
    parent = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1, groups=2), nn.Embedding(4, 4))
    parent.append(nn.Linear(4, 4))
    child = nn.Sequential(nn.Conv2d(4, 4, 5), nn.Conv2d(4, 8, 1, groups=2), nn.Embedding(4, 8))
    child.append(nn.Linear(4, 4))
    found = cloudtune.inherit(child, parent.state_dict(), resize=True)
    assert found.resized == ()
    assert set(found.new) == {"0.weight", "1.weight", "1.bias", "2.weight"}


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing of it fits the model: the state has 'network"):
        cloudtune.inherit(network(), {"network": network().state_dict(), "epoch": 3})
