"""The head that tells to which class a text belongs.

Shape suffixes: D = hidden size, N = texts, C = classes.
"""

from __future__ import annotations

from torch import Tensor, nn

from unmask.model.config import EncoderConfig
from unmask.model.parts import Linear


class LabelHead(nn.Module):
    """The hidden state of a text's first token to a logit for each class."""

    def __init__(self, config: EncoderConfig, num_labels: int) -> None:
        super().__init__()
        self.classifier = Linear(config.hidden_size, num_labels, bias=True)

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """Logits [N, C] of the first tokens' hidden states [N, D]."""
        return self.classifier(hidden_ND)
