"""Running policies on a cloud: opening it, driving them to their end, leaving nothing behind."""

import contextlib
import json
import os
import shutil
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from cloudtune.engine.ledger import FileLedger
from cloudtune.engine.loop import EventListener, run
from cloudtune.engine.resume import InFlight, resume
from cloudtune.errors import CleanupError, CloudtuneError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast.make import LEASE_GRACE_SECONDS, join_seconds, longest
from cloudtune.infra import sweep as sweeping
from cloudtune.infra.cluster.base import Rental
from cloudtune.infra.cluster.head import JOURNAL, RayHead
from cloudtune.infra.cluster.node_provider import Journal
from cloudtune.infra.cluster.world import CloudWorld
from cloudtune.infra.environments import ready as environments
from cloudtune.infra.environments.build import Built
from cloudtune.infra.environments.cache import is_there
from cloudtune.infra.environments.delivery import Delivery
from cloudtune.infra.node.messages import Training
from cloudtune.infra.node.variables import Variables
from cloudtune.infra.processes import write_atomically
from cloudtune.infra.provider import (
    Calls,
    Cloud,
    HeadOffer,
    Preflight,
    Provider,
    calls_to,
    find_provider,
)
from cloudtune.lifecycle.outcomes import Swept
from cloudtune.lifecycle.reporter import Reporter
from cloudtune.lifecycle.variables import take
from cloudtune.model.catalog import Offer
from cloudtune.model.commands import Command
from cloudtune.model.events import Event
from cloudtune.model.plans import Limits
from cloudtune.model.scaling import ScalingProfile
from cloudtune.model.serialization import decode, encode
from cloudtune.model.trial import TrialId
from cloudtune.policy.base import Policy
from cloudtune.policy.run import RunPolicy
from cloudtune.runs import control, home
from cloudtune.runs.control import to_stderr
from cloudtune.runs.identity import identify
from cloudtune.runs.job import Job
from cloudtune.script.command import split_words
from cloudtune.strategies.worth import by_worth, means_within
from cloudtune.train.programs.program import Program
from cloudtune.train.progress_cursor import Progress
from cloudtune.train.storage import StorageError, try_storage


class Controlled(Policy, Protocol):
    """A policy whose instances end by themselves if no controller drives it any more."""

    def safe_until(self) -> float:
        """Return the run second by which all instances must be gone if nothing more is decided."""

    def dispensable(self) -> Sequence[TrialId]:
        """Return the trials whose checkpoints can be deleted."""


# The least free bytes: room for the ledger, Ray's logs and a checkpoint in transit.
_LEAST_FREE = 256 * 2**20
SCREEN_LOG = "screen.log"
_DELIVERY = "environment.json"


def environment(experiment: Experiment) -> tuple[Delivery, Built | None]:
    """Return how instances get their Python, and the local environment, built if necessary.

    Raises:
        UsageError: it can't be built or stored.
    """
    storage = home.storage(experiment.storage)
    return environments.ready(experiment, storage, home.home(), to_stderr)


def enter_environment(experiment: Experiment) -> None:
    """Continue this command in the Python of the experiment's environment, if it differs.

    Raises:
        UsageError: as `environment`.
    """
    environments.enter(experiment, home.storage(experiment.storage), home.home(), to_stderr)


def check_storage(experiment: Experiment) -> None:
    """Test writing, reading and deleting in the experiment's storage before anything is rented.

    If this machine has no permission, but its instances have their own, there is a note and no
    error.

    Raises:
        UsageError: the storage can't be used; the message says why.
    """
    where = home.storage(experiment.storage)
    try:
        try_storage(where)
    except StorageError as error:
        if error.denied and experiment.cloud.instance_profile is not None:
            why = "not tried from this machine, which isn't let in; its instances may be"
            to_stderr(f"note: storage {where}: {why} ({error})")
            return
        raise UsageError(f"storage {where}: {error}; nothing was launched") from None


