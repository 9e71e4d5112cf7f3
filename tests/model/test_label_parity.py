"""The head for classes: as in transformers' sequence classifier of every layout; saved, loaded, and saved again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.models import rich_model
from unmask.model.encoder import MaskedLM
from unmask.model.folder import save_model
from unmask.model.initial_weights import initialise

transformers = pytest.importorskip("transformers")
MakeModel = Callable[..., MaskedLM]
LAYOUTS = ["modernbert", "bert", "roberta", "roberta-prelayernorm"]
NAMES = ("bored", "glad", "sad")


def with_head(make_model: MakeModel, layout: str, *, pairs: bool = False) -> MaskedLM:
    """Weights large enough for differences to show."""
    model = rich_model(make_model(layout=layout).config, pairs=pairs, label_names=NAMES)
    initialise(model, seed=0)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.2, generator=generator)
    return model.eval()


@torch.no_grad()
def both_logits(model: MaskedLM, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all tokens, and of the classes of rows that are documents."""
    hidden = model.encoder(ids)
    tokens = model.predict(hidden.flatten(0, 1), torch.arange(ids.numel())).view(*ids.shape, -1)
    return tokens, model.outputs("label_head", hidden[:, 0])


def some_ids() -> torch.Tensor:
    return torch.randint(5, 60, (4, 20), generator=torch.Generator().manual_seed(0))


CASES = [*((layout, False) for layout in LAYOUTS), ("bert", True)]


@pytest.mark.parametrize(("layout", "pairs"), CASES)
def test_the_folder_is_one_of_both_kinds(make_model: MakeModel, tmp_path: Path, layout: str, pairs: bool) -> None:
    """A sequence classifier with all of its weights, with our logits and names; and a masked language model."""
    ours = with_head(make_model, layout, pairs=pairs)
    save_model(ours, tmp_path)
    tokens, classes = both_logits(ours, some_ids())
    theirs, found = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not found["missing_keys"]
    assert theirs.config.id2label == dict(enumerate(NAMES))
    assert theirs.config.label2id == {name: number for number, name in enumerate(NAMES)}
    mask = torch.ones_like(some_ids())
    with torch.no_grad():
        logits = theirs.eval()(some_ids(), attention_mask=mask).logits
    assert logits.shape == (4, 3)
    assert classes.std() > 0.05
    torch.testing.assert_close(classes, logits, rtol=1e-4, atol=1e-5)
    theirs, found = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not found["missing_keys"]
    with torch.no_grad():
        logits = theirs.eval()(some_ids(), attention_mask=mask).logits
    torch.testing.assert_close(tokens, logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_head_changes_nothing_of_the_others(make_model: MakeModel, tmp_path: Path, layout: str) -> None:
    """Neither what the encoder is drawn as, nor what a folder without classes says."""
    config = make_model(layout=layout).config
    plain, labelled = MaskedLM(config), rich_model(config, label_names=NAMES)
    for model in (plain, labelled):
        initialise(model, seed=3)
    theirs = dict(labelled.named_parameters())
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, theirs.pop(name)), name
    assert theirs
    assert all(name.startswith("label_head.") for name in theirs)
    save_model(plain, tmp_path)
    assert not {"id2label", "label2id"} & set(json.loads((tmp_path / "config.json").read_text()))
