"""What a run does about widths that don't work: too little memory, or several models at once."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from cloudtune.model.events import TrialFailed
from cloudtune.model.plans import Rentable
from cloudtune.model.progress import TrialProgress


def refitted(trial: TrialProgress, event: TrialFailed, one_gpu_each: Callable[[str], bool]) -> bool:
    """Whether a trial that failed at its width goes on at another; says nothing of the script.

    One that ran out of memory on a share of a GPU gets more of it. Where the workers of one don't
    train one model, no trial is wider than one GPU from then on: `one_gpu_each`, given the reason,
    says whether that is possible.
    """
    if event.out_of_memory and trial.width < 1:
        trial.min_width = min(1.0, 2 * trial.width)
        return True
    return event.unsynced and one_gpu_each(f"{trial_of(event)}: {event.error}")


def narrowed(rentables: Sequence[Rentable]) -> tuple[Rentable, ...]:
    """Return rentables at no more than one GPU a trial; those that can't do that are left out."""
    narrow = []
    for rentable in rentables:
        widths = [width for width in rentable.profile.widths if width <= 1]
        if widths:
            narrow.append(replace(rentable, profile=rentable.profile.only(widths)))
    return tuple(narrow)


def trial_of(event: TrialFailed) -> str:
    """Return the trial that an event is of."""
    return event.session.rpartition(".")[0]


def unsynced_text(event: TrialFailed) -> str:
    """Return the message where a trial's workers don't train one model, and what to do."""
    return (
        f"the workers of {trial_of(event)} don't train one model: {event.error}. Give the model to "
        "cloudtune.prepare_model, or to DistributedDataParallel; or let trials have one GPU each "
        "(trial.gpus.max: 1)"
    )