def preflight(
    experiment: Experiment, head: HeadOffer | None = None, offers: Sequence[Offer] = ()
) -> Preflight:
    """Find what would refuse the launches of a run, or of its `head`, before anything is rented.

    `offers` are those of its plan, the best first. Where only some would be refused, notes on
    standard error say so.

    Raises:
        UsageError: all would, or something else stands in the way; the message has a line for each.
    """
    check_storage(experiment)
    checked = find_provider(experiment.cloud.provider).preflight(experiment, head, offers)
    problems = [
        *_full_disk(home.runs()),
        *_unnamable(experiment.train_folder),
        *checked.problems,
    ]
    if problems:
        raise UsageError("\n".join([*problems, "nothing was launched"]))
    for line in checked.notes:
        to_stderr(f"note: {line}")
    return checked


def launchable(job: Job) -> Job:
    """Return a job without the offers that the cloud would refuse, before anything is rented.

    Those of planned stages stay: a run that can't have them plans again, as in any shortage.

    Raises:
        UsageError: the cloud would refuse all, or something else stands in the way.
    """
    checked = preflight(job.experiment, offers=_best_first(job))
    standins = tuple(it for it in job.standins if checked.allows(it.offer))
    if job.plan.staged is not None:
        return replace(job, standins=standins)
    rentables = tuple(it for it in job.rentables if checked.allows(it.offer))
    return replace(job, rentables=rentables, standins=standins)


def _best_first(job: Job) -> Sequence[Offer]:
    """Return a job's offers, those of planned stages first, then by what its limits buy."""
    means = means_within(job.limits, job.plan.max_instances, job.experiment.span.max)
    worthy = [rentable.offer for rentable in by_worth((*job.rentables, *job.standins), means)]
    staged = job.plan.staged
    planned = () if staged is None else staged.offers
    return tuple(dict.fromkeys([*planned, *worthy]))


def _unnamable(folder: Path) -> Iterator[str]:
    """Yield the first file that Ray can't copy to instances because its name isn't UTF-8."""
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if any("\ud800" <= letter <= "\udfff" for letter in name):
                yield f"{os.path.join(where, name)!a}: rename it: the name isn't UTF-8"  # noqa: PTH118
                return


