"""The controller's side of a cluster: Ray's head, the node provider, the agents, the world."""

import logging
import warnings

# When imported in a notebook, Ray warns about progress bars that aren't shown here.
logging.getLogger("ray.widgets").setLevel(logging.WARNING)
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="IProgress not found")
    import ray  # noqa: F401
