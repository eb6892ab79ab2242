"""Types of numpy's arrays, as planners write them."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]
Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Numbers: TypeAlias = Floats | Sequence[float] | float
