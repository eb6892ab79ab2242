"""The agent of a node as a Ray actor, which also copies logs and watches for notices."""

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ray

from cloudtune.infra.environments.delivery import remark as setup_remark
from cloudtune.infra.node.agent import Agent, _Local
from cloudtune.infra.node.boot import LOGS_VARIABLE
from cloudtune.infra.node.lease import Ends
from cloudtune.infra.node.log_copies import LogCopies
from cloudtune.infra.node.messages import AtRisk, Remark, Training
from cloudtune.infra.node.spot_notice import interruption, is_at_risk, watch_notices
from cloudtune.train.storage import LOGS

# Both methods wait, and must not block others.
GROUPS = {"messages": 4, "hello": 2}


def find_actor(name: str, namespace: str) -> Any | None:
    """Return the actor of that name; None if there is none, or it has just gone."""
    with contextlib.suppress(ValueError):
        return ray.get_actor(name, namespace=namespace)
    return None


class NodeAgent(Agent):
    """An agent as a Ray actor. The output of workers is in ~/cloudtune/<run>/ of the node.

    On a user's own machine it is elsewhere (CLOUDTUNE_LOGS). Copies go to the run's storage. The
    `lease` ends the node, `notice` says when its cloud will, and `at_risk` whether it may; by
    default those of a rented machine.
    """

    def __init__(
        self,
        instance: str,
        folder: str,
        gpus: int,
        training: Training,
        *,
        lease: Ends | None = None,
        notice: Callable[[], float | None] = interruption,
        at_risk: Callable[[], bool] = is_at_risk,
    ) -> None:
        logs = Path(os.environ.get(LOGS_VARIABLE) or Path.home() / "cloudtune") / folder
        super().__init__(ray.util.get_node_ip_address(), gpus, training, logs, lease=lease)
        self._copies = LogCopies(
            logs,
            f"{training.storage}/{LOGS}",
            instance,
            hide=lambda output: training.variables.hide_in_bytes(output, self._variables),
        )
        self._copies.start()
        watch = partial(
            watch_notices,
            tell=self.note_interruption,
            warn=lambda: self._outbox.add("", 0, AtRisk()),
            look=notice,
            at_risk=at_risk,
        )
        threading.Thread(target=watch, name="notices", daemon=True).start()
        for text in (setup_remark(), _data_remark(self._data.seconds)):
            if text:
                self._outbox.add("", 0, Remark(text))

    def note_interruption(self, due: float) -> None:
        """Report the interruption, and copy the output of the workers."""
        super().note_interruption(due)
        self._copies.hurry()

    def close(self) -> None:
        super().close()
        self._copies.close()

    def _finish(self, local: _Local) -> None:
        self._copies.hurry()
        super()._finish(local)


def _data_remark(seconds: float) -> str:
    """Return how long data took to copy, as `setup_remark` does of the environment."""
    rounded = 10 * round(seconds / 10)
    return f"data takes about {rounded} s of each instance's boot" if rounded else ""
