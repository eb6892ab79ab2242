"""Fluid's allocators decide as its published code does (SymbioticLab/Fluid @3598be4).

Only what the code decides: growing and shrinking by the cost of a resize (F6, F7) isn't in it, and
neither is a share below one GPU by the paper's rule, for its narrowest width is two GPUs.
"""

from types import SimpleNamespace
from typing import Any

from cloudtune.model.events import EpochDone
from cloudtune.model.plans import Rentable
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Trial
from cloudtune.policy.registry import ALLOCATORS
from tests.builders import Setting, by_name, offer, play, profile
from tests.papers import published_fluid as theirs

GROUPS, GAMES = theirs.GROUPS, theirs.GAMES
RECORDED = theirs.DECISIONS.read_text(encoding="utf-8").splitlines()


def make_allocator(name: str) -> Any:
    return ALLOCATORS[name].build(None)  # type: ignore[arg-type]


def shares(seed: int) -> str:
    """Return the widths of a group of measured trials that go on from a rung."""
    seconds = {f"t{number}": height for number, height in enumerate(theirs.heights(seed))}
    gpus = offer(len(seconds))
    curve = {float(width): 1 / width for width in range(theirs.NARROWEST, theirs.WIDEST + 1)}
    group = [TrialProgress(Trial(name, {}), status="at rung", history={1: 0.5}) for name in seconds]
    view = SimpleNamespace(
        now=1.0,
        gpus=gpus.gpus,
        held={gpus: 1},
        rentables=(Rentable(gpus, profile(curve), 1),),
        running=group,
        trials={trial.id: trial for trial in group},
        until=lambda _: 1,
        epoch_seconds=lambda name, _offer, width: seconds[name] / width,
    )
    allocator = make_allocator("static-fluid:published")
    return "".join(f"{allocator.resized(view, trial):g}" for trial in group)


def play_halving(game: theirs.Game) -> str:
    """Play a game in virtual time, where resizes seem so dear that none by F6 or F7 pays."""
    curve = {float(width): 1 / width for width in range(1, theirs.WIDEST + 1)}
    free = profile(curve, start=0.0, resize=0.0, boot=0.0, launch=0.0, release=0.0)
    dear = profile(curve, start=0.0, resize=1e12, boot=0.0, launch=0.0, release=0.0)
    setting = Setting(
        game.count,
        metric=lambda number, epoch: game.scores[number][epoch - 1],
        pace=lambda config, _epoch: game.pace[int(str(config["x"]))],
        offer=offer(game.count),
        max_instances=1,
        profile=dear,
        real=(Rentable(offer(game.count), free, 1),),
        allocator=lambda: make_allocator("dynamic-fluid:published-idle"),
    )
    rungs = {"eta": game.eta, "min_epochs": game.first, "max_epochs": game.last}
    played = play(setting, by_name("halving", trials=game.count, **rungs))
    trained = {start.session: (int(start.trial[1:]), start.width) for start in played.starts}
    events = (entry.event for entry in played.entries)
    return theirs.line([trained[it.session] for it in events if isinstance(it, EpochDone)])


def test_f04_widths_equal_published_code() -> None:
    assert [shares(seed) for seed in range(GROUPS)] == RECORDED[:GROUPS]


def test_f19_f20_games_equal_published_code() -> None:
    """Which trial trains its next epoch how wide, in order: 6,566 epochs."""
    ours = [play_halving(theirs.Game(seed)) for seed in range(GAMES)]
    assert ours == RECORDED[GROUPS:]
