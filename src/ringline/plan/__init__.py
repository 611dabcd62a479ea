"""Know before you run: what a layer and a step cost, which layout is best, and why.

Nothing here needs JAX.
"""

from ringline.plan._calibration import Calibration as Calibration
from ringline.plan._calibration import calibration_for as calibration_for
from ringline.plan._calibration import calibrations as calibrations
from ringline.plan._layer import LayerCost as LayerCost
from ringline.plan._layer import Shape as Shape
from ringline.plan._layer import activation_bytes as activation_bytes
from ringline.plan._layer import head_cost as head_cost
from ringline.plan._layer import layer_cost as layer_cost
from ringline.plan._layer import matmul_s as matmul_s
from ringline.plan._layout import Layout as Layout
from ringline.plan._layout import parse_constraints as parse_constraints
from ringline.plan._memory import Memory as Memory
from ringline.plan._model import Model as Model
from ringline.plan._model import model as model
from ringline.plan._model import models as models
from ringline.plan._roofline import Slowdown as Slowdown
from ringline.plan._roofline import hardware_intensity as hardware_intensity
from ringline.plan._roofline import mlp_intensity as mlp_intensity
from ringline.plan._roofline import slowdown as slowdown
from ringline.plan._roofline import stage_intensity as stage_intensity
from ringline.plan._rules import RULES as RULES
from ringline.plan._rules import Rule as Rule
from ringline.plan._search import Found as Found
from ringline.plan._search import search as search
from ringline.plan._step import Evaluator as Evaluator
from ringline.plan._step import Plan as Plan
from ringline.plan._step import Work as Work
