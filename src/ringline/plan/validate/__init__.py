"""What the package predicts beside what others published or measured.

Each check gives a `Report` of figures; `CHECKS` holds them by name. Other packages add theirs
with `check(name)`.
"""

from ringline.plan.validate import (
    _all_gather,  # noqa: F401
    _bubbles,  # noqa: F401
    _closed_forms,  # noqa: F401
    _korthikanti,  # noqa: F401
    _narayanan,  # noqa: F401
    _published,  # noqa: F401
    _seeds,  # noqa: F401
    _vtrain,  # noqa: F401
)
from ringline.plan.validate._figure import CHECKS as CHECKS
from ringline.plan.validate._figure import Figure as Figure
from ringline.plan.validate._figure import Options as Options
from ringline.plan.validate._figure import Report as Report
from ringline.plan.validate._figure import check as check
from ringline.plan.validate._markdown import markdown as markdown
