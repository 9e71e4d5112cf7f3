"""The parts of the page about a single text: masks, predictions, surprise and minimal pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from unmask.commands.masks import row_and_masker, row_of
from unmask.core.errors import DataError, SettingsError, UnmaskError
from unmask.core.settings import validated
from unmask.data.rows import Rows
from unmask.masking.masker import Masker
from unmask.masking.settings import STRATEGIES, MaskingSettings, followed_scores
from unmask.masking.tables import Scores
from unmask.measure.masking import expected_units, stretches
from unmask.measure.questions import Pair, ask, one_by_one, tally
from unmask.tasks.loaded_model import Model
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.web.copying import copied
from unmask.web.things import Library, is_checkpoint

Text = Annotated[str, Field(max_length=400_000)]
Rate = Annotated[float, Field(gt=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=0, le=1 << 40)]
WINDOW = 400  # tokens to show at once; the whole text is masked
CANDIDATES = 8  # for each mask
_NONE_YET = Scores(0, {})  # strategies that follow a model start with equal weights

# ----------------------------------------
# Masks.


def masks(  # noqa: PLR0913  (what the page can set)
    library: Library,
    *,
    text: Text = "",
    source: str | None = None,
    document: Count | None = None,
    rate: Rate = 0.15,
    span_p: Rate = 0.2,
    longest_span: Annotated[int, Field(ge=1, le=30)] = 10,
    seed: Count = 0,
    epoch: Count = 0,
    epochs: Annotated[int, Field(ge=0, le=500)] = 0,
    begin: Count = 0,
) -> dict[str, Any]:
    """What each strategy masks in a text, or in a piece of prepared data: units with their probabilities, and what the
    model sees; and how often each token is a target in a number of `epochs`."""
    tokenizer, tables_for = library.bench(source)
    shown, row = _tokens_and_row(library, tokenizer, text, source, document)
    window = slice(begin, begin + WINDOW)
    strategies, left_out, scores = [], dict[str, str](), library.scores(source)
    for strategy in STRATEGIES:
        values: dict[str, Any] = {"strategy": strategy, "rate": rate}
        if strategy == "span":
            values["units"] = {"kind": "span", "p": span_p, "max_words": longest_span}
        try:
            settings = validated(MaskingSettings, values, where="masking")
            if row is None:
                rows, masker = row_and_masker(
                    text, tokenizer, settings, strategy, tables=tables_for(settings), seed=seed
                )
            else:
                rows, masker = row, Masker(settings, tokenizer, seed=seed, tables=tables_for(settings))
            follows = followed_scores(settings)
            missing = sorted(follows - scores.tables.keys())
            drawn = _drawn_masks(rows, masker, epoch, epochs, window, _NONE_YET if missing else scores)
        except (SettingsError, DataError) as error:
            left_out[strategy] = str(error)
            continue
        strategies.append({"name": strategy, "follows": sorted(follows), "missing": missing, **drawn})
    total = len(shown)
    return {
        "tokens": shown[window],
        "total": total,
        "begin": begin,
        "window": WINDOW,
        "strategies": strategies,
        "left_out": left_out,
        "copy": copied(
            "masks",
            [text or "TEXT"],
            {"rate": rate, "seed": seed, "tokenizer": source and str(library.data(source).root / "tokenizer")},
        ),
    }


def _tokens_and_row(
    library: Library, tokenizer: Tokenizer, text: str, source: str | None, document: int | None
) -> tuple[list[list[Any]], Rows | None]:
    """The tokens to show, each with the text before it, and the row of a document; None for a typed text."""
    if source is None or document is None:
        if not text.strip():
            raise SettingsError("the text is empty; type some")
        _, places = tokenizer.encode_placed([text])
        ends_before = np.append(0, places.end)[:-1]
        begins = np.maximum(places.begin, ends_before)  # tokens of bytes may share a character
        edges = zip(ends_before.tolist(), begins.tolist(), places.end.tolist(), strict=True)
        return [[text[before:begin], text[begin:end]] for before, begin, end in edges], None
    store = library.data(source).train
    if document >= len(store):
        raise SettingsError(f"piece {document:,}: the training text has {len(store):,} pieces, counted from 0")
    piece = store.gather(np.array([document]))
    shown = [[" " * tokenizer.space_before(id_), tokenizer.text(id_)] for id_ in piece.input_ids.tolist()]
    return shown, row_of(piece.input_ids, piece.annotations, tokenizer)


def _drawn_masks(rows: Rows, masker: Masker, epoch: int, epochs: int, window: slice, scores: Scores) -> dict[str, Any]:
    """Masks of an epoch within the window, and shares over many epochs. Positions count from the text's first token."""
    tokenizer = masker.tokenizer
    masked = masker(rows, epoch=epoch, scores=scores)
    weighed = masker.weighed(rows, epoch=epoch, scores=scores)
    maskable_T, target_T = rows.maskable.numpy()[0], (masked.labels >= 0).numpy()[0]
    segment_T = stretches(rows.segment_ids.numpy(), rows.segment_keys.numpy())
    place_U, size_U, rate_U, _ = expected_units(segment_T, maskable_T, weighed, masker.settings)
    first, length = int(tokenizer.special.cls is not None), int(maskable_T.sum())
    inside = (place_U - first < window.stop) & (place_U - first + size_U > window.start)
    ids, seen = (each.numpy()[0] for each in (rows.input_ids, masked.input_ids))
    targets = [
        [place - first, *_shown(tokenizer, int(ids[place]), int(seen[place]))]
        for place in np.flatnonzero(target_T).tolist()
        if window.start <= place - first < window.stop
    ]
    result = {
        "units": [
            [begin - first, size, round(chance, 4)]
            for begin, size, chance in zip(*(each[inside].tolist() for each in (place_U, size_U, rate_U)), strict=True)
        ],
        "targets": targets,
        "rate": float(target_T.sum() / max(length, 1)),
        "expected": float((rate_U * size_U).sum() / max(size_U.sum(), 1)),
        "num_units": len(place_U),
    }
    if epochs:
        often_T = np.zeros(len(ids))
        for number in range(epochs):
            often_T += (masker(rows, epoch=number, scores=scores).labels >= 0).numpy()[0]
        often_T /= epochs
        text_T = slice(first + window.start, first + window.stop)
        result |= {
            "often": [round(share, 3) for share in often_T[text_T].tolist()],
            "mean_rate": float(often_T.sum() / max(length, 1)),
            "epochs": epochs,
        }
    return result