def _full_disk(folder: Path) -> Iterator[str]:
    """Yield an error if there is no room for a run's record."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < _LEAST_FREE:
        yield f"{folder}: {free >> 20} MiB of disk are free, and a run's record needs more"


def open_cloud(
    experiment: Experiment,
    *,
    pace: bool,
    profiles: Sequence[ScalingProfile] = (),
    adopt: bool = False,
) -> Cloud:
    """Return the cloud of an experiment, ready to rent from; `adopt` for a resumed run.

    With `pace`, training without real GPUs takes the profiles' times.

    Raises:
        UsageError: the experiment lacks something that its provider needs, or it can't be used.
    """
    provider = find_provider(experiment.cloud.provider)
    provider.check(experiment)
    return provider.open(experiment, home.home(), pace=pace, profiles=profiles, adopt=adopt)


@dataclass(frozen=True)
class Runner:
    """One run of a policy on a cloud; `began` is its time zero (Unix time)."""

    folder: Path
    experiment: Experiment
    offers: tuple[Offer, ...]
    cloud: Cloud
    began: float
    lease_seconds: float
    lease_end: float
    join_seconds: float
    last_epoch: int
    variables: Variables = field(default_factory=Variables)

    @property
    def run(self) -> str:
        """The run's id."""
        return self.folder.name

    def go(
        self,
        policy: Controlled,
        ledger: Path,
        header: Mapping[str, Any] | None,
        on_event: EventListener,
        in_flight: InFlight | None = None,
    ) -> Swept:
        """Drive the policy to its end, and leave no instance behind, whatever happens.

        Returns the result of the cloud's check; a run that reached its end has a result in any
        case. `in_flight` is what a dead controller left behind; the run continues from there, with
        its ledger, which has a header already. The caller is `driving` the run.

        Raises:
            CleanupError: an error ended the run, and its cloud didn't confirm that all its
                instances are gone.
        """
        calls = calls_to(self.cloud.endpoint)
        listener = patient(on_event, self.folder)
        with control.interruptible() as interruption:
            error: BaseException | None = None
            try:
                with contextlib.closing(FileLedger(ledger, header)) as record:
                    world = self._world(calls, policy, resumes=in_flight is not None)
                    interruption.tell(world.interrupt)
                    with world:
                        interruption.install()  # again: Ray has replaced the handlers
                        if in_flight is None:
                            run(policy, world, record, listener)
                        else:
                            resume(policy, world, record, in_flight, listener)
            except BaseException as raised:  # noqa: BLE001  raised again below
                error = raised
            swept = self._sweep(calls)
        if error is None:
            return swept
        if swept.unconfirmed is None:
            raise error
        message = f"{swept.unconfirmed}\nBefore that the run was ended by an error: "
        message += str(error) if isinstance(error, CloudtuneError) else repr(error)
        raise CleanupError(message, swept.unconfirmed.instance_ids) from error

    def _sweep(self, calls: Calls) -> Swept:
        """Return what is left, and close the cloud; return what isn't confirmed to be gone.

        No error may hide that an instance is left.
        """
        unconfirmed: CleanupError | None = None
        journal = Journal(self.folder / JOURNAL)
        try:
            if left := sweeping.sweep(calls, self.run, journal):
                names = [instance.id for instance in left]
                unconfirmed = CleanupError(
                    f"the cloud did not confirm the end of {', '.join(names)}; they may still "
                    "bill. Run `cloudtune gc`, or end them with the cloud's own tools.",
                    names,
                )
        except CleanupError as error:
            unconfirmed = error
        except Exception as error:  # noqa: BLE001  whatever it is, the ids must be reported
            unconfirmed = sweeping.cleanup_error(self.run, journal, error)
        checked_at = time.time()
        with contextlib.suppress(Exception):  # records and local processes cost no money
            sweeping.keep_records(calls, self.run, self.folder / "instances.json")
        with contextlib.suppress(OSError, CloudtuneError):
            self.cloud.close()
        return Swept(checked_at, unconfirmed)

    def _world(self, calls: Calls, policy: Controlled, *, resumes: bool) -> CloudWorld:
        rental = Rental(
            run=self.run,
            endpoint=self.cloud.endpoint,
            gpus={offer.instance_type.name: offer.gpus for offer in self.offers},
            lease_seconds=self.lease_seconds,
            lease_end=self.lease_end,
            request=self.cloud.request,
            tags=self.cloud.tags,
            places=self.cloud.places,
            join_seconds=self.join_seconds,
            deadline=self.lease_end - LEASE_GRACE_SECONDS,
            delivery=self._delivery(),
            boot_logs=f"{self._storage}/boot",
            source_files=None if self._provider.sends_files else _source_files(self.experiment),
        )
        joined = self._provider.joined(self.folder, rental)
        return CloudWorld(
            joined or RayHead(self.folder, rental, self._provider.own_address()),
            calls,
            self._training(),
            self.experiment.train_folder,
            self.began,
            leased_until=policy.safe_until,
            dispensable=policy.dispensable,
            resumes=resumes,
        )

    def _delivery(self) -> Delivery:
        """Return how instances get their Python, which is the same to the end of the run.

        If the next controller repeats a launch, the request must be identical.
        """
        path = self.folder / _DELIVERY
        try:
            recorded = decode(Delivery, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            recorded = None
        if recorded is not None and (recorded.pack is None or is_there(recorded.pack)):
            return recorded
        delivery = environment(self.experiment)[0]
        write_atomically(path, json.dumps(encode(delivery)))
        return delivery

    @property
    def _provider(self) -> Provider:
        return find_provider(self.experiment.cloud.provider)

    @property
    def _storage(self) -> str:
        return home.run_storage(self.experiment.storage, self.run)

    def _training(self) -> Training:
        losses = max((o.interruptions_per_hour for o in self.offers), default=0.0)
        return make_training(
            self.experiment, self._storage, self.last_epoch, losses, variables=self.variables
        )


def _source_files(experiment: Experiment) -> Collection[str]:
    """Return the files whose later changes must not reach a run's trials, by their paths."""
    return tuple(identify(experiment).files)


def make_training(
    experiment: Experiment,
    storage: str,
    last_epoch: int,
    losses_per_hour: float = 0.0,
    *,
    variables: Variables,
) -> Training:
    """Return the common settings of an experiment's sessions; `losses_per_hour`: of instances."""
    train = experiment.train_function
    if not experiment.runs_command:
        train = f"{experiment.train_file.name}:{train}"
    return Training(
        train=train,
        program=read_program(experiment),
        progress=Progress(**experiment.progress.model_dump()),
        metric_name=experiment.metric.name,
        metric_mode=experiment.metric.mode,
        max_epoch=last_epoch,
        storage=storage,
        seed=experiment.seed,
        compared=experiment.trial.sync != "trusted",
        has_gpus=find_provider(experiment.cloud.provider).has_gpus,
        losses_per_hour=losses_per_hour,
        variables=variables,
        data=experiment.data_sources,
    )


def read_program(experiment: Experiment) -> Program | None:
    """Return the command that trains; None if a function does."""
    if not experiment.runs_command:
        return None
    reports = experiment.reports
    return Program(
        text=experiment.train,
        words=split_words(experiment.train),
        until=experiment.epochs.max,
        file=reports.file,
        printed=reports.printed,
        folder=experiment.checkpoints.folder,
        alone=experiment.trial.gpus.max == 1,
    )


def record_place(experiment: Experiment) -> dict[str, str]:
    """Return the record of where a run rents, by which `gc` finds it without its ledger."""
    return {"provider": experiment.cloud.provider, "region": experiment.cloud.region}


@contextlib.contextmanager
def outliving_reporters(folder: Path) -> Iterator[None]:
    """Write an error to a file in the run's folder: a failing reporter must not end a run."""
    try:
        yield
    except Exception:  # noqa: BLE001  a reporter decides nothing
        log = folder / SCREEN_LOG
        with contextlib.suppress(OSError), log.open("a", errors="backslashreplace") as file:
            traceback.print_exc(file=file)


def patient(on_event: EventListener, folder: Path) -> EventListener:
    """Return the listener with its errors written to a file in the run's folder."""

    def listener(event: Event, commands: tuple[Command, ...]) -> None:
        with outliving_reporters(folder):
            on_event(event, commands)

    return listener


@dataclass(frozen=True)
class Ended:
    """A finished run, and the result of its cloud's check."""

    folder: Path
    policy: RunPolicy
    swept: Swept


def run_job(job: Job, reporter: Reporter) -> Ended:
    """Carry out a job, from its first request to the confirmed end of its last instance."""
    variables = take(job.experiment)
    job = launchable(job)
    cloud = open_cloud(job.experiment, pace=job.paced, profiles=job.profiles)
    folder = home.new_run(job.experiment.name)
    with control.driving(folder, record_place(job.experiment)):
        limits = bound_limits(job)
        job = replace(job, run=folder.name, limits=limits, zones=_zones(job.experiment, cloud))
        policy = job.policy()
        runner = make_runner(job, folder, cloud, variables)
        with outliving_reporters(folder):
            reporter.on_run_start(job, policy)
        swept = runner.go(policy, folder / home.LEDGER, job.to_json(), reporter.on_event)
    return Ended(folder, policy, swept)


def _zones(experiment: Experiment, cloud: Cloud) -> tuple[str, ...]:
    """Return the zones to ask if one is dry; none if the experiment names its place."""
    settings = experiment.cloud
    if settings.zones or settings.subnet is not None:
        return ()
    if cloud.places:
        first, *others = cloud.places
        return (*others, first)  # a launch without a zone is at the first place
    return find_provider(settings.provider).zones(cloud)


def make_runner(job: Job, folder: Path, cloud: Cloud, variables: Variables) -> Runner:
    """Return the runner of a job on a cloud, with its record in a folder.

    `variables` are those of its trials.
    """
    lives = longest(job.plan, job.limits)
    return Runner(
        folder=folder,
        experiment=job.experiment,
        offers=job.offers,
        cloud=cloud,
        began=job.began,
        lease_seconds=lives + LEASE_GRACE_SECONDS,
        lease_end=job.began + (job.limits.deadline or lives) + LEASE_GRACE_SECONDS,
        join_seconds=max(
            join_seconds(rentable.profile) for rentable in (*job.rentables, *job.standins)
        ),
        last_epoch=job.experiment.span.max,
        variables=variables,
    )


def bound_limits(job: Job) -> Limits:
    """Return the job's limits, bounded so that nothing runs forever.

    Without a deadline the run gets one of three times the planned time plus an hour (`longest`),
    except for a run with a budget and without stages: its strategy would pace itself by a deadline
    that the user didn't set, and the budget ends it anyway.
    """
    deadline = job.limits.deadline
    budget = job.limits.budget
    if deadline is None and (budget is None or job.plan.followed is not None):
        deadline = longest(job.plan)
    return Limits(deadline, budget)
