"""What a run does about widths that don't work: too little memory, or several models at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtune.events import TrialFailed
    from cloudtune.policy.state import RunState
    from cloudtune.progress import TrialProgress


def refitted(state: RunState, trial: TrialProgress, event: TrialFailed) -> bool:
    """Whether a trial that failed at its width goes on at another; says nothing of the script.

    One that ran out of memory on a share of a GPU gets more of it. Where the workers of one don't
    train one model, no trial is wider than one GPU from then on.
    """
    if event.out_of_memory and trial.width < 1:
        trial.min_width = min(1.0, 2 * trial.width)
        return True
    return event.unsynced and _one_gpu_each(state, event)


def _one_gpu_each(state: RunState, event: TrialFailed) -> bool:
    """Have no trial be wider than one GPU any more; returns whether that can be had."""
    narrow = []
    for each in state.rentables:
        widths = [width for width in each.profile.widths if width <= 1]
        if widths:
            narrow.append(replace(each, profile=each.profile.only(widths)))
    if not narrow:
        return False
    if state.widest > 1:
        state.widest, state.why_narrow = 1.0, f"{trial_of(event)}: {event.error}"
        state.rentables = tuple(narrow)
        state.free.limit({each.offer: each.profile.epoch for each in narrow})
        for trial in state.trials.values():
            trial.max_width = 1.0
        # What was planned was planned for other widths.
        state.disturbances += 1
        state.shocks += 1
    return True


def trial_of(event: TrialFailed) -> str:
    """Return the trial that an event is of."""
    return event.session.rpartition(".")[0]


def unsynced_text(event: TrialFailed) -> str:
    """Return what is told where a trial's workers don't train one model, and what to do."""
    return (
        f"the workers of {trial_of(event)} don't train one model: {event.error}. Give the model to "
        "cloudtune.prepare_model, or to DistributedDataParallel; or let trials have one GPU each "
        "(trial.gpus.max: 1)"
    )
