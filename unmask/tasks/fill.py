"""Filling masks: candidates for each mask, and the likeliest joint fillings of all masks of a text.

Shape suffixes: N = masks of all texts, K = candidates of a mask, V = vocabulary, T = positions of a batch in a line.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import ModelError, SettingsError
from unmask.core.results import Readable, Sheet, Shown, legible
from unmask.data.reading import check_characters
from unmask.tasks.inputs import Ids, around
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.words import Kind, kind_of
from unmask.train.runner import Predictor, logits_at, run

log = logging.getLogger("unmask")
PART_TEXTS = 4096  # texts filled at once


@dataclass(frozen=True)
class Candidate:
    """A token for a mask, as the vocabulary spells it, and its text."""

    token: str
    token_id: int
    probability: float
    text: str = ""  # without the marks of the tokenizer's family


@dataclass(frozen=True)
class Filling:
    tokens: tuple[str, ...]  # a token for each mask, in order
    text: str  # with the tokens in place
    probability: float  # joint, each mask given those to its left (chain rule)


@dataclass(frozen=True, repr=False)
class Filled(Readable):
    """The result for a text."""

    # For each mask in order, its own candidates, the likeliest first, as transformers' fill-mask pipeline returns them
    masks: tuple[tuple[Candidate, ...], ...]
    fillings: tuple[Filling, ...] = ()  # the likeliest choices for all masks together

    def to_dict(self) -> dict[str, Any]:
        masks = [{"candidates": list(map(asdict, mask))} for mask in self.masks]
        return {"masks": masks, "fillings": list(map(asdict, self.fillings))}

    def shown(self) -> Iterator[Shown]:
        several = len(self.masks) > 1
        heads = (head for n in range(1, len(self.masks) + 1) for head in (f"mask {n}" if several else "mask", ">"))
        columns = [
            [(legible(each.text or each.token), f"{each.probability:.1%}") for each in mask] for mask in self.masks
        ]
        lines = zip_longest(*columns, fillvalue=("", ""))  # masks may have unequal numbers of candidates
        yield Sheet(
            ("", *heads), [(f"{rank}", *(c for cells in line for c in cells)) for rank, line in enumerate(lines, 1)]
        )
        if several:
            yield "\ntogether:"
            yield from (f"{filling.probability:7.2%}  {filling.text}" for filling in self.fillings)


def fill_texts(
    model: Predictor,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    top_k: int = 5,
    candidates: Sequence[str] | None = None,
) -> list[Filled]:
    """As `Model.fill`. In texts longer than the model, a mask is predicted from a window around it; the log warns."""
    if not 1 <= top_k <= tokenizer.vocab_size:
        raise SettingsError(f"top_k is a number from 1 to the vocabulary's {tokenizer.vocab_size}, not {top_k}")
    longest = model.config.max_position_embeddings
    results: list[Filled] = []
    for begin in range(0, len(texts), PART_TEXTS):
        masked = read_masked(tokenizer, texts[begin : begin + PART_TEXTS])
        if long := sum(len(text.input_ids) > longest for text in masked):
            log.warning(
                "texts longer than the model's %d tokens: %d; each mask is seen with the text around it", longest, long
            )
        allowed = None if candidates is None else allowed_tokens(tokenizer, candidates, masked)
        first = likeliest(model, tokenizer, masked, top_k=top_k, allowed=allowed)
        fillings = _fillings(model, tokenizer, masked, first, top_k=top_k, allowed=allowed)
        rows = zip(first[0].tolist(), first[1].tolist(), strict=True)
        for text, best in zip(masked, fillings, strict=True):
            of_masks = [list(zip(*next(rows), strict=True)) for _ in text.spans]
            masks = [
                tuple(Candidate(tokenizer.token(i), i, math.exp(s), tokenizer.text(i)) for i, s in scored)
                for scored in of_masks
            ]
            results.append(Filled(tuple(masks), best))
    return results


# ----------------------------------------
# Texts with masks.


class MaskedText(NamedTuple):
    input_ids: Ids  # of the whole text with its special tokens, however long
    places: NDArray[np.int64]  # [masks]: their positions
    text: str
    spans: tuple[tuple[int, int], ...]  # the characters [begin, end) of each mask, without the white space in its token

    def filled(self, tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
        """The text with tokens in place of its masks, otherwise unchanged: decoding all tokens would lose unknown
        letters and case. A token's leading space is added unless the text has one there or begins there. If tokens
        carry no spaces, a space separates a word from one at the mask right before it."""
        result, done = bytearray(), 0
        for (begin, end), id_ in zip(self.spans, token_ids, strict=True):
            before = self.text[done:begin]
            result += before.encode()
            apart = tokenizer.space_before(id_)
            family = tokenizer.word_starts.spelling.family
            if family not in ("byte_level", "metaspace"):  # a token carries no space
                is_word = kind_of(tokenizer.text(id_)[:1] or " ") in (Kind.LETTER, Kind.DIGIT)
                # Around ideographs, WordPiece separates tokens without a space.
                is_split = family == "wordpiece" and kind_of(result.decode()[-1:] or " ") is Kind.IDEOGRAPH
                apart = apart and is_word and not (before or is_split)
            has_space = before[-1:].isspace() if before else result[-1:].isspace()
            if result and apart and not has_space:
                result += b" "
            result += tokenizer.word_starts.spelling.text_bytes(tokenizer.token(id_))  # may end within a character
            done = end
        result += self.text[done:].encode()
        return result.decode(errors="replace")


def read_masked(tokenizer: Tokenizer, texts: Sequence[str]) -> list[MaskedText]:
    """Tokenizes texts and finds their masks; a SettingsError if an item is not a text, not Unicode, or has no mask."""
    for text in texts:
        if not isinstance(text, str):
            raise SettingsError(f"fill takes a text or a list of texts, not {type(text).__name__}")
        check_characters(text, f"the text {text[:60]!r}")
    masked, mask = [], tokenizer.token(tokenizer.special.mask)
    for text, (input_ids, offsets) in zip(texts, tokenizer.place_prompts(texts), strict=True):
        places = np.flatnonzero(input_ids == tokenizer.special.mask)
        if len(places) == 0:
            raise SettingsError(f"there is no {mask} in the text {text!r}; put one where a word is missing")
        spans = []
        for begin, end in offsets[places].tolist():
            inner = text[begin:end]
            spans.append((end - len(inner.lstrip()), begin + len(inner.rstrip())))
        masked.append(MaskedText(input_ids, places, text, tuple(spans)))
    return masked


def allowed_tokens(tokenizer: Tokenizer, candidates: Sequence[str], texts: Sequence[MaskedText]) -> NDArray[np.int64]:
    """The token of each candidate at each mask [N, C], as in the text with the word filled in: with or without the
    space before it (`ĠParis`, `Paris`). A SettingsError if there are no candidates, or one is not a single token."""
    words = [] if isinstance(candidates, str) else list(map(str.strip, candidates))
    if not words:
        raise SettingsError(f"candidates are a list of at least one word, not {candidates!r}")
    places = [place for text in texts for place in text.places.tolist()]
    lengths = [len(text.input_ids) for text in texts for _ in text.spans]
    columns = []
    for word in words:
        check_characters(word, f"candidates: {word!r}")
        filled = [text.text[:begin] + word + text.text[end:] for text in texts for begin, end in text.spans]
        encoded = tokenizer.encode_prompts(filled)
        more = max((len(ids) - length for ids, length in zip(encoded, lengths, strict=True)), key=abs, default=0)
        column = [ids[min(place, len(ids) - 1)] for ids, place in zip(encoded, places, strict=True)]
        if more or tokenizer.special.unk in column:
            what = (
                f"{word!r} is {1 + more} tokens, but a mask stands for one" if more else f"there is no token {word!r}"
            )
            raise SettingsError(f"candidates: {what}; leave it out, or compare whole texts with Model.score")
        columns.append(column)
    return np.unique(np.array(columns, dtype=np.int64).T, axis=1)


# ----------------------------------------
# The likeliest tokens at the masks of many texts at once.


@torch.inference_mode()
def likeliest(
    model: Predictor,
    tokenizer: Tokenizer,
    texts: Sequence[MaskedText],
    *,
    top_k: int,
    allowed: NDArray[np.int64] | None = None,
) -> tuple[Tensor, Tensor]:
    """The likeliest tokens at each mask, among those `allowed` there (see `allowed_tokens`): [N, K], int64, best first;
    and their log-probabilities over the whole vocabulary, [N, K], float32."""
    longest = model.config.max_position_embeddings
    # For each window, its tokens, the numbers of the masks predicted in it, and their places.
    windows: list[tuple[Ids, NDArray[np.int64], NDArray[np.int64]]] = []
    num_masks = 0
    for text in texts:
        numbers = num_masks + np.arange(len(text.places))
        num_masks += len(numbers)
        if len(text.input_ids) <= longest:
            windows.append((text.input_ids, numbers, text.places))
            continue
        for number, place in zip(numbers, text.places.tolist(), strict=True):
            window, inside = around(text.input_ids, place, longest, tokenizer.special)
            windows.append((window, np.array([number]), np.array([inside])))
    sequences, owners, places = [w[0] for w in windows], [w[1] for w in windows], [w[2] for w in windows]
    top_k = top_k if allowed is None else min(top_k, allowed.shape[1])
    ids_NK = torch.zeros(num_masks, top_k, dtype=torch.int64)
    values_NK = torch.zeros(num_masks, top_k)
    for rows, hidden_TD in run(model, sequences):
        numbers_N = np.concatenate([owners[number] for number in rows.numbers])
        done = 0
        for logits_NV in logits_at(model, hidden_TD, rows.places(places)):
            part = numbers_N[done : done + len(logits_NV)]
            done += len(part)
            log_norm_N1 = torch.logsumexp(logits_NV, -1, keepdim=True)
            scores_NV = logits_NV[:, : tokenizer.vocab_size]
            if allowed is None:
                top_NK, top_ids_NK = scores_NV.topk(top_k)
            else:
                allowed_NC = torch.from_numpy(allowed[part]).to(scores_NV.device)
                top_NK, order_NK = scores_NV.gather(1, allowed_NC).topk(top_k)
                top_ids_NK = allowed_NC.gather(1, order_NK)
            ids_NK[part], values_NK[part] = top_ids_NK.cpu(), (top_NK - log_norm_N1).cpu()
    if values_NK.isnan().any():
        raise ModelError("the probability of a token is not a number; the model is damaged or diverged")
    return ids_NK, values_NK


def _fillings(
    model: Predictor,
    tokenizer: Tokenizer,
    texts: Sequence[MaskedText],
    first: tuple[Tensor, Tensor],
    *,
    top_k: int,
    allowed: NDArray[np.int64] | None,
) -> list[tuple[Filling, ...]]:
    """The best `top_k` fillings of each text, by beam search from left to right. Each turn fills the next mask of all
    texts. `first` holds the likeliest tokens at each mask while all are masked."""
    rows_of = np.cumsum([0, *(len(text.spans) for text in texts)])
    beams = [[(text.input_ids, 0.0)] for text in texts]  # token ids and log-probability
    for turn in range(max((len(text.spans) for text in texts), default=0)):
        active = [n for n, text in enumerate(texts) if len(text.spans) > turn]
        best = first
        if turn:
            begun = [(n, ids) for n in active for ids, _ in beams[n]]
            filled = [texts[n]._replace(input_ids=ids, places=texts[n].places[turn : turn + 1]) for n, ids in begun]
            allowed_here = None if allowed is None else allowed[[rows_of[n] + turn for n, _ in begun]]
            best = likeliest(model, tokenizer, filled, top_k=top_k, allowed=allowed_here)
        begins = np.cumsum([0, *(len(beams[n]) for n in active)]) if turn else rows_of  # of each text's rows in `best`
        for n, begin in zip(active, begins.tolist(), strict=False):
            rows, place = slice(begin, begin + len(beams[n])), texts[n].places[turn]
            ids, values = best[0][rows].numpy(), best[1][rows].double().numpy()
            totals = np.array([score for _, score in beams[n]])[:, None] + values
            order = np.argsort(-totals, axis=None, kind="stable")[:top_k]
            longer = []
            for beam, rank in zip(*np.unravel_index(order, totals.shape), strict=True):
                input_ids = beams[n][beam][0].copy()
                input_ids[place] = ids[beam, rank]
                longer.append((input_ids, float(totals[beam, rank])))
            beams[n] = longer
    fillings = []
    for text, beam_of_text in zip(texts, beams, strict=True):
        choices = [(ids[text.places].tolist(), math.exp(score)) for ids, score in beam_of_text]
        fillings.append(
            tuple(Filling(tuple(map(tokenizer.token, ids)), text.filled(tokenizer, ids), p) for ids, p in choices)
        )
    return fillings
