"""What is exported: the two functions that users want of a model, as modules over plain tensors.

They run the encoder's tensor operations, not its compiled loops (`unmask.compiled.serves` says no while exporting), and
attention is written out, so that every engine finds operations that it knows.

Shape suffixes: B = texts, S = positions, D = hidden size, V = vocabulary.
"""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from unmask.inference.embed import EmbedSettings
from unmask.inference.model import Model
from unmask.model.encoder import MaskedLM


class Graph(nn.Module):
    """A function of `input_ids` and `attention_mask`, and `token_type_ids` where the layout tells two types apart.

    Attributes:
        short: What it is called in tables.
        file: Name of the graph's file.
        outputs: Names of what `forward` returns.
    """

    short: str
    file: str
    outputs: tuple[str, ...]

    def __init__(self, model: MaskedLM) -> None:
        super().__init__()
        self.model = model
        self.eval()

    @classmethod
    def of(cls, model: Model) -> Self:
        """The graph of a loaded model."""
        return cls(model.network)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, each int64 [B, S]."""
        types = ("token_type_ids",) if self.model.config.num_types > 1 else ()
        return ("input_ids", "attention_mask", *types)

    def encode(self, input_ids_BS: Tensor, attention_mask_BS: Tensor, token_type_ids_BS: Tensor | None) -> Tensor:
        """Hidden states [B, S, D]. Padding (0 in the mask) stands behind each text and gets the segment -1."""
        return self.model.encoder(
            input_ids_BS, segment_ids_BS=attention_mask_BS - 1, token_type_ids_BS=token_type_ids_BS
        )


class FillGraph(Graph):
    """Logits [B, S, V] at every position."""

    short = "fill"
    file = "model.onnx"  # the name that optimum looks for
    outputs = ("logits",)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Logits; at padding they mean nothing."""
        return self.model.head(self.encode(input_ids, attention_mask, token_type_ids), self.model.encoder.tokens)


class EmbedGraph(Graph):
    """Hidden states [B, S, D], and a vector of each text [B, D], made of them as `Model.embed` does.

    Args:
        model: The network.
        settings: The pooling, and whether vectors are divided by their length; long texts are not split here.
    """

    short = "embed"
    file = "embed.onnx"
    outputs = ("last_hidden_state", "sentence_embedding")

    def __init__(self, model: MaskedLM, settings: EmbedSettings) -> None:
        super().__init__(model)
        self.settings = settings

    @classmethod
    def of(cls, model: Model) -> Self:
        """The graph of a loaded model, which pools as its folder says.

        Raises:
            ModelError: The folder asks for a pooling that is not offered; or a file is damaged.
        """
        return cls(model.network, model.embed_settings())

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Hidden states, which mean nothing at padding, and vectors, in which it does not count."""
        hidden_BSD = self.encode(input_ids, attention_mask, token_type_ids)
        vectors_BD = hidden_BSD[:, 0] if self.settings.pooling == "first" else _means(hidden_BSD, attention_mask)
        if self.settings.normalize:
            vectors_BD = vectors_BD / (vectors_BD * vectors_BD).sum(1, keepdim=True).sqrt().clamp(min=1e-12)
        return hidden_BSD, vectors_BD


def _means(hidden_BSD: Tensor, attention_mask_BS: Tensor) -> Tensor:
    """Of each text's tokens: [B, D]."""
    weight_BS1 = attention_mask_BS[..., None].to(hidden_BSD.dtype)
    return (hidden_BSD * weight_BS1).sum(1) / weight_BS1.sum(1).clamp(min=1.0)
