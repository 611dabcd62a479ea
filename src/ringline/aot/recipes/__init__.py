"""Pipelines on slices as data, run by every schedule: what to expect of them, and programs."""

from ringline.aot.recipes._compare import Row as Row
from ringline.aot.recipes._compare import compare as compare
from ringline.aot.recipes._predict import Prediction as Prediction
from ringline.aot.recipes._predict import by_hand as by_hand
from ringline.aot.recipes._predict import predict as predict
from ringline.aot.recipes._program import program as program
from ringline.aot.recipes._recipe import WAYS as WAYS
from ringline.aot.recipes._recipe import Recipe as Recipe
from ringline.aot.recipes._recipe import Way as Way
from ringline.aot.recipes._recipe import gather_of as gather_of
from ringline.aot.recipes._recipe import read_recipe as read_recipe
from ringline.aot.recipes._recipe import recipe_for as recipe_for
from ringline.aot.recipes._recipe import recipe_names as recipe_names
from ringline.aot.recipes._recipe import retarget as retarget
from ringline.aot.recipes._recipe import way_of as way_of
