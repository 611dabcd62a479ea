"""The time of a `Program` on links and devices, as a `Timeline` of events. Nothing here needs JAX.

The package is itself callable: `ringline.simulate(schedule, ...)` is `simulate` below, whether or
not the package of that name has been imported.
"""

import sys
from types import ModuleType

from ringline.simulate._engine import simulate_program as simulate_program
from ringline.simulate._link import Link as Link
from ringline.simulate._memory import peak_live as peak_live
from ringline.simulate._step import simulate as simulate
from ringline.simulate._timeline import Event as Event
from ringline.simulate._timeline import Timeline as Timeline
from ringline.simulate._timeline import union as union


class _CallablePackage(ModuleType):
    """Importing a submodule rebinds its parent's attribute, so the package has to be the call."""

    __call__ = staticmethod(simulate)


sys.modules[__name__].__class__ = _CallablePackage
