"""Held-out figures on fixed masks: the loss of masked tokens, and figures of other objectives.

Masks are the same for every model with the same tokenizer and row length, whatever it was trained on: 15 % of the
tokens, drawn one by one, all replaced by `[MASK]`.

Shape suffixes: N = predicted positions, G = documents or groups of them, T = all positions of a batch in a line,
D = hidden size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.core.errors import DataError
from unmask.core.hashing import mix, token_in_word
from unmask.core.results import HiddenToken, Notify, ShownText, counted, ignore, legible
from unmask.data.pairs import PairKind
from unmask.data.rows import LABEL, Cursor, RowBatch, Rows, RowStream
from unmask.data.store import TokenStore
from unmask.masking.features import rows_from_ids
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import MaskingSettings, Replacement
from unmask.masking.units import SpanUnits, TokenUnits
from unmask.masking.weights import UniformWeights
from unmask.measure.masking import stretches
from unmask.measure.questions import judge, with_special
from unmask.measure.uncertainty import ratio_over_draws
from unmask.model.encoder import MaskedLM
from unmask.model.fused import predicted_positions
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.distributed import ALONE, Group
from unmask.train.objectives import JointLoss, Objective
from unmask.train.runner import evaluating, hidden_states, logits_at
from unmask.train.step import Best


def keyed_by_content(rows: Rows, seen: Counter[int]) -> Rows:
    """The rows with keys that hash the content of their segments, so masks do not depend on the rest of the corpus.

    Training rows are keyed by document number and place (`unmask.data.rows`), which change if a document is added in
    front. Held-out figures of two runs compare only if equal text is masked alike.

    The rows are on the CPU; halves of a pair share a key. `seen` counts the segments of earlier rows by their hash and
    is updated, so that repeated segments get different keys, and so different masks.
    """
    segments = rows.segment_ids.numpy()
    stretch_T = stretches(segments)
    begins = np.flatnonzero(np.diff(stretch_T, prepend=-1))
    ids: NDArray[np.int64] = rows.input_ids.numpy().reshape(-1)
    places: NDArray[np.int64] = rows.position_ids.numpy().reshape(-1)
    hashes: NDArray[np.int64] = np.add.reduceat(token_in_word(ids, places), begins)
    count = np.zeros(len(begins), dtype=np.int64)
    for number in np.flatnonzero(segments.reshape(-1)[begins] >= 0).tolist():
        key = int(hashes[number])
        count[number] = seen[key]
        seen[key] += 1
    keys = mix(mix(hashes) + count)[stretch_T]
    return replace(rows, segment_keys=torch.from_numpy(keys.reshape(segments.shape)))


RATE = 0.15
SEED = 20181011  # never changes, so that figures of different runs compare
BATCH_POSITIONS = 8192
DOCUMENTS, GROUPS = "documents", "groups"  # the independent draws of figures


@dataclass(frozen=True)
class HeldOut:
    """The result of an evaluation; losses in nats per predicted token."""

    loss: float  # mean cross-entropy
    # Its standard error over source documents, whatever they were cut into, or over groups of documents if groups were
    # held out; None if it cannot be computed.
    loss_stderr: float | None
    # The 95 % interval of the mean over such documents, or groups, by Student's t; see `unmask.measure.uncertainty`.
    loss_interval: tuple[float, float] | None
    accuracy: float  # share of the hidden tokens for which the model's most likely token is right
    # Cross-entropy in bits, divided by the UTF-8 bytes of the predicted tokens. (`bits_per_byte` of `evaluate` is over
    # words of the raw text, and compares between tokenizers.)
    bits_per_token_byte: float
    bits_per_token_byte_interval: tuple[float, float] | None  # as for the loss
    predicted_tokens: int  # number of predicted tokens
    documents: int  # number of source documents, or groups of them, with predicted tokens
    # Figures of the other objectives that the model was trained on, by name: `loss` in nats per target, `accuracy`, the
    # share of right predictions, and `count`, the number of targets.
    objectives: Mapping[str, dict[str, float]] = field(default_factory=dict)
    unit: str = DOCUMENTS  # what `documents` counts: `documents` or `groups`

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))


class HeldOutSet:
    """Validation rows with their masks, made once: about `max_tokens` tokens, from rows spread over the whole split.
    Raises a DataError if there are too few tokens to hide any.

    `frequencies` [vocab_size] are the token counts of the training text, for comparison, if they are known.
    """

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        *,
        length: int,
        max_tokens: int,
        frequencies: NDArray[np.int64] | None = None,
    ) -> None:
        stream = RowStream(store, tokenizer, length=length, seed=SEED)
        self.batches: list[tuple[Rows, MaskedRows]] = []
        self.unit = unit_of(store)
        documents: list[NDArray[np.int64]] = []  # of each predicted token, batch by batch
        num_tokens = 0
        for batch, rows, masked in _fixed_rows(stream, fixed_masker(tokenizer), max_tokens):
            num_tokens += batch.num_tokens
            self.batches.append((rows, masked))
            assert batch.documents is not None, "the rows are of a store"
            num_segments = rows.segment_ids.amax(dim=1) + 1
            before = num_segments.cumsum(0) - num_segments  # segments in earlier rows; `documents` has one a segment
            positions_N = predicted_positions(masked.labels)
            segment_N = before[positions_N // rows.shape[1]] + rows.segment_ids.flatten()[positions_N]
            documents.append(batch.documents[segment_N.numpy()])
        if not len(self.targets()):
            way_out = "give more text, or hold more of it out with corpus.holdout=0.2"
            raise DataError(f"the {num_tokens} held-out tokens are too few to hide any; {way_out}", options=("set",))
        self._document_N = np.unique(np.concatenate(documents), return_inverse=True)[1]  # counted from 0
        self._bytes_N = tokenizer.token_bytes[self.targets()]
        self.unigram_N: NDArray[np.float64] | None = None  # the loss of token frequencies alone
        if frequencies is not None:
            self.unigram_N = unigram_losses(self.targets(), frequencies, tokenizer.ordinary)

    def targets(self) -> NDArray[np.int64]:
        labels = [masked.labels[masked.labels >= 0] for _, masked in self.batches]
        return torch.cat(labels).numpy()

    def evaluate(self, model: MaskedLM, *, group: Group = ALONE, notify: Notify = ignore) -> HeldOut:
        """Evaluates a model, in evaluation mode meanwhile. Ranks of a group share the rows and get the same result."""
        # 1. Losses and ranks of all targets. Rows were packed by the constructor.
        answers = [(np.zeros(0), np.zeros(0, dtype=np.int64))]  # a process may have no batch
        own_batches = self.batches[group.share.part(len(self.batches))]
        count = counted(notify, "evaluating", sum(rows.input_ids.numel() for rows, _ in own_batches))
        with evaluating(model):
            for rows, masked in own_batches:
                positions_N = predicted_positions(masked.labels)
                hidden_TD = hidden_states(model, rows, masked.input_ids)
                answers.append(judge(model, hidden_TD, positions_N, masked.labels.flatten()[positions_N], top=1))
                count(rows.input_ids.numel())
        own = (torch.from_numpy(np.concatenate(part)) for part in zip(*answers, strict=True))
        losses_N, ranks_N = (group.all_gather_rows(part).numpy() for part in own)

        # 2. Their sums by document, and the figures computed from these.
        losses_G, right_G, bytes_G, tokens_G = (
            np.bincount(self._document_N, weights=weights) for weights in (losses_N, ranks_N == 0, self._bytes_N, None)
        )
        loss = ratio_over_draws(losses_G, tokens_G)
        bits = ratio_over_draws(losses_G / math.log(2.0), bytes_G)
        return HeldOut(
            loss=loss.value,
            loss_stderr=loss.stderr,
            loss_interval=loss.interval,
            accuracy=float(right_G.sum() / tokens_G.sum()),
            bits_per_token_byte=float(losses_G.sum() / math.log(2.0) / max(bytes_G.sum(), 1.0)),
            bits_per_token_byte_interval=bits.interval,
            predicted_tokens=len(losses_N),
            documents=loss.draws,
            unit=self.unit,
        )


def unit_of(store: TokenStore) -> str:
    return GROUPS if store.grouped else DOCUMENTS


def fixed_masker(tokenizer: Tokenizer, *, spans: SpanUnits | None = None) -> Masker:
    """A masker that is the same for every run: random tokens, or spans, all replaced by `[MASK]`."""
    settings = MaskingSettings(
        units=spans or TokenUnits(),
        weights=UniformWeights(),
        rate=RATE,
        replacement=Replacement(shares=(1.0, 0.0, 0.0)),
        static=True,
    )
    return Masker(settings, tokenizer, seed=SEED, with_boundaries=spans is not None)


def _fixed_rows(stream: RowStream, masker: Masker, max_tokens: int) -> Iterator[tuple[RowBatch, Rows, MaskedRows]]:
    seen: Counter[int] = Counter()
    num_tokens = 0
    for batch in stream.batches(Cursor(), max(1, BATCH_POSITIONS // stream.length)):
        if batch.epoch > 0 or num_tokens >= max_tokens:
            return
        num_tokens += batch.num_tokens
        rows = keyed_by_content(batch.rows, seen)
        yield batch, rows, masker(rows)


def unigram_losses(
    targets: NDArray[np.int64], frequencies: NDArray[np.int64], ordinary: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The loss of each token under the training text's unigram distribution, in nats; their mean is a cross-entropy.

    A model that has learned only token frequencies reaches this loss, and failed small runs stay there. Each count
    [vocab_size] is increased by one, so that no ordinary token has probability 0.
    """
    counts = np.where(ordinary, frequencies + 1, 0)
    return -np.log(counts[targets] / counts.sum())


