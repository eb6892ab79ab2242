"""What there is to rent for an experiment, at which prices, and how its script runs there."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cloudtune.errors import UsageError
from cloudtune.infra.aws.spot_prior import spot_prior
from cloudtune.infra.provider import provider_named
from cloudtune.model.catalog import CPU, SpotBehaviour, SpotPools
from cloudtune.model.plans import Rentable
from cloudtune.model.providers import PROVIDERS
from cloudtune.model.scaling import EMULATED, PUBLISHED, Measurement
from cloudtune.model.text import width_text
from cloudtune.planning.stages import (
    Problem,
)
from cloudtune.policy.registry import STAYING
from cloudtune.profiles import store
from cloudtune.profiles.observed_timings import informed
from cloudtune.profiles.priors import believed
from cloudtune.runs import history, home
from cloudtune.runs.identity import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cloudtune.experiment import Experiment
    from cloudtune.model.catalog import Catalog, InstanceType, Market
    from cloudtune.model.scaling import ScalingProfile


_FETCH = Measurement(26.0, 10.0)
"""Seconds to fetch and unpack 2.9 GB, torch with its CUDA, on two cores (docs/aws.md, 2026-11)."""


def markets_of(experiment: Experiment) -> tuple[Market, ...]:
    """Return the markets that an experiment may rent on."""
    market = experiment.cloud.market
    return ("on-demand", "spot") if market == "any" else (market,)


def catalog_of(experiment: Experiment, markets: tuple[Market, ...] | None = None) -> Catalog:
    """Return the prices that apply to an experiment, as its provider has them, and its charges.

    Raises:
        UsageError: a budget could not be kept, as nobody knows the region's prices.
    """
    cloud = experiment.cloud
    provider = provider_named(cloud.provider)
    found = provider.catalog(cloud, markets or markets_of(experiment), home.home())
    added, billing = experiment.charges.per_instance_hour or 0.0, cloud.billing
    offers = tuple(replace(each, added_usd_per_hour=added) for each in found.offers)
    if billing.unit is not None:
        offers = tuple(each.billed(billing.unit, billing.minimum) for each in offers)
    return replace(found, offers=offers)


def stored_profiles(
    experiment: Experiment, given: str | None = None, types: Sequence[InstanceType] | None = None
) -> list[ScalingProfile]:
    """Return the usable profiles of what an experiment runs, on its instance types.

    Where GPUs are real, one of emulated seconds is none, unless it is named. What has changed since
    the script was measured is said on standard error.
    """
    found = store.resolve(
        given,
        store.script_hash(experiment.train_file),
        instance_types(experiment) if types is None else types,
        store=home.home() / "profiles",
        beside=experiment.directory,
        identity=identity_of(experiment),
        note=lambda line: sys.stderr.write(f"note: {line}\n"),
    )
    if given is not None or provider_named(experiment.cloud.provider).paced:
        return found
    return [profile for profile in found if profile.provenance.origin != EMULATED]


def instance_types(experiment: Experiment) -> list[InstanceType]:
    """Return the instance types that an experiment names, patterns resolved."""
    return provider_named(experiment.cloud.provider).instance_types(experiment.cloud)


def problem_of(
    experiment: Experiment,
    profiles: Sequence[ScalingProfile],
    markets: tuple[Market, ...] | None = None,
) -> Problem:
    """Return what there is to choose from; where a type wasn't measured, derived if possible.

    Shares of a GPU at which the trials have no room in its memory are none of it. What few
    measurements can't tell of a profile's spread is assumed. What earlier runs of the script saw is
    in the profiles.
    """
    catalog, wanted = catalog_of(experiment, markets), markets or markets_of(experiment)
    offers = catalog.matching(experiment.cloud.instances, wanted, experiment.cloud.zones)
    provider, times = provider_named(experiment.cloud.provider), history.times_of(experiment)
    known = provider.known_types()
    spot = spot_pools(experiment) if "spot" in wanted else {}
    told = partial(
        informed,
        runs=times.runs,
        where=experiment.cloud.provider,
        paced=provider.paced,
        script=store.script_hash(experiment.train_file) if times.runs else "",
    )
    profiles, fetched = _with_fetch(profiles, experiment)
    sources = [told(each, machine=each.instance_type, market=wanted[0]) for each in profiles]
    by_type: dict[str, ScalingProfile | None] = {each.instance_type: each for each in profiles}
    found: list[Rentable] = []
    notes = [*times.notes, *fetched, *_begun_again(experiment), *_unproved(profiles)]
    for offer in offers:
        machine = offer.instance_type
        if machine.gpu == CPU:
            notes.append(f"{machine.name} has no GPU: what is called one here is a slot of its CPU")
        if machine.name not in by_type:
            by_type[machine.name] = _derived(machine, sources, known)
        here = told(by_type[machine.name], machine=machine.name, market=offer.market)
        if here is None:
            continue
        profile, note = _with_room(here, machine)
        notes += note
        allowed = [width for width in profile.widths if experiment.trial.gpus.allow(width)]
        if profile.widths and not allowed:
            notes.append(_none_allowed(profile, experiment))
        if len(allowed) < len(profile.widths):
            profile = profile.only(allowed)
        if profile.widths:
            profile = believed(profile, experiment.cloud.provider)
            found.append(on_spot(Rentable(offer, profile, experiment.cloud.max_instances), spot))
    past = history.past_of(experiment)
    return Problem(experiment, catalog, tuple(found), tuple(dict.fromkeys(notes)), past)


def _unproved(profiles: Sequence[ScalingProfile]) -> Iterator[str]:
    """Yield a line if any of these know of the script's own file alone what it was."""
    old = [each.instance_type for each in profiles if each.script_hash and not each.identity]
    if old:
        yield f"{', '.join(old)}: measured by an earlier cloudtune; only the script was compared"


