"""Settings of the objectives that are trained beside masked-language modelling."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from unmask.settings import Settings


class PairSettings(Settings):
    """Telling right sentence pairs from wrong ones, from the first token. Only in the BERT layout.

    Attributes:
        kind: `next_sentence`: in a wrong pair the second half is another document's. Source: Devlin et al. 2018
            (BERT), section 3.1. `sentence_order`: in a wrong pair the halves change places. Source: Lan et al. 2020
            (ALBERT), section 3.1.
        weight: Of the loss per pair, beside that per predicted token.
    """

    kind: Literal["next_sentence", "sentence_order"]
    weight: float = Field(default=1.0, gt=0.0)


class SpanBoundarySettings(Settings):
    """Predicting each masked token also from the two tokens beside its span. Only with spans.

    In a mixture with spans, the texts (or steps) that fall to other strategies have no targets of this objective. Its
    held-out figures are of spans alone, drawn as those of the first strategy that draws some.

    Attributes:
        weight: Of the loss per predicted token, beside that of masked-language modelling.
        max_length: Places in a span that are told apart; tokens further on share the last.

    Source: Joshi et al. 2020 (SpanBERT), section 3.2.
    """

    weight: float = Field(default=1.0, gt=0.0)
    max_length: int = Field(default=32, ge=1)


class LabelSettings(Settings):
    """Telling the class of a document from its first token. The data is prepared with `corpus.label`.

    Attributes:
        weight: Of the loss per segment with a class, beside that per predicted token.
    """

    weight: float = Field(default=1.0, gt=0.0)


class ObjectivesSettings(Settings):
    """What is learned beside the masked tokens; None is not learned.

    Attributes:
        pairs: Which sentence pairs are right.
        span_boundary: Masked tokens from the boundaries of their spans.
        label: Classes of documents, which come with the text.
    """

    pairs: PairSettings | None = None
    span_boundary: SpanBoundarySettings | None = None
    label: LabelSettings | None = None
