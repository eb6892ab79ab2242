"""Lets tests import the benchmarks: they are no package of the product's."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
