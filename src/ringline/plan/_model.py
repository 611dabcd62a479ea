"""`Model`: the sizes of a decoder, and its counts of parameters, FLOPs and activations."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ringline.topology._tables import Table, nearest, read_table

_DATA = Path(__file__).parent / "data" / "models.toml"
_OPTIONAL = {
    "kv_heads": 0,
    "head_dim": 0,
    "value_dim": 0,
    "attention_parameters": 0,
    "expert_mlp": 0,
    "experts": 0,
    "experts_per_token": 0,
    "shared_experts": 0,
    "dense_layers": 0,
}
_NO_LETTER = re.compile(r"[^a-z0-9]")
# What publishers put behind a model's name, which says nothing of its sizes.
_SUFFIX = re.compile(r"[- _](?:hf|base|pt|it|chat|instruct|v\d+(?:\.\d+)?|a\d+b|fp8|bf16)$")
_REQUIRED = ("layers", "hidden", "heads", "mlp", "vocab")


@dataclass(frozen=True, slots=True)
class Model:
    r"""A decoder: dense, or with a mixture of experts in its layers.

    With h hidden, a heads, d the width of a head, s the length, a plain layer with an MLP of
    width 4h has $12 h^2$ matrix entries and costs $24 h^2 + 4 s h$ FLOPs a token forward.

    Attributes:
        name: what people call it.
        layers: how many.
        hidden: width of the residual stream.
        heads: query heads.
        mlp: width of the feed-forward layer.
        vocab: rows of the embedding.
        kv_heads: key and value heads, `heads` where 0.
        head_dim: width of a query head, `hidden / heads` where 0.
        value_dim: width of a value head, `head_dim` where 0.
        attention_parameters: matrix entries of one attention, counted from the heads where 0.
        gated: three matrices in the MLP in place of two.
        tied: embedding and head are one matrix.
        experts: experts in a layer, 0 for a dense model.
        experts_per_token: how many of them see a token.
        shared_experts: experts that see every token.
        expert_mlp: width of one expert.
        dense_layers: layers that keep the plain MLP.
        source: where the sizes come from.

    Example:
        >>> model("llama3-70b").parameters
        70553706496
    """

    name: str
    layers: int
    hidden: int
    heads: int
    mlp: int
    vocab: int
    kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0
    attention_parameters: int = 0
    gated: bool = False
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_mlp: int = 0
    dense_layers: int = 0
    source: str = ""

    @property
    def key_width(self) -> int:
        """Width of a query or key head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def value_width(self) -> int:
        """Width of a value head."""
        return self.value_dim or self.key_width

    @property
    def key_heads(self) -> int:
        """Key and value heads."""
        return self.kv_heads or self.heads

    @property
    def attention_matrices(self) -> int:
        """Matrix entries of one attention: queries, keys, values and output."""
        if self.attention_parameters:
            return self.attention_parameters
        query = self.heads * self.key_width
        pairs = self.key_heads * (self.key_width + self.value_width)
        return self.hidden * (query + pairs + self.heads * self.value_width)

    @property
    def mlp_matrices(self) -> int:
        """How many matrices an MLP has."""
        return 3 if self.gated else 2

    @property
    def sparse_layers(self) -> int:
        """Layers that hold experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def shared_matrices_per_layer(self) -> float:
        """Matrix entries that every token sees, mean over the layers."""
        dense = self.mlp_matrices * self.hidden * self.mlp
        always = self.hidden * (
            self.mlp_matrices * self.shared_experts * self.expert_mlp + self.experts
        )
        sparse = self.sparse_layers
        return (
            self.attention_matrices
            + ((self.layers - sparse) * dense + sparse * always) / self.layers
        )

    @property
    def expert_matrices_per_layer(self) -> float:
        """Matrix entries of all routed experts, mean over the layers."""
        one = self.mlp_matrices * self.hidden * self.expert_mlp
        return self.experts * one * self.sparse_layers / self.layers

    @property
    def routed_share(self) -> float:
        """Share of the routed experts that one token sees."""
        return self.experts_per_token / self.experts if self.experts else 0.0

    @property
    def layer_parameters(self) -> float:
        """Parameters of a layer with its two norms, mean over the layers."""
        matrices = self.shared_matrices_per_layer + self.expert_matrices_per_layer
        return matrices + 2 * self.hidden

    @property
    def active_matrices_per_layer(self) -> float:
        """Matrix entries that one token is multiplied with, mean over the layers."""
        return self.shared_matrices_per_layer + self.routed_share * self.expert_matrices_per_layer

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, and of the head where it is another matrix."""
        return self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return round(self.layers * self.layer_parameters + self.embedding_parameters + self.hidden)

    @property
    def active_parameters(self) -> int:
        """Parameters that take part for one token."""
        unused = (1 - self.routed_share) * self.expert_matrices_per_layer if self.experts else 0.0
        return round(self.parameters - self.layers * unused)

    def attention_flops(self, length: int, *, causal: bool) -> float:
        """FLOPs of scores and context for one token in one layer, forward."""
        full = 2 * length * self.heads * (self.key_width + self.value_width)
        return full / 2 if causal else full

    def layer_flops(self, length: int, *, causal: bool = False) -> float:
        """FLOPs of one token through one layer, forward.

        Example:
            >>> gpt = model("gpt3-22b")
            >>> h, s = gpt.hidden, 2048
            >>> gpt.layer_flops(s) == 24 * h**2 + 4 * s * h
            True
        """
        return 2 * self.active_matrices_per_layer + self.attention_flops(length, causal=causal)

    def head_flops(self) -> float:
        """FLOPs of one token through the output head, forward."""
        return 2 * self.hidden * self.vocab

    def step_flops(self, tokens: float, length: int, *, causal: bool = True) -> float:
        """FLOPs that a training step needs: forward and twice that backward.

        The convention of model FLOPs: no recomputation, no embedding look-up, and with
        `causal` only the half of the scores that the mask keeps.
        """
        forward = self.layers * self.layer_flops(length, causal=causal) + self.head_flops()
        return 3 * tokens * forward


