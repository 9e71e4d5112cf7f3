"""The share of the learning rate that each parameter takes: the less, the deeper it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from unmask.model.encoder import MaskedLM
from unmask.model.task_folder import TaskNetwork

_ENCODER = "encoder.model."  # before the names that transformers gives
_POOLER, _EMBEDDING = "pooler", "embed"


def factors_of(model: TaskNetwork, decay: float) -> Callable[[str], float]:
    """The factor of each parameter by its name.

    Args:
        model: That is trained.
        decay: From each layer to the one below it.

    Source: Clark et al. 2020 (ELECTRA), appendix B.
    """
    if isinstance(model, MaskedLM):
        return layer_factors(model.config.num_layers, decay)
    names = [name for name, _ in model.named_parameters()]
    return foreign_layer_factors(names, str(model.encoder.model.base_model_prefix), decay)


def layer_factors(num_layers: int, decay: float) -> Callable[[str], float]:
    """The share of the learning rate that a parameter of ours takes.

    Example: with 2 layers and a decay of 0.5: head 1, second layer 0.5, first layer 0.25, embedding 0.125; what comes
    after the last layer goes with it.
    """

    def factor(name: str) -> float:
        if not name.startswith("encoder."):
            return 1.0
        if name.startswith("encoder.final_norm."):
            return decay
        below = num_layers - int(name.split(".")[2]) if name.startswith("encoder.blocks.") else num_layers + 1
        return decay**below

    return factor


def foreign_layer_factors(names: Iterable[str], prefix: str, decay: float) -> Callable[[str], float]:
    """The same by transformers' names. A layer's number is the first whole number in a name:

        encoder.model.deberta.encoder.layer.3.attention.self.query_proj.weight      layer 3
        encoder.model.deberta.embeddings.word_embeddings.weight                     below all layers
        encoder.model.deberta.encoder.rel_embeddings.weight                         with the embeddings
        encoder.model.deberta.encoder.LayerNorm.weight                              with the last layer
        encoder.model.bert.pooler.dense.weight                                      with the head

    Layers that share their weights (ALBERT) are one layer here, however often they are gone through: with a decay of
    0.5 they take 0.5 and the embeddings 0.25. Where layers stand in groups (ALBERT with several, Funnel's blocks), the
    group counts as the layer.

    Args:
        names: Of all parameters.
        prefix: Of the encoder's, as transformers calls it (`base_model_prefix`).
        decay: From each layer to the one below it.
    """
    inside = f"{_ENCODER}{prefix}."
    numbers = [number for name in names if name.startswith(inside) and (number := _layer(name)) is not None]
    num_layers = max(numbers, default=-1) + 1

    def factor(name: str) -> float:
        if not name.startswith(inside) or _POOLER in name:
            return 1.0
        number = _layer(name)
        if number is None:
            return decay ** (num_layers + 1) if _EMBEDDING in name else decay
        return decay ** (num_layers - number)

    return factor


def _layer(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdigit()), None)
