from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

import unmask
from unmask.core.errors import ModelError, SettingsError
from unmask.tasks.fill import FillSettings, fill_texts


def test_the_pipeline_of_transformers_gives_the_same_candidates(run: unmask.Run) -> None:
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.pipeline("fill-mask", str(run.folder / "model"))
    compared = 0
    for text in ("The king [MASK] the queen at sea.", "[MASK]", "In the [MASK] of Constantinople, the dog"):
        for ours, theirs in zip(run.model.fill(text).masks[0], pipeline(text, top_k=5), strict=True):
            assert (ours.token_id, ours.token) == (theirs["token"], run.model.tokenizer.token(theirs["token"]))
            assert ours.probability == pytest.approx(theirs["score"], rel=1e-3)
            compared += 1
    assert compared == 15


def test_the_model_has_learned_something(run: unmask.Run) -> None:
    tokens = [c.token for c in run.model.fill("The king loves [MASK] queen at sea.", top_k=3).masks[0]]
    assert "the" in tokens


def test_several_masks(run: unmask.Run) -> None:
    filled = run.model.fill("The [MASK] loves the [MASK] [MASK] sea.", top_k=4)
    assert [len(candidates) for candidates in filled.masks] == [4, 4, 4]
    assert len(filled.fillings) == 4
    assert all(len(filling.tokens) == 3 for filling in filled.fillings)
    chances = [filling.probability for filling in filled.fillings]
    assert chances == sorted(chances, reverse=True)
    assert "[MASK]" not in filled.fillings[0].text


def test_joint_fillings_are_the_best_by_the_chain_rule(run: unmask.Run) -> None:
    """Against all pairs, with beams as wide as the vocabulary."""
    model, tokenizer = run.model.network, run.model.tokenizer
    size = tokenizer.vocab_size
    ids = torch.from_numpy(tokenizer.encode_prompt("The king [MASK] [MASK] dog."))
    places = (ids == tokenizer.special.mask).nonzero()[:, 0]
    with torch.no_grad():
        first = torch.softmax(model(ids[None].long(), positions_N=places[:1])[0], -1)
        variants = ids.long().repeat(size, 1)
        variants[:, places[0]] = torch.arange(size)
        second = torch.softmax(model(variants, positions_N=torch.arange(size) * len(ids) + places[1]), -1)
    joint = first[:, None] * second
    best = max(product(range(size), range(size)), key=lambda pair: float(joint[pair]))
    filled = fill_texts(model, tokenizer, ["The king [MASK] [MASK] dog."], FillSettings(top_k=size))[0]
    assert filled.fillings[0].tokens == tuple(tokenizer.token(i) for i in best)
    assert filled.fillings[0].probability == pytest.approx(float(joint[best]), rel=1e-3)


@pytest.mark.parametrize(
    ("text", "top_k", "message"),
    [
        ("The king.", 5, r"there is no \[MASK\] in the text 'The king\.'; put \[MASK\]"),
        ("[MASK]", 0, "top_k is a number from 1 to"),
    ],
)
def test_texts_that_cannot_be_filled(run: unmask.Run, text: str, top_k: int, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        run.model.fill(text, top_k=top_k)


def test_folders_that_are_no_model(run: unmask.Run, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder; give the folder of a model"):
        unmask.load(tmp_path / "none")
    assert unmask.load(run.folder).folder == run.folder / "model", "the folder of a run stands for its model"
