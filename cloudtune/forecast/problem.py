"""What an experiment may rent, at which prices, and how its script runs there."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast.assumed import assumed_profiles
from cloudtune.forecast.choice import (
    choice_text,
    fleet_bounds,
    in_the_way,
    left_out,
    shared_offers,
    within_bounds,
)
from cloudtune.forecast.staged_plans import Problem
from cloudtune.infra.aws.spot_prior import spot_prior
from cloudtune.infra.provider import find_provider
from cloudtune.model.catalog import CPU, Catalog, InstanceType, Market, Offer, SpotBehaviour
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.providers import PROVIDERS
from cloudtune.model.scaling import ASSUMED, EMULATED, PUBLISHED, Measurement, ScalingProfile
from cloudtune.model.text import gpus_text, width_text
from cloudtune.model.units import format_seconds
from cloudtune.policy.registry import STRATEGIES
from cloudtune.profiles import store
from cloudtune.profiles.observed_timings import RunTimes, with_earlier_runs
from cloudtune.profiles.priors import add_spreads
from cloudtune.runs import history, home
from cloudtune.runs.control import to_stderr
from cloudtune.runs.identity import identify
from cloudtune.script.functions import names_checkpoints

# More instances of an offer than any fleet has.
_NO_BOUND = 10_000
# Seconds to fetch and unpack 2.9 GB, torch with its CUDA, on two cores (docs/aws.md, 2026-11).
_FETCH = Measurement(26.0, 10.0)
# Seconds to copy a gigabyte of data: a gp3 volume takes 125 MB/s (EBS user guide, 2026-11).
_COPY = Measurement(8.0, 3.0)
# Instance types that a line names before it counts the others.
_NAMED = 3


def select_markets(experiment: Experiment) -> tuple[Market, ...]:
    """Return the markets that an experiment may rent on."""
    market = experiment.cloud.market
    return ("on-demand", "spot") if market == "any" else (market,)


def load_catalog(experiment: Experiment, markets: tuple[Market, ...] | None = None) -> Catalog:
    """Return the provider's prices for an experiment, including its charges.

    Raises:
        UsageError: a budget could not be kept, because the region's prices are unknown.
    """
    cloud = experiment.cloud
    provider = find_provider(cloud.provider)
    catalog = provider.catalog(cloud, markets or select_markets(experiment), home.home())
    added = experiment.charges.per_instance_hour or 0.0
    billing = cloud.billing
    in_gpu_hours = cloud.counts_gpu_hours and not experiment.charges.any
    offers = tuple(
        replace(offer, added_usd_per_hour=added, in_gpu_hours=in_gpu_hours)
        for offer in catalog.offers
    )
    if billing.unit is not None:
        offers = tuple(offer.with_billing(billing.unit, billing.minimum) for offer in offers)
    return replace(catalog, offers=offers)


def stored_profiles(
    experiment: Experiment,
    given: str | None = None,
    note: Callable[[str], object] = lambda line: to_stderr(f"note: {line}"),
) -> list[ScalingProfile]:
    """Return the usable profiles of an experiment's script on its instance types.

    If GPUs are real, emulated profiles don't count unless they are named. `note` is called with
    what has changed since the script was measured; by default it goes to standard error.
    """
    profiles = store.resolve(
        given,
        store.script_hash(experiment.train_file),
        instance_types(experiment),
        store=home.home() / "profiles",
        beside=experiment.directory,
        identity=identify(experiment),
        note=note,
    )
    if given is not None or find_provider(experiment.cloud.provider).paced:
        return profiles
    return [profile for profile in profiles if profile.provenance.origin != EMULATED]


def instance_types(experiment: Experiment) -> list[InstanceType]:
    """Return the instance types that an experiment names, patterns resolved."""
    return find_provider(experiment.cloud.provider).instance_types(experiment.cloud)


def build_problem(
    experiment: Experiment,
    profiles: Sequence[ScalingProfile],
    markets: tuple[Market, ...] | None = None,
) -> Problem:
    """Return the rentables to choose from; profiles of unmeasured types are derived if possible.

    A script without any profile or earlier run has assumed ones. Shares of a GPU with too little
    memory for the trials are left out. Spreads that few measurements can't show are assumed. The
    profiles include what earlier runs of the script saw.
    """
    catalog = load_catalog(experiment, markets)
    markets = markets or select_markets(experiment)
    settings = experiment.cloud
    named = catalog.matching(settings.instances, markets, settings.zones)
    offers = shared_offers(experiment, named)
    rentables, notes = _rentables(experiment, profiles, offers, markets)
    if rentables and "instances" in settings.model_fields_set:
        compared = {rentable.offer.instance_type for rentable in rentables}
        notes += _unfit(catalog, experiment)
        notes += _incomparable([o.instance_type for o in offers if o.instance_type not in compared])
    present, absent = _with_capacity(rentables, experiment)
    limits = Limits(experiment.limits.deadline, experiment.limits.budget)
    bounds = fleet_bounds(experiment, present, limits)
    usable = within_bounds(present, bounds)
    chosen_from = [
        choice_text(experiment, offers, usable),
        in_the_way(present, limits, bounds, experiment.span.max),
    ]
    return Problem(
        bounds.apply(experiment),
        catalog,
        usable,
        tuple(dict.fromkeys([*notes, *absent, *left_out(present, usable)])),
        find_provider(settings.provider).occupancy(settings),
        tuple(filter(None, chosen_from)),
        _no_model_note(experiment),
    )


def _rentables(
    experiment: Experiment,
    profiles: Sequence[ScalingProfile],
    offers: Sequence[Offer],
    markets: Sequence[Market],
) -> tuple[list[Rentable], list[str]]:
    """Return the offers on which the script's speed is known or derived, and notes on them."""
    provider = find_provider(experiment.cloud.provider)
    runs, time_notes = history.load_times(experiment)
    types = provider.known_types()
    waits = provider.waits(experiment)
    timed = partial(
        with_earlier_runs,
        runs=runs,
        where=experiment.cloud.provider,
        paced=provider.paced,
        script=store.script_hash(experiment.train_file) if runs else "",
    )
    machines = dict.fromkeys(offer.instance_type for offer in offers)
    seen = _seen_in_runs([machine.name for machine in machines], timed, markets[0])
    if not profiles and not seen:
        assumed = assumed_profiles(experiment, offers, provider)
        profiles = [assumed(machine) for machine in machines if machine.gpus >= 1]
    profiles, fetched = _with_fetch(profiles, experiment)
    sources = [
        timed(profile, machine=profile.instance_type, market=markets[0]) for profile in profiles
    ]
    by_type: dict[str, ScalingProfile | None] = {
        profile.instance_type: profile for profile in profiles
    }
    if not profiles:
        sources += seen.values()
        by_type |= dict.fromkeys(seen)
    rentables: list[Rentable] = []
    notes = [*time_notes, *fetched, *_about_experiment(experiment), *_imports_note(profiles)]
    for offer in offers:
        machine = offer.instance_type
        if machine.gpu == CPU:
            notes.append(f"{machine.name} has no GPU: what is called one here is a slot of its CPU")
        if machine.name not in by_type:
            by_type[machine.name] = _derive_profile(machine, sources, types)
        here = timed(by_type[machine.name], machine=machine.name, market=offer.market)
        if here is None:
            continue
        profile, note = _with_room(here, machine, runs)
        notes += [*note, *_strategies(profile)]
        profile, note = _restrict_widths(profile, experiment)
        notes += note
        if profile.widths:
            profile = add_spreads(profile, experiment.cloud.provider)
            profile, note = _with_wait(profile, machine, waits.get(machine.name, 0.0))
            notes += note
            rentables.append(_on_spot(Rentable(offer, profile, _NO_BOUND), experiment))
    return rentables, notes


