"""A plan carried out on Ray: preparation as tasks, runs as trials of Tune.

Only this package imports ray. Three things are unlike a usual Tune script. Worker processes are
reused from trial to trial, since each start costs seconds of imports. Tune keeps no checkpoints and
resumes nothing: records on disk say what is finished, so whatever is killed, the same command goes
on. And Ray says nothing on its own: a callback tells progress and MLflow.
"""

from unlearnbench.sweep.driver import run_sweep

__all__ = ["run_sweep"]
