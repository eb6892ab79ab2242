"""Where the money of a run went, as a table and in a sentence."""

from dataclasses import replace

from cloudtune.display.terminal import Sheet
from cloudtune.engine.record.accounting import Accounting, Amount
from cloudtune.model.text import counted, percent
from cloudtune.model.units import format_dollars, format_seconds

LABELS = {
    "training": "training",
    "checkpoint": "checkpoints",
    "start-up": "start-up of instances and trials",
    "barrier": "trials that waited for others",
    "lost": "epochs lost or trained again",
    "idle": "GPUs without a trial",
    "returning": "giving back",
    "minimum": "to the minimum charge",
    "rounding": "rounded up to whole seconds",
    "launches": "charges per launch",
    "hourly": "charges per hour",
}


def money(accounting: Accounting, *, free: bool = False) -> Sheet:
    """Return what was paid for; what came to nothing is left out, and where `free`, all dollars."""
    rows = []
    for name, amount in accounting.amounts.items():
        if amount.gpu_seconds > 0 or amount.dollars > 0:
            rows.append((LABELS[name], *_cells(amount, accounting.whole)))
        if name == "start-up" and 0 < accounting.boot.gpu_seconds < amount.gpu_seconds:
            rows.append(("  booting", *_cells(accounting.boot, accounting.whole)))
    if accounting.added > 0:
        rows.append(
            ("  of it per instance-hour", *_cells(Amount(0.0, accounting.added), accounting.whole))
        )
    rows.append(("total", *_cells(accounting.whole, accounting.whole)))
    columns = ("", "GPU time", "of all", "cost", "of the bill")
    sheet = Sheet("Where the money went", columns, tuple(rows), frozenset({""}), total=True)
    if not free:
        return sheet
    return replace(sheet, title="Where the time went").without("cost", "of the bill")


def _cells(amount: Amount, whole: Amount) -> tuple[str, str, str, str]:
    seconds = amount.gpu_seconds
    dollars = amount.dollars
    return (
        format_seconds(seconds) if seconds > 0 else "",
        percent(seconds / whole.gpu_seconds) if seconds > 0 else "",
        format_dollars(dollars),
        percent(dollars / whole.dollars) if whole.dollars > 0 else "",
    )


def use(accounting: Accounting, *, free: bool = False) -> str:
    """Return how busy the GPUs were, and how often trials changed their width."""
    held = "held" if free else "billed"
    return (
        f"GPUs trained in {percent(accounting.busy_share)} of the time {held}; "
        f"{counted(accounting.restarts, 'restart')} of trials, {accounting.resizes} at another "
        "width"
    )
