"""A corpus, raw or prepared, as the documents that an embedding model is trained on.

What is held out is what `Corpus` holds out by the same settings, so that it is known from these wherever the text lies.
Where parts of documents are held out since there are few, each part is a document of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from unmask.embedding.text_structure import parts_of_text, with_title_column
from unmask.embedding.token_texts import TextsBuilder, TokenTexts, texts_of_stores
from unmask.errors import CorpusError, DataError
from unmask.pretraining.run_data import is_prepared, open_prepared
from unmask.progress import Notify, Progress
from unmask.text.cleaning import read_cleaned
from unmask.text.corpus import Corpus
from unmask.text.documents import PIECE_CHARS, TextPiece
from unmask.text.reading import BadInput
from unmask.text.settings import CorpusSettings
from unmask.text.sources import Source
from unmask.text.survey import text_hash
from unmask.text.table_rows import LOOK_ROWS, rows_of
from unmask.tokenizer.tokenizer import Tokenizer

_TOLD = 1 << 20
_KEY_CHARS = 1 << 14  # of the beginning of a text, which stands in its first piece with a title before it, too
_MOST_BODIES = 8
_BY_HASH = {"holdout_from": "hash", "holdout_groups": None, "validation": ()}


def read_texts(
    paths: Sequence[str | Path],
    tokenizer: Tokenizer,
    settings: CorpusSettings,
    *,
    given: Sequence[str] = (),
    note: Callable[[str], None],
    notify: Notify,
) -> TokenTexts:
    """Reads and tokenizes a corpus.

    Args:
        paths: Files, folders or patterns, or one prepared folder.
        tokenizer: Of the model.
        settings: How files become documents, and what is held out; prepared data says so itself.
        given: Texts of the user's pairs, of which is to be known what they are near-duplicates of.
        note: Told what was found.
        notify: Told of the progress.

    Raises:
        CorpusError: A file cannot be read, or there is no text.
        DataError: Data was prepared with another tokenizer.
    """
    if is_prepared(paths):
        return _read_prepared(Path(paths[0]), tokenizer, given, note)
    corpus = _corpus(paths, settings, note)
    in_parts = corpus.plan.holdout_unit in ("part", "end")
    builder = TextsBuilder(tokenizer)
    skipped: Counter[str] = Counter()
    done = told = 0
    for piece, is_held, titled in _pieces(corpus, skipped):
        done += len(piece.text)
        parts = parts_of_text(piece.text, begins=piece.offset == 0, titled=titled and "\n\n" in piece.text)
        builder.add(parts, begins=in_parts or piece.offset == 0, held=is_held)
        if done >= told + _TOLD:
            notify(Progress("reading", told := done, corpus.num_bytes, "bytes"))
    texts = builder.finish(given)
    note(corpus.describe(corpus.decided()))
    if builder.num_near:
        note(f"held out as near-duplicates of held-out documents: {builder.num_near:,}")
    for reason, number in skipped.items():
        note(f"left out: {number:,} {reason}")
    return texts


def _read_prepared(root: Path, tokenizer: Tokenizer, given: Sequence[str], note: Callable[[str], None]) -> TokenTexts:
    data = open_prepared(root)
    if data.tokenizer.fingerprint != tokenizer.fingerprint:
        raise DataError(
            f"{root}: the data was prepared with another tokenizer than the model has; give the text itself, or "
            "prepare it with --tokenizer and the model's folder"
        )
    note("the data is prepared, so nothing is known of titles and paragraphs: pairs are crops of documents")
    return texts_of_stores(data.train, data.validation, given, tokenizer=tokenizer)


def _corpus(paths: Sequence[str | Path], settings: CorpusSettings, note: Callable[[str], None]) -> Corpus:
    """The corpus; where it is too little to hold something out, without that."""
    try:
        return Corpus(paths, settings)
    except CorpusError as error:
        if settings != settings.model_copy(update=_BY_HASH):
            raise
        whole = Corpus(paths, settings, hold_out=False)
        note(f"nothing is held out: {error}")
        return whole


def _pieces(corpus: Corpus, skipped: Counter[str]) -> Iterator[tuple[TextPiece, bool, bool]]:
    """Every piece with whether it is held out, and whether it stands below a title of another column.

    A table with such a column is read twice: what the corpus holds out and leaves out goes by the text alone.
    """
    settings, plan = corpus.settings, corpus.plan
    sources = corpus.all_sources()
    as_is = settings.column is not None or settings.cleaning.changes_text or plan.holdout_unit == "end"
    titled = sources if as_is else [_with_titles(source) for source in sources]
    bodies: Counter[int] = Counter()
    held: set[int] = set()
    is_cut = False
    if titled != sources:
        for piece, is_held in corpus.pieces():
            is_cut |= not piece.last
            if piece.offset == 0:
                body = _key(piece.text)
                bodies[body] += 1
                if is_held:
                    held.add(body)
    if titled == sources or (is_cut and plan.holdout_unit == "part"):
        yield from ((piece, is_held, False) for piece, is_held in corpus.pieces())
        skipped.update(corpus.skipped)
        return
    bad = BadInput(skip=settings.bad_input == "skip")
    leaves_out = settings.cleaning.duplicates != "keep" or settings.leaks == "drop"
    for source, plain in zip(titled, sources, strict=True):
        key: int | None = None
        has_title = False
        for piece in read_cleaned([source], bad, settings.cleaning, skipped, unit=plan.unit, piece_chars=PIECE_CHARS):
            if piece.offset == 0:
                keys = [_key(text) for text in _bodies(piece.text)]
                key = next((key for key in keys if bodies[key] > 0), None)
                has_title = source != plain and key != keys[0]
                if leaves_out and key is None:
                    skipped["duplicates"] += 1
                elif leaves_out and key is not None:
                    bodies[key] -= 1
            if key is not None or not leaves_out:
                yield piece, key in held, has_title
    skipped.update(bad.counts)


def _bodies(text: str) -> Iterator[str]:
    """What may be the text of a row behind its title, which is told from it by an empty line, or is missing."""
    yield text
    for _ in range(_MOST_BODIES):
        _, between, text = text.partition("\n\n")
        if not between:
            return
        yield text


def _key(text: str) -> int:
    return text_hash(text.strip()[:_KEY_CHARS])


def _with_titles(source: Source) -> Source:
    if not source.is_table or source.column is None:
        return source
    rows = [row for _, row in islice(rows_of(source, BadInput(skip=True), source.column), LOOK_ROWS)]
    return replace(with_title_column(source, list(dict.fromkeys(name for row in rows for name in row))))
