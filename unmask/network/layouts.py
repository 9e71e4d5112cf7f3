"""What each layout is made of. The encoder asks for parts, never for a layout's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Layout = Literal["modernbert", "bert", "roberta", "xlm-roberta", "camembert", "roberta-prelayernorm"]


@dataclass(frozen=True)
class Parts:
    """The parts of a layout, and its own values for what a recipe leaves open.

    Attributes:
        rotary: Positions turn queries and keys, and layers alternate between global and local attention. Otherwise
            positions are learned, and every layer is global.
        positions_after_padding: Learned positions begin at the padding's id + 1, and the table is that much longer.
        post_norm: A norm stands behind each addition to the residual stream; otherwise before each part that adds to
            it, and once more behind the last block.
        first_norm: The first block has a norm before its attention, though the embeddings are normalised already.
        bias: Products and norms have biases.
        gated: The MLP is gated.
        gelu_head: The prediction head uses gelu, whatever the blocks use.
        label_dense: The head for classes of documents has a layer with tanh before its classifier; otherwise it shares
            those of the prediction head.
        wide_classifier: Classifiers of tasks begin with a standard deviation of hidden_size^-1/2; otherwise with
            `initializer_range`.
        type_vocab_size: Usual number of token types; None where the layout has none.
        intermediate_ratio: Usual width of the MLP's inner layer, in hidden sizes.
        norm_eps: What is usually added to the variance in norms.
    """

    rotary: bool
    positions_after_padding: bool
    post_norm: bool
    first_norm: bool
    bias: bool
    gated: bool
    gelu_head: bool
    label_dense: bool
    wide_classifier: bool
    type_vocab_size: int | None
    intermediate_ratio: float
    norm_eps: float


# Liu et al. 2019 (RoBERTa); the positions are fairseq's. Conneau et al. 2020 (XLM-R) and Martin et al. 2020 (CamemBERT)
# have the same network, and transformers has it once more under the name of each.
_ROBERTA = Parts(
    rotary=False,
    positions_after_padding=True,
    post_norm=True,
    first_norm=True,
    bias=True,
    gated=False,
    gelu_head=True,
    label_dense=True,
    wide_classifier=False,
    type_vocab_size=1,
    intermediate_ratio=4.0,
    norm_eps=1e-5,
)
PARTS: dict[Layout, Parts] = {
    # Warner et al. 2024 (ModernBERT), section 2.1.
    "modernbert": Parts(
        rotary=True,
        positions_after_padding=False,
        post_norm=False,
        first_norm=False,
        bias=False,
        gated=True,
        gelu_head=True,
        label_dense=False,
        wide_classifier=True,
        type_vocab_size=None,
        intermediate_ratio=1.5,
        norm_eps=1e-5,
    ),
    # Devlin et al. 2019 (BERT), section 3 and appendix A.2.
    "bert": Parts(
        rotary=False,
        positions_after_padding=False,
        post_norm=True,
        first_norm=True,
        bias=True,
        gated=False,
        gelu_head=False,
        label_dense=True,
        wide_classifier=False,
        type_vocab_size=2,
        intermediate_ratio=4.0,
        norm_eps=1e-12,
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    # RoBERTa with the norms of Xiong et al. 2020 (On layer normalization in the transformer architecture), figure 1b.
    "roberta-prelayernorm": Parts(
        rotary=False,
        positions_after_padding=True,
        post_norm=False,
        first_norm=True,
        bias=True,
        gated=False,
        gelu_head=True,
        label_dense=True,
        wide_classifier=False,
        type_vocab_size=1,
        intermediate_ratio=4.0,
        norm_eps=1e-5,
    ),
}
