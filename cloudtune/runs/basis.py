"""What the times and prices of a run rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.clock import utc_date
from cloudtune.infra.provider import provider_named
from cloudtune.profiles.provenance import basis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.experiment import Experiment
    from cloudtune.model.plans import Rentable
    from cloudtune.profiles.provenance import Basis


def basis_of(
    experiment: Experiment, rentables: Sequence[Rentable], day: str | None = None
) -> Basis:
    """Return what times and prices of an experiment's runs rest on, as of a day (today)."""
    profiles = (rentable.profile for rentable in rentables)
    today = day or utc_date()
    return basis(profiles, today, paced=provider_named(experiment.cloud.provider).paced)
