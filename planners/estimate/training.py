"""The trials of one group in one stage, in every sample at once: when the last of them is done.

A slot is room for one trial. Slots are free once their instances have joined, and a free slot takes
the next trial, as in a run. Arrays are (samples, slots), in seconds of the plan.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Group, Rentable, Stage
from cloudtune.model.scaling import ScalingProfile
from cloudtune.planners.arrays import Floats, Indices, Ints
from cloudtune.planners.estimate.draws import Dice

# The maximum number of interruptions drawn for one instance in one stage: at some rates a stage
# would never end.
_MAX_INTERRUPTIONS = 50
# The maximum number of figures of a queue that are computed one by one, which takes long.
_FIGURES = 10**8
# The interpreter's time per trial, counted in figures.
_FIGURES_PER_TRIAL = 5 * 10**4
# The rounds of a queue's slots that are always computed.
_ROUNDS = 8


@dataclass
class Fleet:
    """The instances of one offer: when each was launched and has joined, (samples, instances)."""

    offer: Offer
    launched: Floats
    joined: Floats

    @property
    def count(self) -> int:
        """The number of instances, which is the same in every sample."""
        return int(self.launched.shape[1])

    def sort(self, by: Floats) -> "Fleet":
        """Return the instances in ascending order of `by`, sample by sample."""
        order = np.argsort(by, axis=1, kind="stable")
        pick = np.take_along_axis
        return Fleet(self.offer, pick(self.launched, order, 1), pick(self.joined, order, 1))

    def split(self, count: int) -> "tuple[Fleet, Fleet]":
        first = Fleet(self.offer, self.launched[:, :count], self.joined[:, :count])
        return first, Fleet(self.offer, self.launched[:, count:], self.joined[:, count:])

    def joined_by(self, other: "Fleet") -> "Fleet":
        launched = np.concatenate([self.launched, other.launched], axis=1)
        return Fleet(self.offer, launched, np.concatenate([self.joined, other.joined], axis=1))


# Seconds after which nothing happens any more.
_NEVER = 1e12


class PoolDraws:
    """The behaviour of an offer's pool in each sample, drawn once from the possible ones.

    An instance `lasts` that many seconds on average; then the pool is dry for `outage` seconds, or
    None if it never is.
    """

    def __init__(self, rentable: Rentable, dice: Dice) -> None:
        self._dice = dice
        ways = rentable.behaviours
        rates = np.array(
            [w.losses_per_hour for w in ways] or [rentable.offer.interruptions_per_hour]
        )
        self.goes = bool((rates > 0).any())
        chosen = dice.pick(len(ways)) if ways else np.zeros(dice.samples, dtype=np.intp)
        with np.errstate(divide="ignore"):
            self.lasts = np.minimum(3600.0 / rates, _NEVER)[chosen]
        outages = np.array([min(w.outage, _NEVER) for w in ways])
        self.outage = outages[chosen] if ways and outages.any() else None
        self._away = 1.0 - np.array([w.availability for w in ways])[chosen] if ways else None

    def wait(self) -> Floats:
        """Return the seconds until the pool has instances, from a random moment on."""
        if self.outage is None or self._away is None:
            return np.zeros(self._dice.samples)
        away = self._dice.shares(self._dice.samples) < self._away
        return np.where(away, self._dice.gaps(self.outage, self._dice.samples), 0.0)


def charge(offer: Offer, seconds: Floats) -> Floats:
    """Return the cost of instances that live these seconds: `Offer.charge` for arrays."""
    billed = np.maximum(seconds, offer.minimum_seconds)
    if offer.granularity_seconds > 0:
        grains = np.ceil(billed / offer.granularity_seconds - 1e-9)
        billed = grains * offer.granularity_seconds
    return billed * offer.held_usd_per_second


def slots_per_instance(group: Group) -> int:
    """Return how many of a group's trials one instance holds; 1 if a trial needs several."""
    return max(1, math.floor(group.offer.gpus / group.width + 1e-6))


def instances_per_trial(group: Group) -> int:
    """Return how many instances one of a group's trials needs; 1 if it shares one."""
    return max(1, math.ceil(group.width / group.offer.gpus - 1e-6))


