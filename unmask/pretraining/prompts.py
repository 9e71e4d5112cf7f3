"""Lines that the recipe gives, with what the model makes of them as it trains."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.evaluation.held_out import fixed_masker
from unmask.masking.plain import rows_from_ids
from unmask.model.encoder import MaskedLM
from unmask.pretraining.predictions import Line, predict_lines
from unmask.tokens.tokenizer import Tokenizer


class Prompts:
    """Some lines under masks that stay the same.

    Args:
        lines: Texts; what is longer than a row is cut.
        tokenizer: Of the model.
        length: Positions of a row.

    Raises:
        TokenizerError: A tokenizer without `[UNK]` does not know a character of theirs.
    """

    def __init__(self, lines: Sequence[str], tokenizer: Tokenizer, *, length: int) -> None:
        self.tokenizer = tokenizer
        cls, sep = ([] if id_ is None else [id_] for id_ in (tokenizer.special.cls, tokenizer.special.sep))
        room = length - len(cls) - len(sep)
        encoded = tokenizer.encode_corpus(lines)
        self.rows = rows_from_ids([[*cls, *line.input_ids.tolist()[:room], *sep] for line in encoded], tokenizer)
        self.masked = fixed_masker(tokenizer)(self.rows)

    def predict(self, model: MaskedLM) -> list[Line]:
        """The lines with predictions at what is hidden; lines in which nothing is hidden are left out."""
        return predict_lines(model, self.tokenizer, self.rows, self.masked)
