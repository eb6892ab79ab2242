"""F17: what each GPU did, of ledgers by hand and of simulated runs."""

import pytest

from cloudtune.engine.record.accounting import account
from cloudtune.engine.record.gpu_series import gpu_shares, gpu_uses
from cloudtune.engine.record.timeline import read
from cloudtune.policy.registry import ALLOCATORS
from tests.builders import Setting, by_name, offer, play, profile
from tests.engine.record.test_accounting import OFFER, RUN

PACKED = profile({0.25: 28.0, 0.5: 15.0, 1.0: 8.0, 2.0: 5.0, 4.0: 3.0}, start=1.0, resize=2.0)


def test_a_run_by_hand() -> None:
    """One trial on two GPUs, with what it did and when; the other two GPUs idle."""
    timeline = read(RUN)
    made = account(RUN, [OFFER])
    uses = gpu_uses(timeline, made)
    assert {(use.instance, use.gpu) for use in uses} == {("i-0", 0), ("i-0", 1)}
    trained = [(u.begin, u.end) for u in uses if u.gpu == 0 and u.use == "training"]
    assert trained == [(24.0, 32.5), (34.0, 42.5), (50.0, 60.0)]
    (shares,) = gpu_shares(timeline, made).values()
    assert shares == pytest.approx([27 / 99, 27 / 99, 0.0, 0.0])


@pytest.mark.parametrize("name", ["same", "dynamic-fluid", "static-fluid:published"])
def test_series_add_up_and_no_gpu_has_two_trials(name: str) -> None:
    made = Setting(24, offer=offer(4), max_instances=2, profile=PACKED)
    made = made.but(allocator=lambda: ALLOCATORS[name].build(made.context()))
    played = play(made, by_name("asha", eta=2, max_epochs=8))
    timeline = read(played.entries)
    accounts = account(played.entries, [made.offer])
    uses = gpu_uses(timeline, accounts)
    for use in ("training", "start-up", "lost"):
        result = sum((u.end - u.begin) * u.share for u in uses if u.use == use)
        assert result <= accounts.amounts[use].gpu_seconds + 1e-6
        if use == "training":
            assert result == pytest.approx(accounts.amounts[use].gpu_seconds)
    for at in {item.begin for item in uses}:
        taken: dict[tuple[str, int], float] = {}
        for item in uses:
            if item.begin <= at < item.end - 1e-6:
                key = (item.instance, item.gpu)
                taken[key] = taken.get(key, 0.0) + item.share
        assert max(taken.values(), default=0.0) <= 1 + 1e-6
    shares = gpu_shares(timeline, accounts)
    assert {len(item) for item in shares.values()} == {4}
    assert all(0 <= share <= 1 for item in shares.values() for share in item)
