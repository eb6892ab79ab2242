from collections.abc import Callable

import pytest

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld
from cloudtune.experiment import Experiment
from cloudtune.model.commands import Command, StartTrial
from cloudtune.model.events import Event
from cloudtune.model.progress import OVER
from cloudtune.model.trial import EndReason, Trial
from cloudtune.runs.job import make_policy
from cloudtune.strategies.base import Sampler, Strategy
from cloudtune.strategies.pbt import PopulationBased
from cloudtune.strategies.samplers.axes import allows
from tests.builders import Build, Setting, final, gone, offer, play
from tests.contracts.strategy import StrategyContract, sometimes


class TestPopulationBased(StrategyContract):
    """Of trials that are given, a clone takes the next: it begins where its parent was."""

    name = "pbt"

    @pytest.mark.parametrize("saves_every", [1, 4])
    def test_lost_trials_go_on_from_their_checkpoint(self, game: Setting, saves_every: int) -> None:
        trouble: Callable[..., str] = lambda *at: "lost" if sometimes(*at) else ""  # noqa: E731
        played = self.play(game.but(mishap=trouble, saves_every=saves_every))
        assert played.policy.ending is EndReason.DONE
        assert not played.sampler.failed
        parents = {t.trial.id: t.clone_of for g in played.groups() for t in g.tasks}
        for start in played.starts:
            assert start.start_epoch % saves_every == 0
            if start.start_epoch:
                at = f"/{start.start_epoch}"
                assert start.checkpoint in {
                    f"sim://{name}{at}" for name in _line(start.trial, parents)
                }

    def test_a_vanished_fleet_changes_nothing_but_time(self, game: Setting) -> None:
        """But where clones begin: with a checkpoint each epoch, that is the same."""
        single = game.but(offer=offer(1), max_instances=1)
        assert (
            self.play(single.but(trouble=gone({"i000": 100.0}))).epochs == self.play(single).epochs
        )


def _line(trial: str, parents: dict[str, str | None]) -> list[str]:
    result = [trial]
    while (parent := parents.get(result[-1])) is not None:
        result.append(parent)
    return result


def eight(values: list[float], extra: int = 8) -> Setting:
    """Return a game in which trial n has a constant metric, on a GPU for each of eight."""
    levels = values + [0.65] * extra
    return Setting(len(levels), metric=final(levels), offer=offer(8), max_instances=1)


def pbt(explore: Callable[[Trial], Trial | None] | None = None, **options: int) -> Build:
    def build(sampler: Sampler, game: Setting) -> Strategy:
        result = {"max_epochs": 12, "interval": 4} | options
        return PopulationBased(sampler, mode=game.mode, explore=explore, **result)

    return build


def test_full_storage_keeps_clone_sources() -> None:
    """t06 is over long before the others, without its last two epochs in the storage."""
    setting = eight([0.0, 0.1, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], extra=16).but(
        saves_every=5, pace=lambda config, _: 0.2 if config["x"] in {1, 6} else 1.0
    )
    policy = setting.but(by=pbt(interval=2)).policy()
    handle = policy.handle
    dropped: set[str] = set()
    clones_of: dict[str, list[str]] = {}

    def watched(event: Event) -> tuple[Command, ...]:
        alive = [trial for trial in policy.trials.values() if trial.status not in OVER]
        loaded = {trial.checkpoint.split("/")[-2] for trial in alive if trial.checkpoint}
        dropped.update(set(policy.dispensable()) - loaded)
        commands = handle(event)
        for command in commands:
            if isinstance(command, StartTrial) and command.checkpoint is not None:
                parent = command.checkpoint.split("/")[-2]
                assert parent not in dropped
                clones_of.setdefault(parent, []).append(policy.trials[parent].status)
        return commands

    policy.handle = watched  # type: ignore[method-assign]
    play(setting, policy)
    assert "finished" in clones_of["t06"]
    assert dropped, "what is of no more use makes room"


