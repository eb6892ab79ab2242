"""The lease of an actor that holds GPUs of a Ray cluster."""

import threading

from cloudtune.clock import unix_time
from cloudtune.infra.node.lease import LEASE_MINUTES
from cloudtune.infra.ray.reserved_node import ActorLease


def test_lease_renewal_stops_at_hard_end() -> None:
    over = threading.Event()
    end = unix_time() + 1.0
    lease = ActorLease(end, end + 60.0, over)
    assert lease.renew(end + 3600.0) == end
    assert over.wait(60.0)


def test_a_lease_that_no_controller_renews_is_over() -> None:
    over = threading.Event()
    now = unix_time()
    lease = ActorLease(now + 7200.0, now + 0.5, over)
    assert over.wait(60.0), "it is the first one's end"
    assert lease.renew(now + 7200.0) <= unix_time() + 60 * LEASE_MINUTES
