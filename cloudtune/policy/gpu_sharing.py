"""How many trials may share a GPU, learned while they train.

The first epoch on a whole GPU shows how much memory a trial needs. Where two fit, trials get half a
GPU. Once epochs on halves have been timed, they show whether sharing pays and how many trials are
worth it (profiles/packing.py); otherwise trials go back to whole GPUs.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from cloudtune.model.plans import Rentable
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.model.trial import Width
from cloudtune.profiles.packing import pack_shares

HALF: Width = 0.5
# An epoch of each of two trials on a GPU against one alone, and the spread of its logarithm: 24
# programs of 7 models on a V100, taking turns. Gavel (OSDI'20), stanford-futuredata/gavel.
_TWO_TAKE = 1.73
_OFF = 0.45
# As many epochs on half a GPU show what sharing costs: the neighbours of the first ones may still
# have been starting.
_ENOUGH = 4


class GpuSharing:
    """The shares of a GPU that trials may have, by what this run has seen.

    With `tried` False nothing changes: the profiles have the shares that were measured.
    """

    def __init__(self, *, tried: bool) -> None:
        self._settled = not tried
        self._memory_mib = 0.0  # the largest of any trial on a whole GPU
        self._epochs = Counter[str]()  # on half a GPU, by instance type
        self._halves = False

    def note(
        self,
        rentables: Sequence[Rentable],
        instance_type: str,
        width: Width,
        memory_mib: float | None,
        corrected: Callable[[Rentable], Rentable],
    ) -> Sequence[Rentable] | None:
        """Record an epoch; return the rentables with other shares, or None if they stay.

        `memory_mib` is the peak GPU memory of its worker, None if unknown. `corrected` returns a
        rentable with the speeds that this run has seen.
        """
        if self._settled:
            return None
        if self._halves and width == HALF:
            self._epochs[instance_type] += 1
            return self._settle(rentables, instance_type, corrected)
        if self._halves or width != 1.0 or memory_mib is None:
            return None
        self._memory_mib = memory_mib
        halved = [self._with_half(rentable) for rentable in rentables]
        if halved == list(rentables):  # none fits, or shares were measured before
            self._settled = True
            return None
        self._halves = True
        return halved

    def _with_half(self, rentable: Rentable) -> Rentable:
        """Return a rentable with half a GPU as a width, if two trials fit on one."""
        profile = rentable.profile
        if 1.0 not in profile.epoch or min(profile.widths) < 1:
            return rentable
        if 2 * self._memory_mib > rentable.offer.instance_type.gpu_memory_mib:
            return rentable
        seconds = _TWO_TAKE * profile.epoch_seconds(1.0)
        half = Measurement(seconds, 0.0, 0, _OFF * seconds)
        return _with(rentable, {HALF: half, **profile.epoch}, self._memory_mib)

    def _settle(
        self,
        rentables: Sequence[Rentable],
        instance_type: str,
        corrected: Callable[[Rentable], Rentable],
    ) -> Sequence[Rentable] | None:
        """Return the rentables with the shares that pay, once enough epochs show that."""
        if self._epochs[instance_type] < _ENOUGH:
            return None
        timed = [it for it in rentables if it.offer.instance_type.name == instance_type]
        seen = corrected(timed[0]).profile
        self._settled = True
        return [self._sharing(rentable, seen) for rentable in rentables]

    def _sharing(self, rentable: Rentable, seen: ScalingProfile) -> Rentable:
        """Return a rentable with the shares that pay by the epochs `seen` on one and on half."""
        profile = rentable.profile
        if HALF not in profile.epoch:
            return rentable
        one = seen.epoch[1.0]
        two = seen.epoch[HALF]
        both = replace(profile, epoch={HALF: two, 1.0: one})
        chosen, _ = pack_shares(both, rentable.offer.instance_type.gpu_memory_mib)
        # Relative to a half: what this run has learned of halves holds for narrower shares, too.
        half = profile.epoch[HALF]
        shares = {
            width: half.scale(seconds.mean / two.mean)
            for width, seconds in chosen.epoch.items()
            if width < 1
        }
        whole = {width: seconds for width, seconds in profile.epoch.items() if width >= 1}
        return _with(rentable, {**shares, **whole}, self._memory_mib)


def _with(rentable: Rentable, epoch: dict[Width, Measurement], memory_mib: float) -> Rentable:
    shares = [width for width in epoch if width < 1]
    profile = replace(
        rentable.profile,
        epoch={width: epoch[width] for width in sorted(epoch)},
        memory={**dict.fromkeys(sorted(shares), memory_mib), 1.0: memory_mib},
    )
    return replace(rentable, profile=profile)
