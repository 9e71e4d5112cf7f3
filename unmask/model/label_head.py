"""The head that tells the classes of documents: what transformers' sequence classifier of the layout has of its own.

    bert        tanh(pooler) -> classifier          the pooler is that of the head for pairs, where there is one
    roberta     tanh(dense) -> classifier
    modernbert  norm(gelu(dense)) -> classifier     dense and norm are those of the masked-language-model head

Shape suffixes: D = hidden size, N = documents, C = classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.hashing import mix_ints
from unmask.model.config import EncoderConfig
from unmask.model.parts import Linear, dropout


class LabelHead(nn.Module):
    """First tokens to logits of classes.

    Args:
        config: Of the encoder.
        num_labels: Number of classes.
        own_dense: Whether it has a layer of its own before the classifier, or is given what another head makes.

    Source: the classification of single sentences in Devlin et al. 2018 (BERT), section 4.1, here while pretraining.
    """

    def __init__(self, config: EncoderConfig, num_labels: int, *, own_dense: bool) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size, bias=True) if own_dense else None
        self.rate, self.drops_twice = config.classifier_dropout, config.layout != "bert"
        self.classifier = Linear(config.hidden_size, num_labels, bias=True)

    def forward(self, x_ND: Tensor, *, dropout_seed: int | None = None) -> Tensor:
        """Logits [N, C] of hidden states [N, D]; of what the other head makes of these, without a layer of its own.

        What the classifier is given is dropped where there is a seed; in RoBERTa, what the layer is given too.
        """
        if self.dense is not None:
            if self.drops_twice and dropout_seed is not None:
                x_ND = dropout(x_ND, self.rate, seed=mix_ints(dropout_seed, 0))
            x_ND = torch.tanh(self.dense(x_ND))
        return self.classifier(dropout(x_ND, self.rate, seed=dropout_seed))
