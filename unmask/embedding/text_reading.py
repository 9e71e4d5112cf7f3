"""A corpus, raw or prepared, as the documents that an embedding model is trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from unmask.embedding.text_structure import parts_of_text, with_title_column
from unmask.embedding.token_texts import TextsBuilder, TokenTexts, texts_of_stores
from unmask.errors import DataError
from unmask.pretraining.run_data import is_prepared, open_prepared
from unmask.progress import Notify, Progress
from unmask.text.cleaning import read_cleaned
from unmask.text.corpus import Corpus
from unmask.text.documents import TextPiece
from unmask.text.reading import BadInput
from unmask.text.settings import CorpusSettings
from unmask.text.sources import Source
from unmask.text.table_rows import LOOK_ROWS, rows_of
from unmask.tokenizer.tokenizer import Tokenizer

MOSTLY = 0.5  # of the documents with several parts: if so many begin with what looks like a title, it is one
_TOLD = 1 << 20


def read_texts(
    paths: Sequence[str | Path],
    tokenizer: Tokenizer,
    settings: CorpusSettings,
    *,
    holdout: float,
    note: Callable[[str], None],
    notify: Notify,
) -> TokenTexts:
    """Reads and tokenizes a corpus.

    Args:
        paths: Files, folders or patterns, or one prepared folder.
        tokenizer: Of the model.
        settings: How files become documents.
        holdout: Share of the text that is held out; prepared data says itself what is.
        note: Told what was found.
        notify: Told of the progress.

    Raises:
        CorpusError: A file cannot be read, or there is no text.
        DataError: Data was prepared with another tokenizer.
    """
    if is_prepared(paths):
        return _read_prepared(Path(paths[0]), tokenizer, note)
    corpus = Corpus(paths, settings, hold_out=False)
    sources = [_with_titles(source) for source in corpus.sources] if settings.column is None else corpus.sources
    builder = TextsBuilder(tokenizer)
    skipped: Counter[str] = Counter()
    done = told = 0
    for source in sources:
        titled = isinstance(source.column, tuple) and source not in corpus.sources
        for piece in _pieces(source, corpus, skipped):
            done += len(piece.text)
            parts = parts_of_text(piece.text, begins=piece.offset == 0, titled=titled and "\n\n" in piece.text)
            builder.add(parts, begins=piece.offset == 0)
            if done >= told + _TOLD:
                notify(Progress("reading", told := done, corpus.num_bytes, "bytes"))
    with_titles = builder.num_titled > MOSTLY * max(builder.num_several, 1) or builder.num_marked > 0
    texts = builder.finish(holdout=holdout, with_titles=with_titles)
    note(corpus.plan.unit_in_words)
    for reason, number in skipped.items():
        note(f"left out: {number:,} {reason}")
    return texts


def _read_prepared(root: Path, tokenizer: Tokenizer, note: Callable[[str], None]) -> TokenTexts:
    data = open_prepared(root)
    if data.tokenizer.fingerprint != tokenizer.fingerprint:
        raise DataError(
            f"{root}: the data was prepared with another tokenizer than the model has; give the text itself, or "
            "prepare it with --tokenizer and the model's folder"
        )
    note("the data is prepared, so nothing is known of titles and paragraphs: pairs are crops of documents")
    return texts_of_stores(data.train, data.validation)


def _pieces(source: Source, corpus: Corpus, skipped: Counter[str]) -> Iterator[TextPiece]:
    settings = corpus.settings
    bad = BadInput(skip=settings.bad_input == "skip")
    yield from read_cleaned(
        [source], bad, settings.cleaning, skipped, unit=corpus.plan.unit, piece_chars=corpus.plan.piece_chars
    )
    skipped.update(bad.counts)


def _with_titles(source: Source) -> Source:
    if not source.is_table or source.column is None:
        return source
    rows = [row for _, row in islice(rows_of(source, BadInput(skip=True), source.column), LOOK_ROWS)]
    return replace(with_title_column(source, list(dict.fromkeys(name for row in rows for name in row))))
