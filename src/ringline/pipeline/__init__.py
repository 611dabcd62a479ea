"""Pipelines of layers over the stages of a mesh, run by schedule."""

from ringline.pipeline._chunk import MAX_UNROLLED as MAX_UNROLLED
from ringline.pipeline._forward import pipeline as pipeline
from ringline.pipeline._keys import layer_keys as layer_keys
from ringline.pipeline._layers import StackedLayers as StackedLayers
from ringline.pipeline._layers import stack_layers as stack_layers
from ringline.pipeline._layers import unstack_layers as unstack_layers
from ringline.pipeline._loss import pipeline_loss as pipeline_loss
from ringline.pipeline._tables import tick_tables as tick_tables
