"""The naive way: one hidden token a pass, each text alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from unmask.model.encoder import MaskedLM
from unmask.tokenizer.tokenizer import Tokenizer


def naive_losses(model: MaskedLM, tokenizer: Tokenizer, sentence: str, *, l2r: bool = False) -> Iterator[float]:
    """Nats of each token of a sentence, with a loop that anybody would write."""
    special = tokenizer.special
    assert special.cls is not None
    assert special.sep is not None
    [tokens] = tokenizer.encode_corpus([sentence])
    ids = [special.cls, *tokens.input_ids.tolist(), special.sep]
    starts = [True, *tokens.word_starts.tolist(), True]
    for place in range(1, len(ids) - 1):
        hidden = list(ids)
        hidden[place] = special.mask
        behind = place + 1
        while l2r and not starts[behind]:
            hidden[behind] = special.mask
            behind += 1
        with torch.no_grad():
            logits = model(torch.tensor([hidden]), positions_N=torch.tensor([place]))
        yield -float(torch.log_softmax(logits[0].float(), -1)[ids[place]])