def _skippable_rounds(trials: int, slots: int, samples: int) -> int:
    """Return how many rounds of a queue, one trial per slot, need not be simulated one by one.

    Slots take trials from a queue until all have had the same, so many rounds take the trials'
    total, divided by the slots. If the last rounds are simulated, that is right within a part of a
    trial.
    """
    cost = slots * (slots * samples + _FIGURES_PER_TRIAL)
    return max(0, trials // slots - max(_ROUNDS, _FIGURES // cost) - 1)


class TrainingDraws:
    """One group's trials on its fleet; `done` says when the last trial of each slot is done.

    `began` is the start of the stage; from `opened` on each instance takes trials; `slowness` is
    the factor on measured epochs; `staying` is how many trials stay in place, without a start.
    Interruptions change the fleet as they come; their cost beyond the fleet's bill is in `dollars`,
    their GPU-seconds in `gpu_seconds`.
    """

    def __init__(
        self,
        stage: Stage,
        group: Group,
        profile: ScalingProfile,
        dice: Dice,
        *,
        fleet: Fleet,
        began: Floats,
        opened: Floats,
        slowness: Floats,
        staying: Ints,
        usd_per_launch: float,
        pool: PoolDraws,
    ) -> None:
        self.pool = pool
        self.group = group
        self.profile = profile
        self.dice = dice
        self.usd_per_launch = usd_per_launch
        # Instances that open first are filled first, so that the empty ones open last.
        self.fleet = fleet.sort(opened)
        self.epoch = profile.epoch[group.width].mean * slowness
        self.dollars, self.gpu_seconds = np.zeros(dice.samples), np.zeros(dice.samples)
        needed = instances_per_trial(group)
        self.opened = np.sort(opened, axis=1)[:, needed - 1 :: needed]
        spot = pool.goes
        self._interruptions = _Interruptions(self, began) if spot else None
        durations = self._durations(stage, slowness, staying)
        self.use(durations.sum(axis=1))
        self._train(durations)

    @property
    def end(self) -> Floats:
        """When the last trial of the group is done, by sample."""
        return np.asarray(self.done.max(axis=1))

    def hold(self, until: Floats) -> None:
        """Keep the instances until the stage is over; they may still be interrupted."""
        self._interrupt(lambda: until)

    def use(self, seconds: Floats) -> None:
        """Bill the use of trials by the function, in their total seconds by sample."""
        self.dollars += seconds * self.group.width * self.group.offer.used_usd_per_second

    def _durations(self, stage: Stage, slowness: Floats, staying: Ints) -> Floats:
        """Return the seconds of each trial including its start; those that stay come first.

        For a long queue, only some (see `_skippable_rounds`); the rest, in which each slot has the
        same number of trials, is added to the first ones.
        """
        slots = self.opened.shape[1] * slots_per_instance(self.group)
        skipped = _skippable_rounds(self.group.trials, slots, self.dice.samples)
        played = self.group.trials - skipped * slots
        epoch = self.profile.epoch[self.group.width]
        taken = self.dice.seconds(epoch, played, times=stage.epochs)
        start = self.profile.start if stage.start_epoch == 0 else self.profile.resize
        moved = np.arange(played) >= staying[:, None]
        if skipped:
            shared = self.dice.seconds(epoch, slots, times=skipped * stage.epochs, among=slots)
            taken[:, :slots] += shared
        taken *= slowness[:, None]
        if moved.any():
            taken += moved * self.dice.seconds(start, played)
        if skipped:
            taken[:, :slots] += self.dice.seconds(start, slots, times=skipped, among=slots)
        return taken

    def _train(self, taken: Floats) -> None:
        """Give each slot a trial, and each other trial to the slot that is free first."""
        free = np.repeat(self.opened, slots_per_instance(self.group), axis=1)
        first = min(free.shape[1], taken.shape[1])
        self.done: Floats = np.full(free.shape, -np.inf)  # slots without a trial never matter
        self.done[:, :first] = free[:, :first] + taken[:, :first]
        if first < taken.shape[1]:
            self._queue(np.ascontiguousarray(taken[:, first:].T))
        self._interrupt(lambda: self.end)

    def _queue(self, taken: Floats) -> None:
        """Let each trial wait for the slot that is free first; (trials, samples)."""
        interruptions = self._interruptions
        done = self.done.reshape(-1)
        if interruptions is None and self.done.shape[1] == 1:  # one after another
            taken[0] += done
            done[:] = np.add.reduce(taken, axis=0)
            return
        rows = np.arange(len(self.done)) * self.done.shape[1]
        for trial in taken:
            first = rows + self.done.argmin(axis=1)
            while interruptions is not None and interruptions.before(done[first]):
                first = rows + self.done.argmin(axis=1)
            done[first] += trial

    def _interrupt(self, until: Callable[[], Floats]) -> None:
        """Let all interruptions happen up to a time that they may delay."""
        if self._interruptions is None:
            return
        while self._interruptions.before(until()):
            continue


class _Interruptions:
    """The interruptions of a group's instances, each at its own random times.

    An interrupted instance is replaced at once. Its trials lose what they have trained since their
    last epoch, and continue from there, in their `resize`, when the new instance has booted.
    """

    def __init__(self, training: TrainingDraws, began: Floats) -> None:
        self._training = training
        self._pool = training.pool
        self._needed = instances_per_trial(training.group)
        launched = training.fleet.launched
        alive = np.maximum(launched, began[:, None])
        self._next = alive + training.dice.gaps(self._pool.lasts[:, None], *launched.shape)
        self._soonest = self._next.min(axis=1)
        self._drawn = np.ones(launched.shape, dtype=np.int64)

    def before(self, time: Floats) -> bool:
        """Let interruptions before a time happen, one per instance; return whether any did."""
        touched = np.flatnonzero(self._soonest < time)
        if len(touched) == 0:
            return False
        due = self._next[touched] < time[touched, None]
        if self._needed > 1:  # otherwise two at once may hit the same trial
            due &= self._next[touched] == self._soonest[touched, None]
        rows, places = np.nonzero(due)
        samples = touched[rows]
        at = self._next[samples, places]
        joined = self._replace(samples, places, at)
        hosts = places // self._needed < self._training.opened.shape[1]
        self._delay(samples[hosts], places[hosts] // self._needed, at[hosts], joined[hosts])
        self._soonest[touched] = self._next[touched].min(axis=1)
        return True

    def _replace(self, samples: Indices, places: Indices, at: Floats) -> Floats:
        """Bill interrupted instances and launch replacements; return when these join."""
        training = self._training
        fleet = training.fleet
        dice = training.dice
        profile = training.profile
        lived = at - fleet.launched[samples, places]
        np.add.at(training.dollars, samples, charge(fleet.offer, lived) + training.usd_per_launch)
        np.add.at(training.gpu_seconds, samples, lived * fleet.offer.gpus)
        launched = at + dice.few(profile.launch, len(at))
        if self._pool.outage is not None:
            launched += dice.gaps(self._pool.outage[samples], len(at))
        joined = launched + dice.few(profile.boot, len(at))
        fleet.launched[samples, places] = launched
        fleet.joined[samples, places] = joined
        self._drawn[samples, places] += 1
        enough = self._drawn[samples, places] > _MAX_INTERRUPTIONS
        gaps = dice.gaps(self._pool.lasts[samples], len(at))
        self._next[samples, places] = np.where(enough, np.inf, launched + gaps)
        return joined

    def _delay(self, samples: Indices, hosts: Indices, at: Floats, joined: Floats) -> None:
        """Delay the trials that an instance held or would have held."""
        training = self._training
        per = slots_per_instance(training.group)
        done = training.done.reshape(len(training.done), -1, per)
        opened = training.opened[samples, hosts]
        held = done[samples, hosts]
        trained = np.maximum(0.0, at - opened)[:, None]
        part = training.dice.shares(len(at), per) * training.epoch[samples, None]
        again = training.dice.few(training.profile.resize, len(at), per)
        later = np.where(
            at[:, None] < opened[:, None],
            np.maximum(0.0, joined - opened)[:, None],
            (joined - at)[:, None] + again + np.minimum(part, trained),
        )
        done[samples, hosts] = np.where(held > at[:, None], held + later, held)
        if training.group.offer.per_function:
            redone = again + np.minimum(part, trained)
            used = (held > at[:, None]) & (at[:, None] >= opened[:, None])
            more = np.zeros(training.dice.samples)
            np.add.at(more, samples, np.where(used, redone, 0.0).sum(axis=1))
            training.use(more)
        training.opened[samples, hosts] = np.maximum(opened, joined)
