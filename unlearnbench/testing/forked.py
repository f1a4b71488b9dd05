"""Makes the model that has learned its rows, which takes a second, before the server forks.

Only the server of `fresh` imports this module. Each process that it forks has the model then.
"""

from unlearnbench.testing.tiny_lab import learned

learned(2)
