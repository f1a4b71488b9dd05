"""Statistics of arrays and texts: tests, intervals, Pareto fronts, ROUGE. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
