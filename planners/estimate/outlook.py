"""The time and cost of a plan, as distributions."""

import math
from dataclasses import replace

import numpy as np

from cloudtune.model.plans import Allowance, Forecast, Plan, Spread
from cloudtune.planners.arrays import Floats
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.estimate.replanned import reacting_draws
from cloudtune.planners.estimate.rollout import Draws, sample
from cloudtune.planners.reserve import MARGIN

__all__ = ["Draws", "chances", "outlook", "quantile", "sample", "to_forecast"]


def outlook(
    request: PlanRequest,
    plan: Plan,
    *,
    samples: int = 1000,
    seed: int = 0,
    reacts: bool = False,
) -> Forecast:
    """Return the percentiles of a plan's seconds and dollars, and how likely it keeps the limits.

    With `reacts`, those of a run that replans the rest when speeds differ from the profile. The
    same seed and plan give the same outlook; a percentile is one of the samples.
    """
    if not reacts:
        return to_forecast(
            request.allowance, plan, sample(request, plan, samples=samples, seed=seed), seed
        )
    draws = reacting_draws(request, plan, samples=samples, seed=seed)
    forecast = to_forecast(fitting(request.allowance), plan, draws, seed)
    # A run that a deadline ends must still return everything.
    release = max(rentable.profile.release.high for rentable in request.rentables)
    allowance = request.allowance
    if allowance.seconds is not None:
        allowance = replace(allowance, seconds=allowance.seconds + release)
    ended = _cut_off(allowance, draws)
    return replace(
        forecast,
        seconds=_spread(ended.seconds),
        dollars=_spread(ended.dollars),
        gpu_hours=_spread(ended.gpu_hours),
    )


def fitting(allowance: Allowance) -> Allowance:
    """Return the part of an allowance within which a run that replans does all of its work.

    With less than this reserve left it drops trials.
    """
    return allowance.scale(1 - MARGIN)


def beyond(allowance: Allowance) -> Allowance:
    """Return the allowance that leaves a run this much for its work: the inverse of `fitting`."""
    return Allowance(
        None if allowance.seconds is None else allowance.seconds / (1 - MARGIN),
        None if allowance.dollars is None else allowance.dollars / (1 - MARGIN),
    )


def _cut_off(allowance: Allowance, draws: Draws) -> Draws:
    """Return the draws with runs ended by whichever limit comes first."""
    share = np.ones(len(draws.seconds))
    for limit, taken in ((allowance.seconds, draws.seconds), (allowance.dollars, draws.dollars)):
        if limit is not None:
            share = np.minimum(share, limit / np.maximum(taken, 1e-9))
    return Draws(
        share * draws.seconds, share * draws.dollars, share * draws.gpu_hours, draws.slowness
    )


def chances(allowance: Allowance, draws: Draws) -> tuple[float | None, float | None, float | None]:
    """Return the shares of samples that keep the deadline, the budget, and both."""
    in_time = None if allowance.seconds is None else draws.seconds <= allowance.seconds
    in_money = None if allowance.dollars is None else draws.dollars <= allowance.dollars
    kept = [flags for flags in (in_time, in_money) if flags is not None]
    return (
        None if in_time is None else float(in_time.mean()),
        None if in_money is None else float(in_money.mean()),
        float(np.all(kept, axis=0).mean()) if kept else None,
    )


def excesses(allowance: Allowance, draws: Draws, share: float) -> tuple[float, float, float]:
    """Return quantiles of time, money and their maximum, each as a factor of its limit."""
    late = draws.seconds / (allowance.seconds or math.inf)
    dear = draws.dollars / (allowance.dollars or math.inf)
    return (
        quantile(late, share),
        quantile(dear, share),
        quantile(np.maximum(late, dear), share),
    )


def to_forecast(allowance: Allowance, plan: Plan, draws: Draws, seed: int) -> Forecast:
    """Return the forecast of a plan's draws under the limits."""
    in_time, in_money, within = chances(allowance, draws)
    first = plan.stages[0].stage
    last = plan.stages[-1].stage
    return Forecast(
        seconds=_spread(draws.seconds),
        dollars=_spread(draws.dollars),
        trials=_certain(first.trials),
        epochs=_certain(last.end_epoch),
        gpu_hours=_spread(draws.gpu_hours),
        instances=_certain(plan.peak_instances),
        in_time=in_time,
        in_money=in_money,
        within=within,
        results=1.0,
        samples=len(draws.seconds),
        seed=seed,
        source="stages",
    )


def _certain(value: float) -> Spread:
    return Spread(value, value, value, value)


def quantile(draws: Floats, share: float) -> float:
    """Return the least draw that the given share of all draws doesn't exceed."""
    return float(np.quantile(draws, share, method="inverted_cdf"))


def _spread(draws: Floats) -> Spread:
    p5, p50, p95 = (quantile(draws, share) for share in (0.05, 0.5, 0.95))
    return Spread(p5, p50, p95, float(draws.mean()))
