"""Networks that mutators make from a base, and weights that one network inherits from another."""

from cloudtune.train.models.inheriting import Inherited, inherit
from cloudtune.train.models.ready import insert_after, repeat, replace
from cloudtune.train.models.space import (
    ModelSpace,
    OneOf,
    choice,
    loguniform,
    one_of,
    quniform,
    randint,
    space,
    uniform,
)

__all__ = [
    "Inherited",
    "ModelSpace",
    "OneOf",
    "choice",
    "inherit",
    "insert_after",
    "loguniform",
    "one_of",
    "quniform",
    "randint",
    "repeat",
    "replace",
    "space",
    "uniform",
]
