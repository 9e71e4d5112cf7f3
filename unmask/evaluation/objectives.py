"""Held-out figures of the objectives beside masked tokens, on pairs and masks that stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from unmask.evaluation.content_keys import keyed_by_content
from unmask.evaluation.held_out import BATCH_POSITIONS, RATE, SEED, Figures
from unmask.masking.engine import MaskedRows, Masker
from unmask.masking.replacement import Replacement
from unmask.masking.settings import MaskingSettings
from unmask.masking.units import SpanUnits, TokenUnits
from unmask.masking.weights import UniformWeights
from unmask.model.encoder import MaskedLM
from unmask.packing.pairs import PairKind
from unmask.packing.rows import Rows
from unmask.packing.stream import LABEL, Cursor, RowStream
from unmask.tokens.shards import TokenStore
from unmask.tokens.tokenizer import Tokenizer
from unmask.training.objectives import Objective
from unmask.using.runner import evaluating, hidden_states


class ObjectiveSet:
    """Validation rows with pairs and masks for other objectives than masked tokens, made once.

    15 % of the tokens are hidden, in spans where span boundaries are predicted, for pairs and classes too. Objectives
    without a target in the held-out text have no figures.

    Args:
        store: The validation tokens.
        tokenizer: Whose ids they are.
        objectives: What is evaluated.
        length: Positions of a row.
        max_tokens: At most about this many tokens are used.
        pairs: What pairs the rows hold.
        spans: How spans are drawn, where their boundaries are an objective.

    Raises:
        DataError: No pairs can be made of the text.
    """

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        *,
        objectives: Sequence[Objective],
        length: int,
        max_tokens: int,
        pairs: PairKind | None = None,
        spans: SpanUnits | None = None,
    ) -> None:
        self.objectives = objectives
        with_labels = any(each.name == LABEL for each in objectives)
        stream = RowStream(store, tokenizer, length=length, seed=SEED, pairs=pairs, with_labels=with_labels)
        masker = _masker(tokenizer, spans)
        self.batches: list[tuple[Rows, MaskedRows]] = []
        num_tokens = 0
        seen: Counter[int] = Counter()
        for batch in stream.batches(Cursor(), max(1, BATCH_POSITIONS // length)):
            if batch.epoch > 0 or num_tokens >= max_tokens:
                break
            num_tokens += batch.num_tokens
            rows = keyed_by_content(batch.rows, seen)
            self.batches.append((rows, masker(rows)))

    def without_targets(self) -> list[str]:
        """Names of the objectives that these rows have no target for."""
        counts = {o.name: sum(len(o.targets(*batch)) for batch in self.batches) for o in self.objectives}
        return [name for name, count in counts.items() if not count]

    def evaluate(self, model: MaskedLM) -> dict[str, Figures]:
        """Evaluates a model, which is in evaluation mode meanwhile."""
        device = model.encoder.tokens.device
        losses = dict.fromkeys((each.name for each in self.objectives), 0.0)
        right, counts = dict(losses), dict.fromkeys(losses, 0)
        with evaluating(model):
            for batch in self.batches:
                rows, masked = batch[0].to(device), batch[1].to(device)
                hidden_TD = hidden_states(
                    model, masked.input_ids, rows.segment_ids, rows.position_ids, rows.token_type_ids
                )
                for objective in self.objectives:
                    targets = objective.targets(rows, masked)
                    found = objective.losses(model, hidden_TD, targets, None)
                    losses[objective.name] += float(found.each_N.sum())
                    right[objective.name] += float((~found.wrong_N).sum())
                    counts[objective.name] += len(targets)
        return {
            name: Figures(losses[name] / count, right[name] / count, count) for name, count in counts.items() if count
        }


def _masker(tokenizer: Tokenizer, spans: SpanUnits | None) -> Masker:
    settings = MaskingSettings(
        units=spans or TokenUnits(),
        weights=UniformWeights(),
        rate=RATE,
        budget="tokens",  # so that figures compare with those of earlier versions
        replacement=Replacement(shares=(1.0, 0.0, 0.0)),
        static=True,
    )
    return Masker(settings, tokenizer, seed=SEED, with_boundaries=spans is not None)
