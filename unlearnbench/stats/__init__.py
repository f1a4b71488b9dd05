"""Statistics of arrays and texts: tests, intervals, Pareto fronts, ROUGE. Pure."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