def _shown(tokenizer: Tokenizer, true: int, seen: int) -> tuple[str, str]:
    """How a target was replaced, and the text to show there."""
    if seen == tokenizer.special.mask:
        return "masked", tokenizer.token(seen)
    return ("unchanged" if seen == true else "random"), tokenizer.text(seen)


# ----------------------------------------
# Predictions.


def predict(
    library: Library,
    *,
    models: Annotated[list[str], Field(min_length=1, max_length=3)],
    text: Text,
    hidden: list[tuple[Count, Count]] = [],  # noqa: B006  (pydantic copies it)
) -> dict[str, Any]:
    """The predictions of each model for hidden words. `hidden` are ranges of characters, in order."""
    results, mask = [], "[MASK]"  # used if the first model cannot be loaded
    for name in models:
        try:
            model = library.model(name)
            mask = _mask_of(model) if name == models[0] else mask
            results.append({"model": name, **_filled(model, text, hidden)})
        except UnmaskError as error:
            results.append({"model": name, "error": str(error)})
    copy = copied("fill", [models[0], _prompt(mask, text, hidden)], {"top_k": CANDIDATES})
    return {"results": results, "copy": None if is_checkpoint(models[0]) else copy}


def _mask_of(model: Model) -> str:
    return model.tokenizer.token(model.tokenizer.special.mask)


def _prompt(mask: str, text: str, hidden: Sequence[tuple[int, int]]) -> str:
    parts, end = list[str](), 0
    for begin, stop in hidden:
        if not end <= begin < stop <= len(text):
            raise SettingsError(f"hidden: {begin} to {stop} is not a range of the text's {len(text)} characters")
        parts += [text[end:begin], mask]
        end = stop
    return "".join([*parts, text[end:]])


def _filled(model: Model, text: str, hidden: Sequence[tuple[int, int]]) -> dict[str, Any]:
    prompt = _prompt(_mask_of(model), text, hidden)
    filled = model.fill(prompt, top_k=CANDIDATES)
    # Probabilities of the hidden words, if each is one token of this model.
    words = [text[begin:end] for begin, end in hidden]
    truths: list[float | None] = [None] * len(filled.masks)
    if words and len(words) == len(filled.masks):
        for number, word in enumerate(words):
            try:
                right = model.fill(prompt, top_k=1, candidates=[word]).masks[number]
                truths[number] = right[0].probability if right else None
            except SettingsError:  # several tokens, or none
                continue
    return {
        "masks": [
            {"truth": truth, "candidates": [[each.text or each.token, each.probability] for each in mask]}
            for mask, truth in zip(filled.masks, truths, strict=True)
        ],
        "fillings": [[each.text, each.probability] for each in filled.fillings] if len(filled.masks) > 1 else [],
    }


def surprise(library: Library, *, model: str, text: Text) -> dict[str, Any]:
    """The loss of each token of a passage, hidden alone; their sum is minus the pseudo-log-likelihood."""
    loaded = library.model(model)
    encoded, places = loaded.tokenizer.encode_placed([text])
    longest = loaded.predictor.config.max_position_embeddings - len(loaded.tokenizer.special.around)
    tokens = []
    for begin in range(0, len(encoded.input_ids), longest):
        part = slice(begin, begin + longest)
        questions = one_by_one(encoded.input_ids[part], encoded.word_starts[part], loaded.tokenizer)
        losses = [float(answer.losses[0]) for answer in ask(loaded.predictor, questions)]
        tokens += [
            [start, end, round(loss, 3)]
            for start, end, loss in zip(places.begin[part].tolist(), places.end[part].tolist(), losses, strict=True)
        ]
    return {"tokens": tokens}


# ----------------------------------------
# Grammar.


def grammar(
    library: Library,
    *,
    models: Annotated[list[str], Field(min_length=1, max_length=3)],
    pairs: Annotated[list[tuple[Text, Text]], Field(max_length=200)],
    form: Literal["plain", "word_l2r"] = "plain",
) -> dict[str, Any]:
    """Scores of both sentences of each pair, the right one first, and how often the model prefers the right one."""
    results = []
    for name in models:
        try:
            scores = library.model(name).score([sentence for pair in pairs for sentence in pair], form=form)
            known = [Pair(good, bad, "yours", "yours", "the page") for good, bad in pairs]
            counted = tally(known, scores[0::2] - scores[1::2])
            results.append({"model": name, "scores": scores.reshape(-1, 2).tolist(), "counted": counted})
        except UnmaskError as error:
            results.append({"model": name, "error": str(error)})
    python = f"unmask.load({models[0]!r}).score({[sentence for pair in pairs for sentence in pair]!r}, form={form!r})"
    copy = copied("score", [models[0], "PAIRS.jsonl"], {"form": form}, python=python)
    return {"results": results, "copy": None if is_checkpoint(models[0]) else copy}
