"""Pipelines on slices as data, run by every schedule: what to expect of them, and programs."""

from ringline.recipes._compare import Row as Row
from ringline.recipes._compare import compare as compare
from ringline.recipes._predict import Prediction as Prediction
from ringline.recipes._predict import by_hand as by_hand
from ringline.recipes._predict import predict as predict
from ringline.recipes._program import layer as layer
from ringline.recipes._program import loss as loss
from ringline.recipes._program import program as program
from ringline.recipes._recipe import WAYS as WAYS
from ringline.recipes._recipe import Recipe as Recipe
from ringline.recipes._recipe import Way as Way
from ringline.recipes._recipe import gather_of as gather_of
from ringline.recipes._recipe import read_recipe as read_recipe
from ringline.recipes._recipe import recipe_for as recipe_for
from ringline.recipes._recipe import recipe_names as recipe_names
from ringline.recipes._recipe import retarget as retarget
from ringline.recipes._recipe import way_of as way_of
