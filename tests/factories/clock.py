"""A clock for what measures time."""


class Clock:
    """A clock that a test sets by hand; it does not go by itself."""

    now = 0.0
    """Seconds."""

    def __call__(self) -> float:
        """Return the time, as `time.monotonic` does."""
        return self.now
