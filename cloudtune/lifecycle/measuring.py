"""Measuring an experiment's script: a separate run, on as many instances as a trial may span."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cloudtune.clock import unix_time
from cloudtune.engine.loop import EventListener
from cloudtune.errors import CleanupError, CloudtuneError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast.make import LEASE_GRACE_SECONDS
from cloudtune.forecast.problem import instance_types, load_catalog, select_markets
from cloudtune.infra.provider import find_provider
from cloudtune.lifecycle.data import with_data
from cloudtune.lifecycle.outcomes import Measured
from cloudtune.lifecycle.removal import MEASURE, clear
from cloudtune.lifecycle.runner import Runner, open_cloud, preflight, record_place
from cloudtune.lifecycle.variables import take
from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Limits
from cloudtune.model.scaling import EMULATED, Provenance, ScalingProfile
from cloudtune.model.trial import Parallel, Width
from cloudtune.policy.measure import MeasurePolicy
from cloudtune.profiles import measurements, store
from cloudtune.profiles.packing import pack_shares
from cloudtune.profiles.priors import prior
from cloudtune.profiles.unmeasured import REFERENCE, prior_profile
from cloudtune.runs import control, home
from cloudtune.runs.identity import identify
from cloudtune.runs.job import read_charges, read_rules, trials
from cloudtune.train.storage import LOGS, StorageError, tell

# The maximum time for an instance to join, and for the first epoch, without a deadline.
FIRST_EPOCH_SECONDS = 3600.0
# An upper bound without a deadline, until the first epoch sets one.
_LONGEST_SECONDS = 30 * 86400.0


def measure(
    experiment: Experiment,
    instance_type: str,
    on_event: EventListener,
    *,
    pace: bool,
    limits: Limits,
    epochs: int = 4,
    pack: int | Literal["auto"] = 1,
    only_known: bool = False,
    widths: Sequence[int] = (),
    share: float = 1.0,
    core_seconds: float | None = None,
    enough_usd: float = math.inf,
    parallel: Sequence[Parallel] = (),
) -> Measured:
    """Measure an experiment's script within these limits, on instances of one type.

    `widths` (by default 1, 2, 4 … and all GPUs of an instance) beyond one instance take several.
    Measuring isn't paced. If runs will `pace`, and the provider has a pace, the profile is that of
    the pace: it starts from the time of an epoch on one core of this machine, which is timed first
    unless it is known (`core_seconds`).

    Widths above one GPU are measured with each strategy of `parallel`, if any is given.

    Up to `pack` trials share a GPU. With "auto" two do, and both measurements predict how many more
    are worth it (`packing`). With `only_known` none do if the memory of one is unknown. Fewer than
    `epochs` epochs per width are measured if they would take more than a `share` of what the limits
    leave. Once an epoch has been timed, no more than `enough_usd` dollars are spent.

    Raises:
        UsageError: the instance has fewer GPUs than a trial needs, or can't provide a width.
        CloudtuneError: it couldn't be measured; the message says why.
        NoCapacityError: the cloud has no such instance now.
    """
    began = unix_time()
    market = select_markets(experiment)[0]  # on-demand, if allowed: an interruption spoils it
    offer = load_catalog(experiment, (market,)).offer(instance_type, market)
    provider = find_provider(experiment.cloud.provider)
    paced = pace and provider.paced
    auto = pack == "auto"
    if auto and widths and not experiment.trial.gpus.min:
        widths = (1, *widths)  # to compare two on a GPU with
    measured_widths = widths_to_measure(experiment, offer, widths)
    gpus = offer.gpus * measurements.count_instances(max(measured_widths), offer.gpus)
    shared = 2 if pack == "auto" else pack
    count = max(measurements.TRIES * gpus * shared, experiment.trials or 0)
    policy = MeasurePolicy(
        trials=trials(experiment.model_copy(update={"trials": count})),
        offer=offer,
        limits=limits,
        widths=measured_widths,
        epochs=epochs,
        pack=1 if experiment.trial.gpus.min else shared,
        charges=read_charges(experiment),
        rules=read_rules(experiment),
        # A command may contain its last epoch, and end there.
        max_epochs=experiment.span.max if experiment.runs_command else None,
        only_known=only_known,
        alone=paced and core_seconds is None,
        patience=FIRST_EPOCH_SECONDS,
        share=share,
        enough_usd=enough_usd,
        parallel=parallel,
    )
    variables = take(experiment)
    preflight(experiment, offers=(offer,))
    experiment = with_data(experiment)
    cloud = open_cloud(experiment, pace=False)
    folder = home.new_run(experiment.name + home.PROFILE_TAIL)
    lease = (limits.deadline or _LONGEST_SECONDS) + LEASE_GRACE_SECONDS
    runner = Runner(
        folder=folder,
        experiment=experiment,
        offers=(offer,),
        cloud=cloud,
        began=began,
        lease_seconds=lease,
        lease_end=began + lease,
        join_seconds=min(lease, FIRST_EPOCH_SECONDS),
        last_epoch=policy.last_epoch,
        variables=variables,
    )
    with control.driving(folder, record_place(experiment)):
        header = {"measure": experiment.to_json()}
        swept = runner.go(policy, folder / MEASURE, header, on_event)
    _clear_storage(home.run_storage(experiment.storage, folder.name))
    try:
        policy.raise_failure()
    except CloudtuneError as error:
        raise (swept.unconfirmed or error) from error
    profile = _build_profile(experiment, policy, began)
    if paced:
        profile = provider.paced_profile(profile, core_seconds or policy.figures.core_seconds)
    notes = list(_notes(policy))
    if auto:  # an emulated GPU has no memory
        gpu_memory_mib = 0 if provider.paced else offer.instance_type.gpu_memory_mib
        profile, note = pack_shares(profile, gpu_memory_mib)
        notes += [note] if note else []
    if swept.unconfirmed is not None:
        text = f"{swept.unconfirmed}\nThe script was measured all the same; kept in "
        raise CleanupError(text + str(keep_profile(profile)), swept.unconfirmed.instance_ids)
    cut = policy.ending if policy.cut_short else None
    return Measured(profile, policy.fleet.dollars(unix_time() - began), tuple(notes), cut)


def timed_profile(experiment: Experiment, core_seconds: float) -> ScalingProfile:
    """Return the profile of a script on an emulated instance; an epoch took so long on one core.

    Everything else is the emulator's pace, and the delays that are usual on this machine.
    """
    provider = find_provider(experiment.cloud.provider)
    machine = max(
        instance_types(experiment), key=lambda kind: (kind.gpu_model == REFERENCE, kind.gpus)
    )
    unpaced = prior_profile(
        machine,
        epoch_seconds=core_seconds,
        error=prior("speed of other configurations", provider.name).between,
        delays=provider.usual_delays(),
    )
    paced = provider.paced_profile(unpaced, core_seconds)
    return replace(
        paced,
        script_hash=store.script_hash(experiment.train_file),
        measured_at=_now_text(unix_time()),
        identity=identify(experiment),
    )


def _now_text(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _clear_storage(uri: str) -> None:
    """Delete the checkpoints of a finished measurement: nothing resumes from them."""
    try:
        clear(uri, keep=LOGS)  # the output of trials stays
    except StorageError as error:
        tell(f"the measurement's checkpoints could not be deleted: {error}")


def _build_profile(experiment: Experiment, policy: MeasurePolicy, began: float) -> ScalingProfile:
    """Return the measured profile; on a machine without real GPUs it is emulated."""
    provider = find_provider(experiment.cloud.provider)
    unpaced = ", unpaced" * provider.paced
    sources = (f"measured on {experiment.cloud.provider} cloud{unpaced}", policy.left_out)
    profile = policy.figures.profile(
        policy.offer.instance_type.name,
        store.script_hash(experiment.train_file),
        _now_text(began),
        "; ".join(filter(None, sources)),
    )
    profile = replace(profile, identity=identify(experiment))
    emulated = Provenance(EMULATED, why="this machine's CPU")
    return replace(profile, provenance=emulated) if provider.paced else profile


def widths_to_measure(
    experiment: Experiment, offer: Offer, asked: Sequence[int] = ()
) -> tuple[Width, ...]:
    """Return the widths to measure on instances of an offer, ascending.

    The requested ones; or else 1, 2, 4 … and all GPUs of one instance, within `trial.gpus`.

    Raises:
        UsageError: no width may be measured, or a requested one can't be.
    """
    bounds = experiment.trial.gpus
    name = offer.instance_type.name
    for width in asked:
        _check_width(width, experiment, offer)
    widths = tuple(map(float, sorted(set(asked)))) or measurements.widths_to_measure(
        offer.gpus, bounds.min or 1, bounds.max
    )
    if not widths:
        raise UsageError(
            f"{name} has {offer.gpus} GPUs, and trial.gpus.min is {bounds.min}; name larger "
            "instances, or lower it"
        )
    return widths


def _check_width(width: int, experiment: Experiment, offer: Offer) -> None:
    bounds = experiment.trial.gpus
    name = offer.instance_type.name
    least = bounds.min or 1
    most = math.inf if bounds.max is None else bounds.max
    if not least <= width <= most:
        raise UsageError(f"--widths {width}: trial.gpus of the experiment doesn't allow that width")
    instances = measurements.count_instances(width, offer.gpus)
    if instances > 1 and width % offer.gpus:
        raise UsageError(
            f"--widths {width}: {name} has {offer.gpus} GPUs, and a trial on several instances has "
            f"all of theirs: {width - width % offer.gpus} or {instances * offer.gpus}"
        )
    cap = experiment.cloud.max_instances
    if cap is not None and instances > cap:
        raise UsageError(
            f"--widths {width}: that takes {instances} {name}, and cloud.max_instances is {cap}"
        )


def _notes(policy: MeasurePolicy) -> Iterator[str]:
    """Yield notes on a usable measurement."""
    yield from map(str, policy.failed)
    yield from policy.figures.comparisons()
    if policy.cut_short:
        widths = ", ".join(f"{width:g}" for width in sorted(policy.figures.epoch))
        yield f"{policy.cut_short}; what was measured by then is kept: widths {widths}"
    if not policy.saves:
        yield "the script saves no checkpoints: no trial is moved, or widened, once it has begun"


def keep_profile(profile: ScalingProfile) -> Path:
    """Save a profile in this machine's store; return its path."""
    return store.keep(home.home() / "profiles", profile)