def _seen_in_runs(
    names: Sequence[str], timed: Callable[..., ScalingProfile | None], market: Market
) -> dict[str, ScalingProfile]:
    """Return the profiles that earlier runs alone give, by instance type."""
    profiles = {name: timed(None, machine=name, market=market) for name in names}
    return {name: profile for name, profile in profiles.items() if profile is not None}


def _with_capacity(
    rentables: Sequence[Rentable], experiment: Experiment
) -> tuple[list[Rentable], list[str]]:
    """Return rentables of which no more may be rented than there are, and notes on the others."""
    names = tuple(rentable.offer.instance_type.name for rentable in rentables)
    settings = experiment.cloud.model_copy(update={"instances": names})
    capacity = find_provider(settings.provider).capacity(settings)
    present = []
    notes = []
    for rentable in rentables:
        name = rentable.offer.instance_type.name
        count = min(rentable.most, capacity.get(name, rentable.most))
        if count:
            present.append(replace(rentable, most=count))
        else:
            notes.append(f"{name}: its machines are planned as another type, too, and count once")
    return present, notes


def _unfit(catalog: Catalog, experiment: Experiment) -> Iterator[str]:
    """Yield which types that the experiment names are never offered, by reason."""
    patterns = experiment.cloud.instances
    offered = {offer.instance_type.name for offer in catalog.offers}
    by_reason: dict[str, list[str]] = {}
    for name, reason in catalog.unfit.items():
        if name not in offered and any(fnmatchcase(name, pattern) for pattern in patterns):
            by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        yield f"not among the offers: {_some(names)}: {reason}"