def _with_fetch(
    profiles: Sequence[ScalingProfile], experiment: Experiment
) -> tuple[list[ScalingProfile], Sequence[str]]:
    """Return profiles whose boots have the fetch of an environment; a note where that was added.

    What was measured has it. Published figures are of machines that fetched nothing.
    """
    if not experiment.setup.builds or PROVIDERS[experiment.cloud.provider].here:
        return list(profiles), ()
    found = [
        replace(each, boot=_sum(each.boot, _FETCH)) if each.provenance.origin == PUBLISHED else each
        for each in profiles
    ]
    note = (
        f"setup: published figures know nothing of it; {_FETCH.mean:g} ± {_FETCH.sd:g} s more of "
        "each boot are assumed to fetch the environment, until it is measured"
    )
    return found, () if found == list(profiles) else (note,)


def _sum(one: Measurement, other: Measurement) -> Measurement:
    return Measurement(one.mean + other.mean, math.hypot(one.sd, other.sd))


def spot_pools(experiment: Experiment) -> dict[str, SpotPools]:
    """Return how spot pools may behave, by zone; "" is for every zone that isn't named.

    As the experiment says, else by what the account's own data tells, else as public traces did.
    """
    said, cloud = experiment.cloud.spot, experiment.cloud
    if said.losses_per_hour is not None and said.availability is not None:
        return {"": SpotPools("", (SpotBehaviour(said.losses_per_hour, said.availability),), "")}
    own = provider_named(cloud.provider).spot_pools(cloud, home.home())
    return {"": SpotPools("", spot_prior(), ""), **{each.zone: each for each in own}}


def on_spot(rentable: Rentable, pools: Mapping[str, SpotPools]) -> Rentable:
    """Return a rentable whose spot pool may behave so; one on demand as it is."""
    if rentable.offer.market != "spot":
        return rentable
    found = pools.get(rentable.offer.zone) or pools[""]
    ways = found.behaviours
    losses = math.fsum(each.losses_per_hour for each in ways) / len(ways)
    offer = replace(rentable.offer, interruptions_per_hour=round(losses, 6))
    return replace(rentable, offer=offer, behaviours=ways, behaviours_from=found.source)


def _none_allowed(profile: ScalingProfile, experiment: Experiment) -> str:
    """Return what is told where a profile has no width that the experiment lets a trial have."""
    widths = ", ".join(width_text(width) for width in profile.widths)
    asked = experiment.trial.gpus
    bounds = f"{asked.min or 'any'} to {asked.max or 'any'}"
    return f"{profile.instance_type}: measured at {widths} GPUs, and trial.gpus allows {bounds}"


def _with_room(
    profile: ScalingProfile, machine: InstanceType
) -> tuple[ScalingProfile, Sequence[str]]:
    """Return a profile with the widths that fit into a type's GPUs; a note where others don't."""
    room = machine.gpu_memory_mib
    fitting = [width for width in profile.widths if profile.fits(width, room)]
    crowded = [width_text(width) for width in profile.widths if width not in fitting]
    if not crowded:
        return profile, ()
    widths = ", ".join(reversed(crowded))
    note = f"{machine.name}: no trials at {widths} of a GPU, whose {room:,} MiB they would exceed"
    return profile.only(fitting), (note,)


def _derived(
    machine: InstanceType,
    profiles: Sequence[ScalingProfile | None],
    known: Mapping[str, InstanceType],
) -> ScalingProfile | None:
    """Return the surest of the profiles that follow from those of other types."""
    from cloudtune.profiles.ratios import derive  # noqa: PLC0415  rarely needed

    there = (each for each in profiles if each is not None and each.instance_type in known)
    derived = (derive(each, known[each.instance_type], machine) for each in there)
    found = [each for each in derived if each is not None]
    return min(found, key=lambda each: each.error, default=None)


def _begun_again(experiment: Experiment) -> Iterator[str]:
    """Yield what pauses cost where a trial has nothing to resume from."""
    name = experiment.strategy_name
    if not experiment.can_resume and name not in STAYING:
        yield (
            f"the command has no checkpoints, and {name} pauses trials: each begins again at its "
            f"first epoch, which this plan doesn't count; say checkpoints: {{folder: …}}, or take "
            "--strategy asha-stopping"
        )


def no_profile(experiment: Experiment, notes: Sequence[str] = ()) -> UsageError:
    """Return the error for a plan that has nothing to go by; `notes` say what was no use to it."""
    types = ", ".join(machine.name for machine in instance_types(experiment))
    return UsageError(
        f"no profile of {experiment.train_file} on {types}, and planning rents nothing: `cloudtune "
        "run` measures it first, within the same limits, and `cloudtune profile` does that alone; "
        "or plan with a file, --profile FILE, or with published figures, as in --profile "
        "resnet50-cifar10@v100 (docs/profiles.md lists them)"
        + "".join(f"\n{note}" for note in notes)
    )
