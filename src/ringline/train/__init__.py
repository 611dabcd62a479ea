"""The reference trainer: a decoder language model learnt through a pipeline.

The configuration is loaded at once; whatever needs JAX, optax or orbax when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ringline.train._config import TrainConfig as TrainConfig
from ringline.train._config import merge as merge
from ringline.train._config import read_toml as read_toml
from ringline.train._config import to_toml as to_toml

if TYPE_CHECKING:
    from ringline.train._compare import compare as compare
    from ringline.train._data import Corpus as Corpus
    from ringline.train._data import load_corpus as load_corpus
    from ringline.train._distributed import start as start
    from ringline.train._loop import train as train

_HOMES = {
    "Corpus": "_data",
    "load_corpus": "_data",
    "compare": "_compare",
    "start": "_distributed",
    "train": "_loop",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
