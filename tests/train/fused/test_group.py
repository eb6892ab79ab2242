"""A group of members trains each as it would train alone, to within rounding."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from cloudtune.train.fused.dropping import dropout
from cloudtune.train.fused.group import Group
from cloudtune.train.fused.optimizers import SGD, Adam, AdamW, Optimizer
from cloudtune.train.fused.state import MemberState

TOLERANCE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-7}
"""What docs/fused.md states, in 64 bits and after ten steps."""
ROUNDED = 1e-3
"""The same of a loss in 32 bits, relative to it."""
Batch = tuple[torch.Tensor, torch.Tensor]


class Transformer(nn.Module):
    """A small causal language model with tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.mixed, self.joined = nn.Linear(8, 24), nn.Linear(8, 8)
        self.last = nn.Linear(8, 11, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.embedding(tokens)
        parts = (
            self.mixed(self.norm(result)).unflatten(-1, (3, 2, 4)).movedim(-3, 0).transpose(2, 3)
        )
        query, key, value = parts
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: torch.Tensor = self.last(result + self.joined(seen.transpose(1, 2).flatten(-2)))
        return out.transpose(1, 2)


@pytest.fixture(autouse=True)
def _in_64_bits() -> Iterator[None]:
    """So that a difference is one of the arithmetic, and not of rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Dropped(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.drop, self.weight = dropout(rate), nn.Parameter(torch.ones(1))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.drop(given) * self.weight
        return out


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def cnn() -> nn.Module:
    convolved = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*convolved, nn.Linear(16, 3))


def batches(kind: Callable[[], nn.Module], count: int = 10) -> list[Batch]:
    chance = torch.Generator().manual_seed(5)
    if kind is Transformer:
        tokens = [torch.randint(0, 11, (4, 7), generator=chance) for _ in range(count)]
        return [(token[:, :-1], token[:, 1:]) for token in tokens]
    shape = (6, 8) if kind is mlp else (6, 1, 6, 6)
    return [
        (torch.randn(shape, generator=chance), torch.randint(0, 3, (6,), generator=chance))
        for _ in range(count)
    ]


def loss(net: Any, batch: Batch) -> torch.Tensor:
    inputs, targets = batch
    return functional.cross_entropy(net(inputs), targets)


def make_model(kind: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return kind()


def alone(
    model: nn.Module, wanted: Optimizer, data: Iterable[Batch], start: MemberState | None = None
) -> MemberState:
    optimizer = wanted.alone(model.parameters())
    if start is not None:
        start.load_into(model, optimizer)
        for numbers in optimizer.param_groups:
            numbers.update(wanted.options())
    model.train()
    for batch in data:
        optimizer.zero_grad()
        loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return MemberState.of(model, optimizer)


def make_group(kind: Callable[[], nn.Module], wanted: Sequence[Optimizer]) -> Group:
    states = [MemberState.of(make_model(kind, seed)) for seed in range(len(wanted))]
    return Group(kind(), states, wanted)


def train(
    kind: Callable[[], nn.Module],
    states: Sequence[MemberState],
    wanted: Sequence[Optimizer],
    data: Iterable[Batch],
) -> list[MemberState]:
    group = Group(kind(), states, wanted)
    for batch in data:
        group.step(loss, batch)
    return group.states()


def assert_equal(result: MemberState, wanted: MemberState) -> None:
    torch.testing.assert_close(dict(result.model), dict(wanted.model), **TOLERANCE)
    torch.testing.assert_close(result.optimizer, wanted.optimizer, **TOLERANCE)


NUMBERS: dict[str, list[Optimizer]] = {
    "sgd": [SGD(0.1), SGD(0.03, momentum=0.9), SGD(0.05, momentum=0.5, weight_decay=0.1)],
    "nesterov": [SGD(lr, momentum=0.9, weight_decay=0.01, nesterov=True) for lr in (0.02, 0.05)],
    "adam": [Adam(0.01), Adam(0.003, betas=(0.8, 0.99)), Adam(0.01, eps=1e-4, weight_decay=0.1)],
    "adamw": [AdamW(0.01), AdamW(0.003, betas=(0.8, 0.99), weight_decay=0.3)],
}


@pytest.mark.parametrize("kind", [mlp, cnn, Transformer])
@pytest.mark.parametrize("wanted", NUMBERS.values(), ids=NUMBERS)
def test_each_member_is_as_alone(kind: Callable[[], nn.Module], wanted: list[Optimizer]) -> None:
    group = make_group(kind, wanted)
    for batch in batches(kind):
        losses = group.step(loss, batch)
    assert losses.shape == (len(wanted),)
    for seed, state in enumerate(group.states()):
        assert_equal(state, alone(make_model(kind, seed), wanted[seed], batches(kind)))


@pytest.mark.parametrize("kind", [mlp, cnn, Transformer])
def test_in_32_bits_it_loses_as_much_as_alone(kind: Callable[[], nn.Module]) -> None:
    torch.set_default_dtype(torch.float32)
    wanted = [AdamW(lr) for lr in (0.01, 0.003)]
    group, data = make_group(kind, wanted), batches(kind)
    for batch in data:
        losses = group.step(loss, batch)
    for seed, item in enumerate(wanted):
        model = make_model(kind, seed)
        alone(model, item, data[:-1])
        assert losses[seed].item() == pytest.approx(loss(model, data[-1]).item(), rel=ROUNDED)


def test_a_member_leaves_trains_alone_and_comes_back() -> None:
    """The others are as if it had never left."""
    wanted = [Adam(lr) for lr in (0.01, 0.02, 0.005)]
    data = batches(cnn, 9)
    first = [MemberState.of(make_model(cnn, seed)) for seed in range(3)]
    a, b, c = train(cnn, first, wanted, data[:3])
    a, c = train(cnn, [a, c], [wanted[0], wanted[2]], data[3:6])
    b = alone(cnn(), wanted[1], data[3:6], b)
    states = train(cnn, [a, b, c], wanted, data[6:])
    for seed, state in enumerate(states):
        assert_equal(state, alone(make_model(cnn, seed), wanted[seed], data))


def test_a_member_that_diverges_harms_no_other() -> None:
    group = make_group(mlp, [SGD(1e30, momentum=0.9), SGD(0.1)])
    for batch in batches(mlp):
        group.step(loss, batch)
    diverged, other = group.states()
    assert not all(item.isfinite().all() for item in diverged.model.values())
    assert_equal(other, alone(make_model(mlp, 1), SGD(0.1), batches(mlp)))


def test_another_rate_counts_from_the_next_epoch_on() -> None:
    data = batches(mlp, 2)
    first = [MemberState.of(make_model(mlp, seed)) for seed in range(2)]
    states = train(mlp, first, [SGD(0.1), SGD(0.1)], data[:1])
    state, _ = train(mlp, states, [SGD(0.01), SGD(0.1)], data[1:])
    before = alone(make_model(mlp, 0), SGD(0.1), data[:1])
    assert_equal(state, alone(mlp(), SGD(0.01), data[1:], before))


def test_members_have_own_dropout() -> None:
    def dropped(net: Any, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = net(batch)
        return out

    rates = [0.0, 0.5, 0.5, 0.9]
    states = [MemberState.of(Dropped(rate)) for rate in rates]
    group = Group(Dropped(0.1), states, [SGD(0.1)] * 4)
    group._model.train()
    result = group._each(dropped, torch.ones(4000))
    zeros = (result == 0).double().mean(1).tolist()
    assert zeros == pytest.approx(rates, abs=0.04)
    assert result.mean(1).tolist() == pytest.approx([1.0] * 4, abs=0.15)
    assert not torch.equal(result[1], result[2])
    assert torch.equal(group.measure(dropped, torch.ones(9)), torch.ones(4, 9))  # type: ignore[arg-type]
    states = group.states()
    assert list(states[1].model) == ["weight"], "the rate is the configuration's"
    assert states[3].settings["drop.p"].item() == pytest.approx(0.9)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="SGD nesterov=False, Adam can't train as one model"):
        make_group(mlp, [SGD(0.1), Adam(0.1)])
    with pytest.raises(ValueError, match=r"a dropout rate of 1\.0 isn't from 0 to below 1"):
        dropout(1.0)


def test_members_may_have_come_at_different_times() -> None:
    """Adam's correction of its first steps goes by each member's own."""
    wanted, data = [Adam(0.01), Adam(0.02)], batches(mlp, 8)
    (a,) = train(mlp, [MemberState.of(make_model(mlp, 0))], wanted[:1], data[:5])
    _, b = train(mlp, [a, MemberState.of(make_model(mlp, 1))], wanted, data[5:])
    assert_equal(b, alone(make_model(mlp, 1), wanted[1], data[5:]))
