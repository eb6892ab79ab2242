"""Small jobs for tests, and the worlds that they run in.

Further sets stand beside: `curves`, `live` (jobs that decide as they go) and `proposals`.
"""

from tests.builders.drawn import choices, jobs, rentables, stage_choices, troubles
from tests.builders.events import begun, epoch, instance, join, launches_of, starts
from tests.builders.machines import (
    LINEAR,
    NO_CHARGES,
    NO_LIMITS,
    NODE_BOUNDARY,
    SUBLINEAR,
    offer,
    profile,
)
from tests.builders.plans import (
    by_hand,
    certain,
    followed,
    group,
    grouped,
    run_plan,
    shapes,
    staged,
    widths,
)
from tests.builders.policies import Rungs, by_plan, itinerary_of, plan_of, policy_with, scripted
from tests.builders.runs import (
    Build,
    Mishap,
    Played,
    Setting,
    by_name,
    flapped,
    gone,
    keep_run,
    play,
    refused,
    write_ledger,
)
from tests.builders.trials import Given, Watched, final, level, table, trials