@cache
def models() -> dict[str, Model]:
    """Every model of the data file, by name."""
    return {table.name: _model_of(table) for table in read_table(_DATA).tables()}


def model(name: str) -> Model:
    """The model called `name`, or described by the TOML file at that path.

    Raises:
        ValueError: for an unknown name (with the nearest ones) or a fault in the file (with
            file, line and key).
    """
    if name.lower().endswith(".toml"):
        top = read_table(name)
        return _model_of(top.table("model") if "model" in top else top)
    found = next((key for key in _spellings(name) if key in _squashed()), None)
    if found is None:
        wanted = name.strip().lower().rpartition("/")[2]
        raise ValueError(
            f"unknown model {name!r}{nearest(wanted, models())} (or give a .toml file)"
        )
    return models()[_squashed()[found]]


@cache
def _squashed() -> dict[str, str]:
    """Names of the models by their letters and digits alone."""
    return {_NO_LETTER.sub("", name): name for name in models()}


def _spellings(name: str) -> Iterator[str]:
    """What `meta-llama/Llama-3.1-70B-Instruct` may be called here, by letters and digits alone.

    Llama 3.1 and 3.3 have the sizes of Llama 3.
    """
    plain = name.strip().lower().rpartition("/")[2].removeprefix("meta-")
    plain = re.sub(r"(llama[- _]?3)\.[13]\b", r"\1", plain)
    yield _NO_LETTER.sub("", plain)
    while plain != (shorter := _SUFFIX.sub("", plain)):
        plain = shorter
        yield _NO_LETTER.sub("", plain)


def _model_of(table: Table) -> Model:
    table.require_known((*_REQUIRED, *_OPTIONAL, "gated", "tied", "name", "source"))
    sizes = {name: table.whole(name) for name in _REQUIRED}
    sizes |= {name: table.whole(name, default, least=0) for name, default in _OPTIONAL.items()}
    if sizes["hidden"] % sizes["heads"] and not sizes["head_dim"]:
        raise table.error(
            "heads",
            f"{sizes['heads']} heads do not divide hidden {sizes['hidden']}; change one, or add "
            "head_dim",
        )
    if sizes["kv_heads"] and sizes["heads"] % sizes["kv_heads"]:
        raise table.error(
            "kv_heads", f"{sizes['kv_heads']} do not divide {sizes['heads']} heads; change one"
        )
    if sizes["experts"] and not (sizes["expert_mlp"] and sizes["experts_per_token"]):
        raise table.error("experts", "needs expert_mlp and experts_per_token beside it; add them")
    if sizes["experts_per_token"] > sizes["experts"]:
        raise table.error("experts_per_token", f"more than the {sizes['experts']} experts")
    if sizes["dense_layers"] > sizes["layers"]:
        raise table.error("dense_layers", f"more than the {sizes['layers']} layers")
    return Model(
        name=table.text("name", table.name or table.path.stem),
        gated=table.flag("gated"),
        tied=table.flag("tied"),
        source=table.text("source", str(table.path)),
        **sizes,
    )
