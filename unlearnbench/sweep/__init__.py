"""Execute a plan on Ray: preparation as tasks, runs as trials of Tune.

Only this package imports ray. Three things differ from a usual Tune script. Worker processes are
reused from trial to trial, since each start costs seconds of imports. Tune stores no checkpoints
and resumes nothing: records on disk show what has finished, so that the same command continues
after any kill. And Ray prints nothing: a callback reports to progress and MLflow.
"""
