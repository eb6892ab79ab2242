"""What the tables of strategies and allocators hold for each name (`policy.registry`).

Another package adds one by an entry point that names a `StrategyEntry` or an `AllocatorEntry`
(docs/papers.md).
"""

from collections.abc import Callable
from dataclasses import dataclass

from cloudtune.policy.context import BuildContext
from cloudtune.policy.schedule.stages import Planning
from cloudtune.strategies.base import Allocator, Sampler, Strategy


@dataclass(frozen=True)
class StrategyEntry:
    """A strategy: how it is built, and what the rest of cloudtune has to know about it.

    - `allocator`, `fleet`: those that a run gets if it names none.
    - `planning`: how its stages are planned; None if it decides as results come in.
    - `random_share`: for a strategy that needs a sampler that learns, the share of its asks that
      are random.
    - `one_bracket`: it plays one bracket at a time, so GPUs are idle while the last trials train.
    - `pauses`: it may pause trials; `every_epoch`: it decides at each epoch.
    - `has_rules`: it goes by `strategy.rules`.
    - `origin`: the paper behind a reconstruction, shown with the name.
    """

    build: Callable[[BuildContext, Sampler], Strategy]
    allocator: str = "same"
    fleet: str = "naive"
    planning: Planning | None = None
    random_share: float | None = None
    one_bracket: bool = False
    pauses: bool = True
    every_epoch: bool = False
    has_rules: bool = False
    origin: str = ""


@dataclass(frozen=True)
class AllocatorEntry:
    """An allocator: how it is built, and what the rest of cloudtune has to know about it.

    - `whole_gpus`: no two trials ever share a GPU.
    - `has_rules`: it goes by `strategy.rules`.
    """

    build: Callable[[BuildContext], Allocator]
    whole_gpus: bool = False
    has_rules: bool = False
