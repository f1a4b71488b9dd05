"""Statistics of arrays and texts: tests, intervals, Pareto fronts, ROUGE."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
