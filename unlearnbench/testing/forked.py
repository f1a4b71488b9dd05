"""Of each fork of the checks' server: the model that has learned its rows, which takes a second.

Import it in that server alone.
"""

from unlearnbench.testing.tiny_lab import learned

learned(2)
