"""The entry points of the papers, as `[project.entry-points]` of pyproject.toml names them."""

from cloudtune.errors import UsageError
from cloudtune.model.text import width_text
from cloudtune.model.trial import Width
from cloudtune.papers.fluid import PublishedDynamicFluid, StaticFluid
from cloudtune.papers.hypersched import HyperSched
from cloudtune.papers.hypersched_rules import Switches
from cloudtune.papers.hypersched_widths import HyperSchedAllocator
from cloudtune.papers.seer_barrier import SeerBarrier, SeerSchedule
from cloudtune.policy.context import BuildContext
from cloudtune.policy.entries import AllocatorEntry, StrategyEntry
from cloudtune.policy.registry import planned_entry
from cloudtune.policy.schedule.stages import Planning
from cloudtune.strategies.allocators.fluid import DynamicFluid
from cloudtune.strategies.base import Allocator, Sampler, Strategy


def _hypersched(*, patient: bool) -> StrategyEntry:
    def build(context: BuildContext, sampler: Sampler) -> Strategy:
        return HyperSched(
            sampler,
            min_epochs=context.min_epochs,
            max_epochs=context.max_epochs,
            eta=context.eta,
            mode=context.mode,
            atom=_atom(context),
            switches=_switches(context),
            patient=patient,
        )

    return StrategyEntry(
        build, allocator="hypersched", fleet="constant", every_epoch=True, has_rules=True
    )


def _hypersched_widths(policy: str) -> AllocatorEntry:
    def build(context: BuildContext) -> Allocator:
        return HyperSchedAllocator(
            policy=policy, atom=_atom(context), seed=context.seed, switches=_switches(context)
        )

    return AllocatorEntry(build, whole_gpus=True, has_rules=True)


def _switches(context: BuildContext) -> Switches:
    return Switches(**context.rules)


def _atom(context: BuildContext) -> Width:
    """Return the GPUs of HyperSched's atom.

    Raises:
        UsageError: trials of that width weren't measured.
    """
    atom = _switches(context).atom
    widths = context.cheapest.profile.widths
    if atom is None:
        return context.one_gpu
    if atom not in widths:
        measured = ", ".join(map(width_text, widths))
        raise UsageError(f"strategy.rules.atom: {atom} GPUs weren't measured; {measured} were")
    return float(atom)


hypersched = _hypersched(patient=False)
hypersched_patient = _hypersched(patient=True)

rubberband = planned_entry(
    Planning("greedy", in_time=True),
    origin="our reconstruction of RubberBand's planner from what could be found of it",
)
rubberband_exact = planned_entry(Planning("exact", in_time=True))
sha_static = planned_entry(Planning("static", in_time=True))
seer_barrier = planned_entry(
    Planning("exact", halving=SeerBarrier, schedule=SeerSchedule),
    origin="our reconstruction of SEER from its abstract, not the paper's algorithm",
)

static_fluid = AllocatorEntry(lambda _context: StaticFluid())
static_fluid_published = AllocatorEntry(lambda _context: StaticFluid(published=True))
dynamic_fluid = AllocatorEntry(lambda _context: DynamicFluid())
dynamic_fluid_published = AllocatorEntry(lambda _context: PublishedDynamicFluid())
dynamic_fluid_published_idle = AllocatorEntry(lambda _context: PublishedDynamicFluid(idle=True))

hypersched_widths = _hypersched_widths("UNIFORM")
hypersched_top_job = _hypersched_widths("TOP_JOB")
hypersched_random = _hypersched_widths("RANDOM")
hypersched_softmax = _hypersched_widths("SOFTMAX")
hypersched_none = _hypersched_widths("NONE")
