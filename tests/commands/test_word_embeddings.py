"""Embeddings of an encoder on the disk, for the words of another vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend

from unmask.commands.masking_tables import word_embeddings
from unmask.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def encoder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """With our own tokenizer, so that every token is one piece."""
    folder = tmp_path / "encoder"
    folder.mkdir()
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.enable_padding(length=16)  # as files of sentence encoders have it
    backend.enable_truncation(1)
    backend.save(str(folder / "tokenizer.json"))
    table = torch.randn(tokenizer.vocab_size, 8, generator=torch.Generator().manual_seed(0))
    save_file(
        {"embeddings.word_embeddings.weight": table, "pooler.weight": torch.zeros(2, 2)}, folder / "model.safetensors"
    )
    return folder


def test_tokens_get_the_mean_of_their_pieces(encoder: Path, tokenizer: Tokenizer) -> None:
    """Angles between centred embeddings are kept, whatever directions they are told in."""
    table = torch.randn(tokenizer.vocab_size, 8, generator=torch.Generator().manual_seed(0))
    ids = torch.from_numpy(tokenizer.ordinary).nonzero().flatten()
    pieces = [tokenizer.backend.encode(tokenizer.text(int(id_)), add_special_tokens=False).ids for id_ in ids]
    assert any(len(own) == 1 for own in pieces)
    expected = torch.stack([table[own].mean(0) for own in pieces])
    expected = expected - expected.mean(0)
    found = word_embeddings(encoder, tokenizer)
    assert found.shape == (tokenizer.vocab_size, 8)
    torch.testing.assert_close(found[ids] @ found[ids].T, expected @ expected.T, rtol=1e-3, atol=1e-3)
    assert (found[[tokenizer.special.mask, tokenizer.special.pad]] == 0).all()