def _incomparable(machines: Sequence[InstanceType]) -> Iterator[str]:
    """Yield the types without a profile, by GPU."""
    by_gpu: dict[str, dict[str, None]] = {}
    for machine in machines:
        by_gpu.setdefault(machine.gpu, {})[machine.name] = None
    for gpu, names in by_gpu.items():
        yield (
            f"not among the offers: {_some(list(names))}: nothing compares a {gpu} with "
            "the GPUs that were measured"
        )


def _some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more types" if more > 0 else "")


def _imports_note(profiles: Sequence[ScalingProfile]) -> Iterator[str]:
    """Yield a line if any profile only records the script's own file, not its imports."""
    old = [
        profile.instance_type
        for profile in profiles
        if profile.script_hash and not profile.identity
    ]
    if old:
        yield f"{', '.join(old)}: measured by an earlier cloudtune; only the script was compared"


def _with_fetch(
    profiles: Sequence[ScalingProfile], experiment: Experiment
) -> tuple[list[ScalingProfile], Sequence[str]]:
    """Return profiles whose boots include fetching environment and data, with notes if added.

    Measured boots include both. Published figures are of machines that fetched nothing.
    """
    added: list[tuple[str, str, Measurement]] = []
    if experiment.setup.builds and PROVIDERS[experiment.cloud.provider].fetches:
        added.append(("setup", "fetch the environment", _FETCH))
    size = experiment.charges.data
    if experiment.data and size is not None:
        copying = Measurement(_COPY.mean * size.gb, _COPY.sd * size.gb)
        added.append(("data", f"copy {size.gb:.3g} GB", copying))
    fetching = list(profiles)
    notes = []
    for what, work, seconds in added:
        before = fetching
        fetching = [
            replace(profile, boot=_sum(profile.boot, seconds))
            if profile.provenance.origin in {PUBLISHED, ASSUMED}
            else profile
            for profile in before
        ]
        if fetching != before:
            notes.append(
                f"{what}: published figures don't include it; {seconds.mean:.3g} ± "
                f"{seconds.sd:.3g} s more of each boot are assumed to {work}, until it is measured"
            )
    return fetching, notes


def _sum(left: Measurement, right: Measurement) -> Measurement:
    return Measurement(left.mean + right.mean, math.hypot(left.sd, right.sd))


def _on_spot(rentable: Rentable, experiment: Experiment) -> Rentable:
    """Return a rentable with the behaviours of its spot pool; an on-demand one unchanged.

    They come from the experiment, or else from public traces.
    """
    if not rentable.offer.spot:
        return rentable
    spot = experiment.cloud.spot
    ways = spot_prior()
    if spot.losses_per_hour is not None and spot.availability is not None:
        ways = (SpotBehaviour(spot.losses_per_hour, spot.availability),)
    losses = math.fsum(way.losses_per_hour for way in ways) / len(ways)
    offer = replace(rentable.offer, interruptions_per_hour=round(losses, 6))
    return replace(rentable, offer=offer, behaviours=ways)


def _strategies(profile: ScalingProfile) -> Iterator[str]:
    """Yield how trials on several GPUs share a model, if that was measured."""
    wide = [width for width in profile.widths if width > 1 and width in profile.parallel]
    if wide:
        texts = ", ".join(gpus_text(width, profile.parallel[width]) for width in wide)
        yield f"{profile.instance_type}: trials on {texts}"


def _restrict_widths(
    profile: ScalingProfile, experiment: Experiment
) -> tuple[ScalingProfile, Sequence[str]]:
    """Return a profile with the widths that the experiment allows, and a note if there are none."""
    asked = experiment.trial.gpus
    allowed = [width for width in profile.widths if asked.allow(width)]
    if allowed or not profile.widths:
        return profile.only(allowed), ()
    widths = ", ".join(width_text(width) for width in profile.widths)
    bounds = f"{asked.min or 'any'} to {asked.max or 'any'}"
    note = f"{profile.instance_type}: measured at {widths} GPUs, and trial.gpus allows {bounds}"
    return profile.only(allowed), (note,)