class ObjectiveSet:
    """Validation rows with pairs and masks for objectives other than masked tokens, made once.

    15 % of the tokens are hidden, for pairs and classes too; in `spans` if span boundaries are predicted. An objective
    without a target in the held-out text has no figures. Raises a DataError if the text yields no pairs.
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
        masker = fixed_masker(tokenizer, spans=spans)
        self.batches = [batch[1:] for batch in _fixed_rows(stream, masker, max_tokens)]
        # Names of the objectives for which these rows have no target.
        self.without_targets = [o.name for o in objectives if not any(len(o.targets(*batch)) for batch in self.batches)]

    def evaluate(self, model: MaskedLM) -> dict[str, dict[str, float]]:
        device = model.encoder.tokens.device
        sums = {each.name: np.zeros(3) for each in self.objectives}  # loss, right predictions, targets
        with evaluating(model):
            for batch in self.batches:
                rows, masked = batch[0].to(device), batch[1].to(device)
                hidden_TD = hidden_states(model, batch[0], batch[1].input_ids)  # from the host: no sync
                for objective in self.objectives:
                    targets = objective.targets(rows, masked)
                    assert not isinstance(objective.losses, JointLoss), "pairs of texts are measured by `embedder`"
                    losses = objective.losses(model, hidden_TD, targets, None)
                    right = float((~losses.wrong_N).sum())
                    sums[objective.name] += (float(losses.each_N.sum()), right, len(targets))
        return {
            name: {"loss": loss / count, "accuracy": right / count, "count": int(count)}
            for name, (loss, right, count) in ((name, each.tolist()) for name, each in sums.items())
            if count
        }


# ----------------------------------------
# Predictions of hidden tokens, shown in their texts. The texts keep their white space and case, since tokens know which
# characters they cover.


NUM_GUESSES = 3


def predict_texts(model: MaskedLM, tokenizer: Tokenizer, texts: Sequence[str], *, longest: int) -> list[ShownText]:
    """Predicts hidden tokens in texts; each call hides the same ones. Texts are cut to `longest` tokens, and those with
    no hidden token are left out. Raises a TokenizerError if the tokenizer cannot spell a text."""
    room = longest - len(tokenizer.special.around)
    encoded = [(text, *tokenizer.encode_placed([text])) for text in texts]
    encoded = [each for each in encoded if len(each[1].input_ids)]
    if not encoded:
        return []
    rows = rows_from_ids([with_special(ids.input_ids[:room], tokenizer).tolist() for _, ids, _ in encoded], tokenizer)
    masked = fixed_masker(tokenizer)(rows)
    positions_N = predicted_positions(masked.labels)
    if not len(positions_N):
        return []
    with evaluating(model):
        hidden_TD = hidden_states(model, rows, masked.input_ids)
        logits_NV = torch.cat([part.cpu() for part in logits_at(model, hidden_TD, positions_N)])
    chances_NV = torch.softmax(logits_NV.float(), -1)
    best_NK = chances_NV.topk(min(NUM_GUESSES, chances_NV.shape[1])).indices

    hidden: list[list[HiddenToken]] = [[] for _ in encoded]
    first = int(tokenizer.special.cls is not None)
    for n, position in enumerate(positions_N.tolist()):
        number, place = divmod(position, rows.shape[1])
        text, _, places = encoded[number]
        begin, end = int(places.begin[place - first]), int(places.end[place - first])
        if word := text[begin:end].strip():  # a token may include the space before its word
            begin += text[begin:end].index(word)
            end = begin + len(word)
        begin = max(begin, hidden[number][-1]["end"] if hidden[number] else 0)  # tokens may share a character
        target = int(masked.labels.flatten()[position])
        guesses = [(legible(tokenizer.text(id_)), float(chances_NV[n, id_])) for id_ in best_NK[n].tolist()]
        hidden[number].append(
            {"begin": begin, "end": max(begin, end), "target": target, "guesses": guesses,
             "probability": float(chances_NV[n, target]), "right": int(best_NK[n, 0]) == target}
        )  # fmt: skip
    return [
        {"text": text if places.lengths[0] <= room else text[: int(places.end[room - 1])], "hidden": of_text}
        for (text, _, places), of_text in zip(encoded, hidden, strict=True)
        if of_text
    ]


# ----------------------------------------
# Recognising and explaining the plateau of token frequencies, the most common worry in pretraining.
#
# Every masked language model first learns how frequent each token is, which brings its loss to the entropy of these
# frequencies. It stays there until attention has learned to use the neighbours. Then the loss falls again.

MARGIN = 0.1  # nats: a loss less than this below the entropy is on the plateau
LEAST_PROGRESS = 0.15  # share of the budget before which a model is still approaching the plateau
FEW_STEPS = 100
REPEATED = 4.0  # times that a text is read before reading it again is worth much less than new text


def on_plateau(result: HeldOut, entropy: float) -> bool:
    """Whether a model predicts no better than token frequencies, whose entropy is in nats per predicted token."""
    return result.loss > entropy - MARGIN


def explain_loss(
    result: HeldOut, entropy: float, best: Best | None, *, step: int, epochs: float, learning_rate: float
) -> str | None:
    """Explains a loss that is clearly above the `best` one so far, on the same text, or on the plateau; None if it is
    neither."""
    if best is not None and result.loss > best.loss + MARGIN:
        repeated = f"the text was seen {epochs:.0f} times: give more text, or fewer minutes or steps"
        way_out = repeated if epochs > REPEATED else f"try a third of the training.learning_rate of {learning_rate:g}"
        return f"held-out loss was {best.loss:.2f} at step {best.step:,} and rose to {result.loss:.2f}; {way_out}"
    if not on_plateau(result, entropy):
        return None
    figures = f"held-out loss {result.loss:.2f}, entropy of the token frequencies {entropy:.2f}"
    if step < FEW_STEPS:
        return (
            f"{step:,} {'step is' if step == 1 else 'steps are'} too few to learn more than how frequent each token is "
            f"({figures}): give more minutes or steps, or a smaller training.batch_tokens"
        )
    return (
        f"the model does not use context after {step:,} steps ({figures}). Every masked language model goes through "
        "this phase, small ones usually for a few hundred steps. If it lasts, try more steps (a longer budget, or a "
        f"smaller training.batch_tokens), a third or three times the training.learning_rate of {learning_rate:g}, or a "
        "lower masking.rate (with the run's recipe.toml as the recipe, the model keeps its size); and check the text: "
        "shuffled or one-word lines have no context to learn from"
    )