def test_the_configuration_of_a_clone_is_the_explored_one() -> None:
    asked: list[str] = []

    def explore(parent: Trial) -> Trial:
        asked.append(parent.id)
        return Trial(f"c{len(asked):03d}", {"x": 7, "from": parent.id})

    played = play(eight([0.0, 0.1, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], extra=0), pbt(explore))
    clones = {name: t for name, t in played.policy.trials.items() if name.startswith("c")}
    assert len(clones) == len(asked) >= 2
    assert [t.trial.config["from"] for t in clones.values()] == asked
    assert set(asked) <= {"t06", "t07", *clones}


def test_worst_continue_without_exploration() -> None:
    played = play(eight([n / 10 for n in range(8)], extra=0), pbt(lambda _parent: None))
    assert set(played.epochs.values()) == {12}
    assert all(t.status == "finished" for t in played.policy.trials.values())


def gap(trial: Trial) -> float:
    """Return how far a configuration is from the best, 80."""
    x = trial.config["x"]
    assert isinstance(x, float)
    return abs(x - 80)


NETWORKS = {
    "lr": {"uniform": [0.0, 1.0]},
    "width": {"choice": [1, 2, 3, 4]},
    "model": {
        "mutators": {
            "width": {"channels": {"choice": [8, 16, 32, 64]}, "kernel": {"choice": [3, 5]}},
            "block": {
                "choice": [
                    "none",
                    {"name": "residual", "depth": {"randint": [1, 6]}},
                    {"name": "dropout", "p": {"uniform": [0.0, 0.5]}, "kind": "plain"},
                ]
            },
        }
    },
}


def breed(strategy: object) -> tuple[Experiment, list[tuple[Trial, Trial]]]:
    """Run an experiment over networks in virtual time; return its clones with their parents."""
    experiment = Experiment(
        name="nets",
        train="train.py:train",
        metric={"name": "score", "mode": "max"},
        search=NETWORKS,
        trials=60,
        epochs={"max": 40},
        strategy=strategy,
    )
    game = Setting(12, offer=offer(8), max_instances=1)
    policy = make_policy(experiment, game.rentables, game.limits)
    ledger = MemoryLedger()
    world = SimWorld(
        game.rentables, "score", lambda config, _epoch: -gap(Trial("", {"x": config["lr"]})), 0
    )
    run(policy, world, ledger)
    assert policy.ending is EndReason.DONE
    first: dict[str, str] = {}
    for entry in ledger.entries:
        for item in entry.commands:
            if isinstance(item, StartTrial):
                first.setdefault(item.trial, item.checkpoint or "")
    began = {name: path.removeprefix("sim://").partition("/")[0] for name, path in first.items()}
    trials = {name: item.trial for name, item in policy.trials.items()}
    return experiment, [(trials[n], trials[p]) for n, p in began.items() if p]


def network(trial: Trial) -> dict[str, object]:
    return {name: value for name, value in trial.config.items() if name.startswith("model/")}


def test_clone_keeps_its_network() -> None:
    _, clones = breed("pbt")
    assert len(clones) >= 10
    assert [network(clone) for clone, _ in clones] == [network(item) for _, item in clones]
    assert any(clone.config["lr"] != parent.config["lr"] for clone, parent in clones)
    assert any(clone.config["width"] != parent.config["width"] for clone, parent in clones)


def test_with_inherit_a_clone_may_have_another_network() -> None:
    """A number's neighbour, or any other value; another branch with all that it brings."""
    experiment, clones = breed({"name": "pbt", "inherit": True})
    assert len(clones) >= 10
    pairs = [(network(clone), network(parent)) for clone, parent in clones]
    for name in ("model/width/channels", "model/width/kernel"):
        assert any(one[name] != other[name] for one, other in pairs)
    assert any(one.get("model/block/name") != other.get("model/block/name") for one, other in pairs)
    assert all(allows(experiment.space, clone.config) for clone, _ in clones)
    whole = {"residual": "model/block/depth", "dropout": "model/block/p"}
    named = [one for one, _ in pairs if "model/block/name" in one]
    assert named
    assert all(whole[str(one["model/block/name"])] in one for one in named)
