"""The environment of an experiment, prepared before anything is rented."""

import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from cloudtune.errors import UsageError
from cloudtune.experiment.schema import Experiment
from cloudtune.infra.environments.build import Built, build, read_built
from cloudtune.infra.environments.cache import FOLDER, EnvironmentCache
from cloudtune.infra.environments.delivery import Delivery, Pack
from cloudtune.infra.environments.spec import ROOT, Spec, make_spec
from cloudtune.model.providers import PROVIDERS
from cloudtune.train.storage import StorageError


def ready(
    experiment: Experiment, storage: str, home: Path, say: Callable[[str], None]
) -> tuple[Delivery, Built | None]:
    """Return how instances get their Python, and the environment on this machine.

    Environments that `storage` has, by hash, aren't built again. If instances are this machine, the
    environment is in cloudtune's `home`, and nothing is packed. `say` reports what takes time.

    Raises:
        UsageError: it can't be built or stored, or its commands are too long.
    """
    setup = experiment.setup
    here = PROVIDERS[experiment.cloud.provider].here
    if not PROVIDERS[experiment.cloud.provider].packs:
        return Delivery(setup.python_path or sys.executable, setup.commands), None
    own = None if here or setup.python_path or setup.builds else own_environment()
    if here and setup.builds:
        built = build(make_spec(experiment, home / FOLDER), say)
        if built.version != platform.python_version():
            raise UsageError(
                f"setup.python: instances of provider {experiment.cloud.provider} are this "
                f"machine, with Python {platform.python_version()}, and not {built.version}; leave "
                "it out"
            )
        return Delivery(str(built.python)), built
    if not setup.builds and own is None:
        delivery = Delivery(setup.python_path or ("python3" if here else ""), setup.commands)
        delivery.check()
        return delivery, None
    if sys.platform != "linux":
        raise UsageError(
            f"setup: an environment for instances is built on Linux, and this is {sys.platform}; "
            "let a head carry the run (without --here)"
        )
    try:
        pack, environment = _pack(own or make_spec(experiment, ROOT), storage, say)
    except StorageError as error:
        raise UsageError(f"{error}; nothing was launched") from None
    delivery = Delivery(str(environment.python), setup.commands, pack)
    delivery.check()
    return delivery, environment


def own_environment() -> Built | None:
    """Return the environment that this process runs in; None if cloudtune didn't build it."""
    place = Path(sys.prefix).parent
    return read_built(place) if place.parent == ROOT else None


def enter(experiment: Experiment, storage: str, home: Path, say: Callable[[str], None]) -> None:
    """Continue this command in the Python of the environment, if it differs.

    Ray's controller and nodes must have the same version of Python.
    """
    if not experiment.setup.builds or not PROVIDERS[experiment.cloud.provider].fetches:
        return
    _, built = ready(experiment, storage, home, say)
    if built is None or built.version == platform.python_version():
        return
    say(f"setup: goes on by Python {built.version}, in {built.place}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(built.python, [str(built.python), "-m", "cloudtune", *sys.argv[1:]])  # noqa: S606


def _pack(what: Spec | Built, storage: str, say: Callable[[str], None]) -> tuple[Pack, Built]:
    """Return the pack of an existing or new environment, and the environment here."""
    cache = EnvironmentCache(storage, what.place)
    pack = cache.pack()
    built = read_built(what.place)
    if pack is None:
        built = built or (what if isinstance(what, Built) else build(what, say))
        return cache.put(built, say), built
    if built is None:
        say(f"setup: fetching {pack.bytes / 1e6:.0f} MB from {pack.uri}")
        built = cache.bring(pack)
    return pack, built
