"""Origin of the numbers: code, data, machine, time and the resolved configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from ...report_section import PageContext, ReportSection
from .citation import citation
from .data import provenance_groups


def _values(context: PageContext) -> Mapping[str, Any]:
    config = dict(context.report.config)
    return {
        "cite": citation(context.report),
        "groups": provenance_groups(context.report),
        "config": yaml.safe_dump(config, sort_keys=False, allow_unicode=True) if config else "",
    }


SECTION = ReportSection(
    folder="provenance",
    id="origin",
    title="Origin",
    values=_values,
)
