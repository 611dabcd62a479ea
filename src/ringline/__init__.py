"""Ring and line collectives and pipeline parallelism for JAX, as schedules.

Data moves only between neighbours, and the order it moves in is a schedule: plain data that is
checked, executed, simulated and drawn. Names are loaded when first used, so importing this
package starts no JAX work.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringline import aot as aot
    from ringline import schedules as schedules
    from ringline import topology as topology
    from ringline import trace as trace
    from ringline.collectives import all_gather as all_gather
    from ringline.collectives import all_gather_matmul as all_gather_matmul
    from ringline.collectives import all_reduce as all_reduce
    from ringline.collectives import matmul_reduce_scatter as matmul_reduce_scatter
    from ringline.collectives import reduce_scatter as reduce_scatter
    from ringline.pipeline import StackedLayers as StackedLayers
    from ringline.pipeline import layer_keys as layer_keys
    from ringline.pipeline import pipeline as pipeline
    from ringline.pipeline import pipeline_loss as pipeline_loss
    from ringline.pipeline import stack_layers as stack_layers
    from ringline.pipeline import unstack_layers as unstack_layers
    from ringline.schedule import CollectiveSchedule as CollectiveSchedule
    from ringline.schedule import PipelineSchedule as PipelineSchedule
    from ringline.schedule import Program as Program
    from ringline.schedule import ScheduleError as ScheduleError
    from ringline.simulate import Timeline as Timeline
    from ringline.simulate import simulate as simulate
    from ringline.topology import make_mesh as make_mesh

__version__ = "0.1.0"

_HOMES = {
    "all_gather": "ringline.collectives",
    "all_gather_matmul": "ringline.collectives",
    "all_reduce": "ringline.collectives",
    "matmul_reduce_scatter": "ringline.collectives",
    "reduce_scatter": "ringline.collectives",
    "pipeline": "ringline.pipeline",
    "layer_keys": "ringline.pipeline",
    "pipeline_loss": "ringline.pipeline",
    "stack_layers": "ringline.pipeline",
    "unstack_layers": "ringline.pipeline",
    "StackedLayers": "ringline.pipeline",
    "CollectiveSchedule": "ringline.schedule",
    "PipelineSchedule": "ringline.schedule",
    "Program": "ringline.schedule",
    "ScheduleError": "ringline.schedule",
    "Timeline": "ringline.simulate",
    "simulate": "ringline.simulate",
    "make_mesh": "ringline.topology",
}

_MODULES = ("aot", "schedules", "topology", "trace")

__all__ = ["__version__", *_MODULES, *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"ringline.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


class _Package(ModuleType):
    """Keeps a function such as `ringline.pipeline` from being hidden by the package it lives in."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted(__all__)
