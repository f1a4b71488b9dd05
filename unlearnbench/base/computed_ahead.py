"""Values that a thread computes while the value before is still in use."""

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

_T = TypeVar("_T")


def computed_ahead(values: Iterable[_T]) -> Generator[_T, None, None]:
    """Yield the values of an iterable, and meanwhile compute the next one in a thread.

    The first value is computed in the thread that asks for it. So what is made ready once, at the
    first use, is ready before two threads use it.

    Args:
        values: Computes a value when it is asked for the next one. It should spend its time outside
            of the interpreter, which only one thread can use at a time.
    """
    source = iter(values)

    def take() -> list[_T]:
        """Take the next value; none after the last one."""
        return [*islice(source, 1)]

    taken = take()
    with ThreadPoolExecutor(1, "computed ahead") as thread:
        while taken:
            following = thread.submit(take)
            yield from taken
            taken = following.result()
