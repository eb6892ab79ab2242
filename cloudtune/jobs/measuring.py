"""Measuring an experiment's script: a run of its own, on one instance of a type."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cloudtune.errors import CleanupError, CloudtuneError, UsageError
from cloudtune.infra.provider import provider_named
from cloudtune.jobs import control, home
from cloudtune.jobs.job import charges_of, rules_of, trials
from cloudtune.jobs.planning import LEASE_GRACE_SECONDS, catalog_of, markets_of
from cloudtune.jobs.runner import Runner, check_storage, open_cloud, where_of
from cloudtune.policy.measure import MeasurePolicy
from cloudtune.profiles import store
from cloudtune.profiles.measurements import TRIES, MeasureError, widths_of
from cloudtune.scaling import EMULATED, Provenance
from cloudtune.trial import EndReason
from cloudtune.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cloudtune.catalog import Offer
    from cloudtune.experiment import Experiment
    from cloudtune.jobs.runner import Watch
    from cloudtune.plan import Limits
    from cloudtune.scaling import ScalingProfile
    from cloudtune.trial import Width

FIRST_EPOCH_SECONDS = 3600.0
"""What an instance may take to join, and the first epoch, where measuring has no deadline."""
_LONGEST_SECONDS = 30 * 86400.0
"""What measuring without a deadline never takes: its first epoch sets it one."""


@dataclass(frozen=True)
class Measured:
    """A script on one instance type, and the dollars that it took to measure it.

    `notes` say what isn't in the profile, and which configurations failed. `ending` is why it was
    cut short, if it was.
    """

    profile: ScalingProfile
    dollars: float
    notes: tuple[str, ...] = ()
    ending: EndReason | None = None


def measure(
    experiment: Experiment,
    instance_type: str,
    watch: Watch,
    *,
    pace: bool,
    limits: Limits,
    epochs: int = 4,
    pack: int = 1,
    share: float = 1.0,
    core_seconds: float | None = None,
) -> Measured:
    """Measure an experiment's script on one instance, within these limits.

    Nothing is paced meanwhile. Where `pace` is to be in runs, and the provider has a pace, the
    profile is that of the pace: it begins with what an epoch takes on one core of this machine,
    which is timed first unless it is known (`core_seconds`).

    Up to `pack` trials share a GPU. Fewer than so many `epochs` at each width are measured where
    they would take more than a `share` of what the limits leave.

    Raises:
        UsageError: the instance has fewer GPUs than a trial is to have.
        CloudtuneError: it couldn't be measured; the message says why.
        NoCapacityError: the cloud has no such instance now.
    """
    began = time.time()
    market = markets_of(experiment)[0]  # on-demand, if allowed: an interruption spoils it
    offer = catalog_of(experiment, (market,)).offer(instance_type, market)
    provider = provider_named(experiment.cloud.provider)
    paced = pace and provider.paced
    patience = FIRST_EPOCH_SECONDS * pack  # as much slower are its epochs, at the worst
    policy = MeasurePolicy(
        trials=trials(replace_trials(experiment, TRIES * max(offer.gpus, 1) * pack)),
        offer=offer,
        limits=limits,
        widths=_widths_to_measure(experiment, offer),
        epochs=epochs,
        pack=1 if experiment.trial.gpus.min else pack,
        alone=paced and core_seconds is None,
        charges=charges_of(experiment),
        rules=rules_of(experiment),
        patience=patience,
        share=share,
    )
    check_storage(experiment)
    cloud = open_cloud(experiment, pace=False)
    folder = home.new_run(f"{experiment.name}-profile")
    lease = (limits.deadline or _LONGEST_SECONDS) + LEASE_GRACE_SECONDS
    runner = Runner(
        folder=folder,
        experiment=experiment,
        offers=(offer,),
        cloud=cloud,
        began=began,
        lease_seconds=lease,
        lease_end=began + lease,
        join_seconds=min(lease, patience),
        last_epoch=policy.last_epoch,
    )
    with control.driving(folder, where_of(experiment)):
        header = {"measure": experiment.to_json()}
        swept = runner.go(policy, folder / "measure.jsonl", header, watch)
    try:
        _explain(policy, limits)
    except CloudtuneError as error:
        raise (swept.unconfirmed or error) from error
    profile = _profile_of(experiment, policy, began)
    if paced:
        profile = provider.paced_profile(profile, core_seconds or policy.figures.core_seconds)
    if swept.unconfirmed is not None:
        kept = keep_profile(profile)
        text = f"{swept.unconfirmed}\nThe script was measured all the same; kept in {kept}"
        raise CleanupError(text, swept.unconfirmed.instance_ids)
    cut = policy.ending if policy.cut_short else None
    dollars = policy.fleet.dollars(time.time() - began)
    return Measured(profile, dollars, tuple(_notes(policy)), cut)


def _profile_of(experiment: Experiment, policy: MeasurePolicy, began: float) -> ScalingProfile:
    """Return what was measured without a pace; on a machine without real GPUs that is emulated."""
    provider = provider_named(experiment.cloud.provider)
    unpaced = ", unpaced" * provider.paced
    told = (f"measured on {experiment.cloud.provider} cloud{unpaced}", policy.left_out)
    found = policy.figures.profile(
        policy.offer.instance_type.name,
        store.script_hash(experiment.train_file),
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "; ".join(filter(None, told)),
    )
    made = Provenance(EMULATED, why="this machine's CPU")
    return replace(found, provenance=made) if provider.paced else found


def _widths_to_measure(experiment: Experiment, offer: Offer) -> tuple[Width, ...]:
    bounds = experiment.trial.gpus
    widths = widths_of(offer.gpus, bounds.min or 1, bounds.max)
    if not widths:
        raise UsageError(
            f"{offer.instance_type.name} has {offer.gpus} GPUs, and trial.gpus.min is "
            f"{bounds.min}; name larger instances, or lower it"
        )
    return widths


def _explain(policy: MeasurePolicy, limits: Limits) -> None:
    """Pass if what was measured is of use; else say why, and what to do.

    Raises:
        CloudtuneError: it isn't.
    """
    try:
        policy.raise_if_failed()
    except MeasureError as error:
        if limits.deadline is not None or error.reason is not EndReason.DEADLINE:
            raise
        raise MeasureError(
            f"{error}: no epoch in {format_seconds(FIRST_EPOCH_SECONDS)}, which is what it may "
            "take where no deadline is set; give it more time, as in --deadline 6h",
            error.reason,
        ) from None


def _notes(policy: MeasurePolicy) -> Iterator[str]:
    """Yield what a person should know of a measurement that was of use."""
    yield from map(str, policy.failed)
    if policy.cut_short:
        widths = ", ".join(f"{width:g}" for width in sorted(policy.figures.epoch))
        yield f"{policy.cut_short}; what was measured by then is kept: widths {widths}"
    if not policy.saves:
        yield "the script saves no checkpoints: no trial is moved, or widened, once it has begun"


def replace_trials(experiment: Experiment, count: int) -> Experiment:
    """Return the experiment with at least so many trials, for measuring."""
    return experiment.model_copy(update={"trials": max(count, experiment.trials)})


def keep_profile(profile: ScalingProfile) -> Path:
    """Put a profile into this machine's store; returns where."""
    path = store.stored_path(home.home() / "profiles", profile.script_hash, profile.instance_type)
    store.write(path, [profile])
    return path
