"""Settings of fine-tuning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from unmask.core.settings import Settings
from unmask.model.card_head import CardSettings
from unmask.model.layout_names import ClassifierPooling


class Columns(Settings):
    """Columns of the files, by name; by number, counted from 0, where a file has no names. None: found, and announced.

    `doc.text` is the field `text` within the column `doc`.
    """

    # The text; for tags the list of words; in CoNLL files the words stand in column 0, or 1 of CoNLL-U.
    text: str | None = None
    second: str | None = None  # the other text of a pair
    # Class, number, or list of tags; in CoNLL files the last column, in CoNLL-U `upos` (or `xpos`).
    label: str | None = None


class FinetuneSettings(Settings):
    """How a model is fine-tuned.

    Source: Devlin et al. 2018, appendix A.3 (the range of rates, warm-up and decay); Howard and Ruder 2018, section 3.2
    (rates by layer), with the factor of Clark et al. 2020 (ELECTRA), appendix B, in place of their 2.6; Mosbach et al.
    2021 (why short fine-tuning from one seed says little).
    """

    columns: Columns = Columns()  # where texts and labels stand
    epochs: int = Field(default=5, ge=1)  # times that the training file is gone through at most
    batch_size: int = Field(default=32, ge=1)  # examples of a step
    # Peak rate; None: 5e-5 x (768 / hidden size)^2, at most 1e-3: BERT's largest at its size, less for larger models,
    # and more for small ones.
    learning_rate: float | None = Field(default=None, gt=0.0)
    # Share of the steps in which it rises; then it falls in a line to 0.
    warmup: float = Field(default=0.1, ge=0.0, le=1.0)
    # Factor from each layer to the one below it; the head has the peak rate, the embedding the least. Layers that share
    # their weights (ALBERT) are one.
    layer_decay: float = Field(default=1.0, gt=0.0, le=1.0)
    weight_decay: float = Field(default=0.01, ge=0.0)  # decoupled, on matrices and embeddings
    clip_norm: float = Field(default=1.0, gt=0.0)  # largest norm of the whole gradient
    # Of hidden states and before the classifier; None: the model's own rates. In models that transformers runs this is
    # every rate that config.json names, that of attention too.
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    evaluations_per_epoch: int = Field(default=1, ge=1)  # how often the validation file is predicted
    # Evaluations without a better metric after which training ends; None: never.
    patience: int | None = Field(default=3, ge=1)
    # What the best model is chosen by; None: accuracy, pearson, entity_f1 (of tags that are entities) or f1.
    metric: str | None = None
    # Weights of the losses by class: `balanced` (examples / classes / examples of the class), or a table; None: all 1.
    class_weights: Literal["balanced"] | dict[str, Annotated[float, Field(gt=0.0)]] | None = None
    # A class with fewer examples in the training file is an error, of classes of texts.
    least_examples: int = Field(default=2, ge=1)
    max_length: int | None = Field(default=None, ge=8)  # longest input in tokens; None: the model's
    # What represents whole texts: the `first` token, or the `mean` of all, which needs less pretraining to be good.
    # None: `mean` where the layout has it (ModernBERT's), `first` in those of BERT and RoBERTa. Models that
    # transformers runs have their own way.
    pooling: ClassifierPooling | None = None
    stride: int = Field(default=64, ge=0)  # tokens that neighbouring windows of a text share, for answers
    longest_answer: int = Field(default=30, ge=1)  # tokens of an answer at most
    # `model` begins with the folder's; `random` draws all anew, to learn what pretraining brought.
    initial_weights: Literal["model", "random"] = "model"
    # Of the activations while training; what is reported is computed in float32.
    precision: Literal["auto", "bf16", "float32"] = "auto"
    seed: int = Field(default=0, ge=0, lt=2**31 - 1000)  # of the first run: its head, order and dropout
    seeds: int = Field(default=1, ge=1, le=1000)  # runs, each with the next seed; the best one's model is saved
    # What the user says of the model for its card; as in recipes, `card.license` is short for `finetune.card.license`.
    card: CardSettings = CardSettings()

    def learning_rate_for(self, hidden_size: int) -> float:
        """The peak rate of a model of this width."""
        return self.learning_rate or min(1e-3, 5e-5 * (768 / hidden_size) ** 2)
