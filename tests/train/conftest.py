"""The model, the text and the masks of small trainings."""

from __future__ import annotations

import pytest

from tests.train.helpers import MakeModel, Small
from unmask.data.rows import RowStream
from unmask.data.store import TokenStore
from unmask.masking.masker import Masker
from unmask.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def stream(store: TokenStore, tokenizer: Tokenizer) -> RowStream:
    return RowStream(store, tokenizer, length=32, seed=0)


@pytest.fixture
def masker(tokenizer: Tokenizer) -> Masker:
    return Masker.from_tokenizer(tokenizer, rate=0.2)


@pytest.fixture
def small(make_model: MakeModel, stream: RowStream, masker: Masker) -> Small:
    return Small(make_model, stream, masker)
