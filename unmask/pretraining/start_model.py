"""The model of a training that begins with a checkpoint: its weights, and new heads where objectives need them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from unmask.model.encoder import MaskedLM
from unmask.model.folder import LAYOUTS, load_model
from unmask.model.heads import BoundaryHead, LabelHead, PairHead
from unmask.model.initialise import initialise
from unmask.recipe.encoder import new_model
from unmask.recipe.recipe import Recipe
from unmask.tokens.tokenizer import Tokenizer


def start_model(
    recipe: Recipe, folder: Path, tokenizer: Tokenizer, label_names: Sequence[str] = ()
) -> tuple[MaskedLM, list[str]]:
    """The model as the training begins.

    Args:
        recipe: Its objectives say which heads there are beside that for masked tokens.
        folder: Of the start.
        tokenizer: Of the start.
        label_names: The classes of documents, where they are an objective.

    Returns:
        The model, and a line on each head that is taken from the checkpoint or new.
    """
    found = load_model(folder, mask_id=tokenizer.special.mask)
    config = found.config.model_copy(update={"dropout": recipe.model.dropout})
    model = new_model(recipe, tokenizer, label_names, config=config)
    initialise(model, seed=recipe.training.seed)
    weights: dict[str, Tensor] = dict(found.named_parameters())
    if model.label_names != found.label_names:
        weights = {name: weight for name, weight in weights.items() if not name.startswith("label_head.")}
    notes = []
    if model.find_head(PairHead) is not None:
        pairs = _kept_pair_head(found)
        notes.append(f"the head for pairs is {_whose(bool(pairs))}")
        weights |= pairs
    if model.find_head(LabelHead) is not None:
        notes.append(f"the head for classes is {_whose(model.label_names == found.label_names)}")
    if model.find_head(BoundaryHead) is not None:
        notes.append(f"the head for span boundaries is {_whose(False)}")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
    model.kept_weights = found.kept_weights
    return model, notes


def _whose(kept: bool) -> str:
    return "the checkpoint's" if kept else "new"


def _kept_pair_head(found: MaskedLM) -> dict[str, Tensor]:
    """BERT's pooler and classifier of pairs by our names; empty without both.

    They were loaded without being used, but for the pooler where classes of documents are told from it.
    """
    names = LAYOUTS[found.config.layout].names
    ours = [f"pair_head.{part}.{kind}" for part in ("pooler", "classifier") for kind in ("weight", "bias")]
    stored = {name: found.kept_weights.get(names.theirs(name)[0]) for name in ours}
    label_head = found.find_head(LabelHead)
    if label_head is not None and label_head.dense is not None:
        pooler = label_head.dense.named_parameters(prefix="pair_head.pooler")
        stored |= {name: weight.detach() for name, weight in pooler}
    kept = {name: weight for name, weight in stored.items() if weight is not None}
    return kept if len(kept) == len(ours) else {}
