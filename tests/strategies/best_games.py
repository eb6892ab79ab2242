"""Games of `best`, and what they took."""

from collections import Counter
from dataclasses import replace

from benchmarks.compare.audit import Audit, audit
from cloudtune.model.commands import Launch
from tests.builders import (
    Played,
    Setting,
    play,
)


def own(trials: int = 12, price: float = 36.0, slower: float = 1.0, **changes: object) -> Setting:
    """Return a setting in which `best` says how wide trials are, on how many of which offers.

    In the world, epochs take `slower` times what the profile says.
    """
    made = Setting(trials, 1, 27, 3, by="seer").but(**changes)
    made = made.but(offer=replace(made.offer, usd_per_hour=price))
    real = (
        replace(rentable, profile=rentable.profile.slow_down(slower)) for rentable in made.rentables
    )
    return made if slower == 1.0 else made.but(real=tuple(real))


def seer(game: Setting, name: str = "seer") -> tuple[Played, Audit]:
    """Return a run, and what it took by its events alone."""
    played = play(game, name)
    offers = [rentable.offer for rentable in game.rentables]
    return played, audit(played.entries, offers, "score", game.mode)


def launched(played: Played) -> Counter[str]:
    """Return how many instances of each type were asked for."""
    said = (command for commands in played.commands for command in commands)
    return Counter(c.instance_type for c in said if isinstance(c, Launch))
