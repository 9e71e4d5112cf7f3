"""Candidates and joint fillings, against transformers' pipeline, the chain rule written out, and texts by hand."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch

import unmask
from tests.model.helpers import MakeModel
from unmask.core.errors import SettingsError
from unmask.model.encoder import MaskedLM
from unmask.tasks.fill import fill_texts
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train import runner

TEXTS = [
    "The king [MASK] the queen at sea.",
    "[MASK]",
    "In the [MASK] of Constantinople, the [MASK] and the dog and the [MASK] at sea",
    "the dog [MASK]",
] * 3


def log_probabilities(model: MaskedLM, ids: list[int]) -> torch.Tensor:
    """[S, V], of a text by itself: the plain way."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids]), positions_N=torch.arange(len(ids))).float(), -1)


def test_a_list_gives_what_each_text_gives(run: unmask.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [run.model.fill(text, top_k=3) for text in TEXTS]
    for positions, logits in ((4096, 1 << 25), (40, 2 * 200)):  # batches of one or two texts, few places of the head
        monkeypatch.setattr(runner, "BATCH_POSITIONS", positions)
        monkeypatch.setattr(runner, "HEAD_LOGITS", logits)
        together = run.model.fill(TEXTS, top_k=3)
        for one, other in zip(alone, together, strict=True):
            assert [len(mask) for mask in one.masks] == [len(mask) for mask in other.masks]
            for mine, theirs in zip(sum(one.masks, ()), sum(other.masks, ()), strict=True):
                assert mine.probability == pytest.approx(theirs.probability, rel=1e-3)
            assert one.masks[0][0].token == other.masks[0][0].token
            assert one.fillings[0].tokens == other.fillings[0].tokens
    assert run.model.fill(text for text in TEXTS[:3]) == run.model.fill(TEXTS[:3])
    assert run.model.fill([]) == []


def test_transformers_pipeline_agrees(run: unmask.Run) -> None:
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.pipeline("fill-mask", str(run.folder / "model"))
    theirs = pipeline(TEXTS, top_k=4, batch_size=5)
    compared = 0
    for filled, result in zip(run.model.fill(TEXTS, top_k=4), theirs, strict=True):
        masks = [result] if len(filled.masks) == 1 else result
        for ours, others in zip(filled.masks, masks, strict=True):
            assert [c.probability for c in ours] == pytest.approx([o["score"] for o in others], rel=1e-3)
            assert ours[0].token_id == others[0]["token"]
            assert ours[0].token == run.model.tokenizer.token(ours[0].token_id)
            compared += 1
    assert compared == 18
    words = [word for word in ("king", "queen", "the", "sea") if run.model.tokenizer.backend.token_to_id(word)]
    assert len(words) > 1
    filled = run.model.fill(TEXTS[0], candidates=np.array(words))
    targets = {result["token"]: result["score"] for result in pipeline(TEXTS[0], targets=words)}
    assert {c.token_id: pytest.approx(c.probability, rel=1e-3) for c in filled.masks[0]} == targets
    both = run.model.fill("[MASK] [MASK]", candidates=words)
    assert {token for filling in both.fillings for token in filling.tokens} <= set(words)


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
    filled = fill_texts(model, tokenizer, ["The king [MASK] [MASK] dog."], top_k=size)[0]
    assert filled.fillings[0].tokens == tuple(tokenizer.token(i) for i in best)
    assert filled.fillings[0].probability == pytest.approx(float(joint[best]), rel=1e-3)


def test_texts_longer_than_the_model(make_model: MakeModel, tokenizer: Tokenizer) -> None:
    """Each mask is predicted with as much text around it as the model takes."""
    model = make_model(max_position_embeddings=16)
    text = "the king sees [MASK] at sea and the dog loves the cat in the garden at sea the [MASK] and the ship at sea"
    ids = tokenizer.encode_prompt(text)
    assert len(ids) > 24
    filled, short = fill_texts(model, tokenizer, [text, "the [MASK]"], top_k=2)
    chances = []
    for mask, place in zip(filled.masks, np.flatnonzero(ids == tokenizer.special.mask).tolist(), strict=True):
        begin = min(max(place - 7, 1), len(ids) - 1 - 14)
        window = [2, *ids[begin : begin + 14].tolist(), 3]
        found = log_probabilities(model, window)[place - begin + 1]
        assert mask[0].token_id == int(found.argmax())
        assert mask[0].probability == pytest.approx(math.exp(found.max()), rel=1e-3)
        chances.append(mask[0].probability)
    assert len(filled.fillings) == 2
    assert filled.fillings[0].probability == pytest.approx(math.prod(chances), rel=1e-3), "neither window sees both"
    assert len(short.masks) == 1


@pytest.mark.parametrize(
    ("text", "options", "names"),
    [
        ("[MASK]", {"top_k": 100_000}, "top_k"),
        ("[MASK]", {"candidates": []}, "candidates"),
        ("[MASK]", {"candidates": "king"}, "candidates"),
        ("[MASK]", {"candidates": ["king", " "]}, "candidates"),
        ("[MASK]", {"candidates": ["中文字"]}, "中文字"),
        ("[MASK]", {"candidates": ["king", "Balomin"]}, "Balomin"),
        (["[MASK]", 3], {}, "int"),
        (["[MASK]", "The king"], {}, "The king"),
        (["[MASK]", "[MASK] the king \udcff"], {}, r"the text '\[MASK\] the king \\udcff'"),
        ("[MASK]", {"candidates": ["sea", "the king \udcff"]}, r"candidates: 'the king \\udcff'"),
    ],
)
def test_texts_that_cannot_be_filled(run: unmask.Run, text: str, options: dict[str, object], names: str) -> None:
    with pytest.raises(SettingsError, match=names):
        run.model.fill(text, **options)  # type: ignore[call-overload]
