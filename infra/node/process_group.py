"""How the workers of a trial find each other: torch.distributed's environment and process group.

A worker has the same environment as with torchrun and Ray Train before any of the user's code is
imported: accelerate, Lightning and transformers read the number of workers from it.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from cloudtune.infra.node.messages import WorkerSlot

# The variables from which a script may read its place among the workers.
VARIABLES: Final = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NODE_RANK",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
    }
)
_JOIN = dt.timedelta(seconds=120)


def environment(slot: WorkerSlot, here: int, rendezvous: str) -> dict[str, str]:
    """Return a worker's environment for torch.distributed; `here` workers are on its node.

    They meet at `rendezvous`, "host:port"; a single worker gets a free port.
    """
    host, _, port = (rendezvous or f"127.0.0.1:{free_port('127.0.0.1')}").rpartition(":")
    return {
        "RANK": str(slot.rank),
        "LOCAL_RANK": str(slot.local_rank),
        "WORLD_SIZE": str(slot.world_size),
        "LOCAL_WORLD_SIZE": str(here),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "NODE_RANK": str(slot.node_rank),
        "GROUP_RANK": str(slot.node_rank),
        "GROUP_WORLD_SIZE": str(slot.nodes),
    }


def free_port(address: str) -> int:
    """Return a free port of an address of this machine."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def meet(slot: WorkerSlot, rendezvous: str, listener: int | None, device: str) -> Store:
    """Join the other workers, at a socket that has been listening since before they started.

    Returns the store through which they can exchange data.
    """
    import torch  # noqa: PLC0415

    host, _, port = rendezvous.rpartition(":")
    open_store = partial(
        torch.distributed.TCPStore,  # type: ignore[attr-defined]
        host,
        int(port),
        slot.world_size,
        is_master=listener is not None,
        timeout=_JOIN,
        wait_for_workers=False,
        master_listen_fd=listener,
    )
    try:
        store = open_store()
    except NotImplementedError:  # torch 2.6: with libuv, its default, it takes no open socket
        store = open_store(use_libuv=False)
    cuda = device.startswith("cuda")
    torch.distributed.init_process_group(
        "nccl" if cuda else "gloo",
        store=store,
        rank=slot.rank,
        world_size=slot.world_size,
        device_id=torch.device(device) if cuda else None,
    )
    _welcome_second_calls()
    return torch.distributed.PrefixStore("cloudtune", store)  # type: ignore[attr-defined]


def _welcome_second_calls() -> None:
    """Give a script that creates torch's process group the existing one.

    Scripts for torchrun call `init_process_group` if RANK is set, which torch would refuse.
    """
    import torch.distributed  # noqa: PLC0415

    first = torch.distributed.init_process_group

    def init_process_group(*given: Any, **named: Any) -> None:
        if not torch.distributed.is_initialized():
            first(*given, **named)

    torch.distributed.init_process_group = init_process_group
    torch.distributed.distributed_c10d.init_process_group = init_process_group


class WatchedEnvironment(os._Environ[str]):  # noqa: SLF001  what os.environ is
    """The environment of this process, which records reads of `VARIABLES`."""

    asked: set[str]

    def __getitem__(self, key: str) -> str:
        if key in VARIABLES:
            self.asked.add(key)
        return super().__getitem__(key)


class Watch:
    """Records, within its context, which of `VARIABLES` this process reads."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __enter__(self) -> Watch:
        watched: Any = os.environ
        self._kind = type(watched)
        watched.asked = self.asked
        watched.__class__ = WatchedEnvironment
        return self

    def __exit__(self, *_: object) -> None:
        watched: Any = os.environ
        watched.__class__ = self._kind
        del watched.asked