def _with_room(
    profile: ScalingProfile, machine: InstanceType, runs: Sequence[RunTimes] = ()
) -> tuple[ScalingProfile, Sequence[str]]:
    """Return a profile with the widths that fit into a type's GPUs, and notes on the others.

    Shares at which trials of earlier runs ran out of memory don't fit, unless there are no others.
    """
    room = machine.gpu_memory_mib
    crowds = [(w, run.run) for run in runs for name, w in run.crowded if name == machine.name]
    share, run = max(crowds, default=(0.0, ""))
    wide = [width for width in profile.widths if width > share] or profile.widths
    fitting = [width for width in wide if profile.fits(width, room)]
    notes = []
    for kept, before, why in (
        (wide, profile.widths, f": in {run} one ran out of memory at {width_text(share)}"),
        (fitting, wide, f", whose {room:,} MiB they would exceed"),
    ):
        if crowded := [width_text(width) for width in reversed(before) if width not in kept]:
            notes.append(f"{machine.name}: no trials at {', '.join(crowded)} of a GPU{why}")
    return (profile.only(fitting), notes) if notes else (profile, ())


def _with_wait(
    profile: ScalingProfile, machine: InstanceType, wait: float
) -> tuple[ScalingProfile, Sequence[str]]:
    """Return a profile whose launches include the predicted wait in a queue, and a note."""
    if wait <= profile.launch.mean:
        return profile, ()
    note = f"{machine.name}: the queue lets the next instance start in {format_seconds(wait)}"
    return replace(profile, launch=Measurement(wait, profile.launch.sd)), (note,)


def _derive_profile(
    machine: InstanceType,
    profiles: Sequence[ScalingProfile | None],
    types: Mapping[str, InstanceType],
) -> ScalingProfile | None:
    """Return the most certain profile derived from those of other types."""
    from cloudtune.profiles.ratios import derive  # noqa: PLC0415  rarely needed

    convertible = (
        profile for profile in profiles if profile is not None and profile.instance_type in types
    )
    derived = (derive(profile, types[profile.instance_type], machine) for profile in convertible)
    candidates = [profile for profile in derived if profile is not None]
    return min(candidates, key=lambda profile: profile.speed_error, default=None)


def _about_experiment(experiment: Experiment) -> Iterator[str]:
    """Yield what dollars stand for beside charges, and what pauses cost without checkpoints."""
    if experiment.cloud.counts_gpu_hours and experiment.charges.any:
        yield "$1 stands for a GPU-hour, beside the dollars of charges"
    name = experiment.strategy_name
    if not experiment.can_resume and STRATEGIES[name].pauses:
        yield (
            f"trials resume from no checkpoints, and {name} pauses trials: each begins again at "
            "its first epoch, which this plan doesn't count; keep checkpoints (cloudtune docs "
            "scripts), or take --strategy asha-stopping"
        )


def _no_model_note(experiment: Experiment) -> str:
    """Return that no model can be kept, and what to do; "" if one may be."""
    if not experiment.keeps_models:
        return (
            "the best model isn't kept: the script saves nothing we see; say checkpoints: "
            "{folder: …}, the folder that it saves in, or . if it saves beside itself"
        )
    if experiment.runs_command or names_checkpoints(experiment.train_folder):
        return ""
    return (
        "the best model isn't kept: nothing beside the function names a cloudtune.Checkpoint; "
        "cloudtune.report(metrics, checkpoint=…) keeps one"
    )


def shared_cores(problem: Problem) -> int | None:
    """Return the cores on which commands start if all machines share them, else None.

    Importing torch is work, and emulated machines share this machine's cores for it. Times seen in
    earlier runs already include the waits.
    """
    experiment = problem.experiment
    if not experiment.runs_command or any(it.profile.seen for it in problem.rentables):
        return None
    return find_provider(experiment.cloud.provider).shared_cores()


def nothing_to_plan(experiment: Experiment, notes: Sequence[str] = ()) -> UsageError:
    """Return the error for a plan on no instance type; `notes` say why they can't be used."""
    names = _some([machine.name for machine in instance_types(experiment)])
    return UsageError(
        "\n".join(
            [f"{experiment.train_file} can't be planned on {names}; nothing else is named", *notes]
        )
    )
