"""Widths that don't work: too little memory, or workers that train separate models."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cloudtune.model.events import TrialFailed
from cloudtune.model.plans import Rentable
from cloudtune.model.progress import trial_of
from cloudtune.model.trial import Width


def wider(width: Width, widths: Iterable[Width]) -> Width:
    """Return the next of the measured widths up to one GPU; twice the width if there is none."""
    return min((w for w in widths if width < w <= 1), default=min(1.0, 2 * width))


def limit_to_one_gpu(rentables: Sequence[Rentable]) -> tuple[Rentable, ...]:
    """Return rentables limited to one GPU per trial, without those measured only wider."""
    narrow = []
    for rentable in rentables:
        widths = [width for width in rentable.profile.widths if width <= 1]
        if widths:
            narrow.append(replace(rentable, profile=rentable.profile.only(widths)))
    return tuple(narrow)


def unsynced_text(event: TrialFailed) -> str:
    """Return the message that a trial's workers don't train one model, and what to do."""
    return (
        f"the workers of {trial_of(event.session)} don't train one model: {event.error}. Give the "
        "model to cloudtune.prepare_model, or to DistributedDataParallel; or let trials have one "
        "GPU each (trial.gpus.max: 1)"
    )
