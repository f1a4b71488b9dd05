"""The contract of a section of the report page. A section shows results and computes none."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class ReportSection(ABC):
    """A part of the page with a heading and an entry in the navigation.

    Sections are found by entry points of the group `unlearnbench.sections`. They are made without
    arguments.
    """

    name: ClassVar[str]
    """Id of the HTML element: `curves`, to which `#curves` links."""
    title: ClassVar[str]
    """Heading, and the text of the link in the navigation."""
    order: ClassVar[float] = 1000
    """Position: sections are sorted by ascending `order`. The package's own have 10, 20, … 140."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Attributes of the results, such as `attacked`. The section is left out if one is empty."""

    @abstractmethod
    def render(self, results: Any) -> str:
        """Write the HTML below the heading.

        The page loads nothing, so scripts and styles of the section have to be in the HTML.

        Args:
            results: An `unlearnbench.analysis.results.Results`.

        Returns:
            The HTML. Empty text leaves the section out.
        """
