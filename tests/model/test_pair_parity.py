"""The head for pairs: as in transformers' BertForPreTraining, alone and packed; what is saved loads everywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch

from tests.models import rich_model
from unmask.data.rows import Cursor, RowStream
from unmask.data.store import TokenStore
from unmask.model.encoder import MaskedLM
from unmask.model.folder import load_model, save_model
from unmask.model.initial_weights import initialise
from unmask.tokenizer.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")
MakeModel = Callable[..., MaskedLM]


def with_heads(make_model: MakeModel, *, boundary_length: int | None = None) -> MaskedLM:
    """A BERT with a head for pairs, and weights large enough for differences to show."""
    model = rich_model(make_model(layout="bert").config, pairs=True, boundary_length=boundary_length)
    initialise(model, seed=0)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.2, generator=generator)
    return model.eval()


@torch.no_grad()
def both_logits(model: MaskedLM, ids: torch.Tensor, **rows: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all tokens, and of pairs that begin there."""
    hidden = model.encoder(ids, **rows)
    assert model.pair_head is not None
    tokens = model.predict(hidden.flatten(0, 1), torch.arange(ids.numel())).view(*ids.shape, -1)
    return tokens, model.pair_head(hidden)


@pytest.fixture
def ours(make_model: MakeModel) -> MaskedLM:
    return with_heads(make_model)


@pytest.fixture
def theirs(ours: MaskedLM, tmp_path: Path) -> torch.nn.Module:
    save_model(ours, tmp_path / "model")
    model, found = transformers.BertForPreTraining.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    return model.eval()


@pytest.mark.parametrize("kind", ["next_sentence", "sentence_order"])
def test_packed_pairs(
    ours: MaskedLM, theirs: torch.nn.Module, store: TokenStore, tokenizer: Tokenizer, kind: str
) -> None:
    stream = RowStream(store, tokenizer, length=64, seed=0, pairs=kind)  # type: ignore[arg-type]
    compared = packed_with_others = 0
    for batch in islice(stream.batches(Cursor(), 4), 2):
        rows = batch.rows
        assert rows.token_type_ids is not None
        tokens, pairs = both_logits(
            ours,
            rows.input_ids,
            segment_ids_BS=rows.segment_ids,
            position_ids_BS=rows.position_ids,
            token_type_ids_BS=rows.token_type_ids,
        )
        for r in range(len(rows.input_ids)):
            last = int(rows.segment_ids[r].max())
            packed_with_others += last > 0
            for n in range(last + 1):
                inside = rows.segment_ids[r] == n
                with torch.no_grad():
                    wanted = theirs(
                        input_ids=rows.input_ids[r][inside][None], token_type_ids=rows.token_type_ids[r][inside][None]
                    )
                assert (tokens[r][inside] - wanted.prediction_logits[0]).abs().max() < 1e-4
                assert (pairs[r][inside][0] - wanted.seq_relationship_logits[0]).abs().max() < 1e-4
                compared += 1
    assert compared > 10
    assert packed_with_others > 3


def test_what_is_saved_is_also_a_masked_language_model(
    make_model: MakeModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = with_heads(make_model, boundary_length=8)
    with caplog.at_level(logging.INFO, logger="unmask"):
        save_model(model, tmp_path / "model")
    assert "the head for span boundaries is not saved with the model, since transformers has no place" in caplog.text
    ids = torch.randint(5, 190, (2, 30), generator=torch.Generator().manual_seed(0))
    tokens = both_logits(model, ids)[0]
    for kind in (transformers.BertForMaskedLM, transformers.AutoModelForMaskedLM):
        with torch.no_grad():
            found = kind.from_pretrained(tmp_path / "model").eval()(input_ids=ids).logits
        assert (tokens - found).abs().max() < 1e-4
    automatic = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "model")
    assert type(automatic).__name__ == "BertForPreTraining"

    caplog.clear()
    again = load_model(tmp_path / "model", mask_id=4).eval()
    assert not caplog.text
    with torch.no_grad():
        assert torch.equal(again(ids, positions_N=torch.arange(60)).view(2, 30, -1), tokens)
    save_model(again, tmp_path / "again")
    theirs = transformers.BertForPreTraining.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        pairs = theirs(input_ids=ids).seq_relationship_logits
    assert (pairs - both_logits(model, ids)[1][:, 0]).abs().max() < 1e-4, "a head that is not used is written back"
