"""Contract of a section of the report page, which shows results and computes none."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class ReportSection(ABC):
    """A part of the page with a heading and an entry in the navigation; made without arguments.

    It is found by an entry point of the group `unlearnbench.sections`.
    """

    name: ClassVar[str]
    """Id of the HTML element, which links name: `#curves`."""
    title: ClassVar[str]
    """Heading, and the text of the link in the navigation."""
    order: ClassVar[float] = 1000
    """Sections stand by ascending order; those of this package have 10, 20, … 140."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Attributes of the results without which the section is left out, such as `attacked`."""

    @abstractmethod
    def render(self, results: Any) -> str:
        """Write the HTML below the heading; empty text leaves the section out.

        It has to be complete: the page loads nothing. Scripts and styles may be in it.

        results  what the page is made of, an `unlearnbench.analysis.results.Results`
        """
