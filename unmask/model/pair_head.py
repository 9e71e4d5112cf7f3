"""The head that tells right pairs from wrong ones.

Shape suffixes: D = hidden size, N = pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.model.config import EncoderConfig
from unmask.model.parts import Linear


class PairHead(nn.Module):
    """The hidden state of `[CLS]` to two logits: right, wrong. BERT's pooler and the classifier behind it.

    Source: Devlin et al. 2018 (BERT), section 3.1, task 2; the pooler is that of the released code.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.pooler = Linear(config.hidden_size, config.hidden_size, bias=True)
        self.classifier = Linear(config.hidden_size, 2, bias=True)

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """Logits [N, 2] of the first tokens' hidden states [N, D]."""
        return self.classifier(self.pool(hidden_ND))

    def pool(self, hidden_ND: Tensor) -> Tensor:
        """What the classifier reads: [N, D]."""
        return torch.tanh(self.pooler(hidden_ND))
