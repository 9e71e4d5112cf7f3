"""Lexicons of collocations, made of prepared data."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.core.errors import RunError
from unmask.core.files import check_file, held_file
from unmask.core.hashing import permutation
from unmask.core.remote import refused
from unmask.core.results import Result, Shown
from unmask.core.settings import validated
from unmask.data.lexicon import CHUNK_TOKENS, Lexicon, LexiconSettings, build_lexicon
from unmask.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from unmask.commands.run_data import PreparedData
    from unmask.core.results import Reporter

_SHOWN = 8  # collocations and tokens of each kind


class LexiconMade(Result):
    """A lexicon, and some of what is in it.

    Attributes:
        out: The file.
        collocations: How many it holds; `by_words`: of each number of words.
        candidates, words: Of the text.
        smallest_pmi: Of those that were kept, in nats; None where there are none.
        min_count: As asked for.
        fingerprint: Of the lexicon.
        examples: Of the strongest and of some others: `text`, `pmi`, `count`.
        tokens: The `most` and the `least` informative.
    """

    out: str
    collocations: int
    by_words: dict[str, int]
    candidates: int
    words: int
    smallest_pmi: float | None
    min_count: int
    fingerprint: str
    examples: dict[str, list[dict[str, Any]]]
    tokens: dict[str, list[str]]

    def shown(self) -> Iterator[Shown]:
        """The strongest collocations, some of the others, and the most and the least informative tokens."""
        for title, examples in self.examples.items():
            yield f"{title}:"
            yield from (f"  {each['pmi']:6.2f} nats  {each['count']:>8,} times  {each['text']}" for each in examples)
        yield from (f"{title} informative tokens: {' '.join(tokens)}" for title, tokens in self.tokens.items())
        by_words = ", ".join(f"{count:,} of {n}" for n, count in self.by_words.items())
        yield (
            f"{self.collocations:,} collocations of {self.candidates:,} candidates in {self.words:,} words ({by_words} "
            f"words); {self.out}"
        )


def lexicon(
    data: str | Path,
    *,
    out: str | Path,
    size: int | None = None,
    min_count: int = 10,
    max_words: int = 5,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> LexiconMade:
    """Finds the collocations of prepared text, for masking them as a whole (strategy pmi).

    Args:
        data: Folder that unmask prepare has made.
        out: File of the lexicon, such as lexicon.safetensors.
        size: Most collocations. By default one for 256 words of text, at most 800,000.
        min_count: Collocations are more frequent in the text than this.
        max_words: Words of the longest, up to 5.
        overwrite: Replace the file that is there.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: The data cannot be used, a setting is off, or the file is there already or cannot be written.
    """
    refused(out, "a lexicon")
    given = {"min_count": min_count, "max_words": max_words, **({} if size is None else {"size": size})}
    settings, target = validated(LexiconSettings, given, where="lexicon"), Path(out)
    check_file(target, overwrite=overwrite)
    from unmask.commands.run_data import open_prepared  # which loads torch
    from unmask.core.results import usual_reporter

    opened = open_prepared(Path(data))
    made = make_lexicon(opened, target, settings, reporter or usual_reporter())
    figures = {
        "out": str(target),
        "collocations": len(made),
        "by_words": {str(n): int((made.num_words == n).sum()) for n in range(2, settings.max_words + 1)},
        "candidates": made.facts["candidates"],
        "words": made.facts["num_words"],
        "smallest_pmi": float(made.pmi[-1]) if len(made) else None,
        "min_count": settings.min_count,
        "fingerprint": made.fingerprint,
    }
    return LexiconMade(figures | _examples(made, opened.tokenizer))


def _examples(made: Lexicon, tokenizer: Tokenizer) -> dict[str, Any]:
    others = np.sort(permutation(len(made), len(made))[:_SHOWN])
    examples = {
        title: [
            {
                "text": tokenizer.decode(made.ids_of(int(number))),
                "pmi": float(made.pmi[number]),
                "count": int(made.counts[number]),
            }
            for number in numbers
        ]
        for title, numbers in (("the strongest", np.arange(min(_SHOWN, len(made)))), ("some others", others))
    }
    ordinary = np.flatnonzero(tokenizer.ordinary)
    order = ordinary[np.argsort(made.informativeness[ordinary], kind="stable")]
    tokens = {
        title: [tokenizer.token(int(id_)) for id_ in ids[:_SHOWN]]
        for title, ids in (("most", order[::-1]), ("least", order))
    }
    return {"examples": examples, "tokens": tokens}


def make_lexicon(data: PreparedData, out: Path, settings: LexiconSettings, reporter: Reporter) -> Lexicon:
    """Makes the lexicon of a training split and writes it. Temporary files stand beside it meanwhile.

    Raises:
        RunError: The file cannot be written.
    """
    with held_file(out), _scratch(out) as scratch:
        lexicon = build_lexicon(
            lambda: data.train.chunks(CHUNK_TOKENS),
            data.tokenizer,
            settings,
            frequencies=data.frequencies,
            data_sha256=data.manifest.fingerprint,
            scratch=scratch,
            notify=reporter.notify,
        )
        lexicon.save(out)
    if not len(lexicon):
        reporter.note(
            f"warning: the text has no collocations (words in a row that stand in it more than {settings.min_count} "
            "times, and more often than by chance); masking by them is masking by whole words"
        )
    return lexicon


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder beside a file, which goes afterwards; also one that a kill has left is gone."""
    folder = out.with_name(out.name + ".counts.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield folder
    except OSError as error:
        raise RunError(f"{out}: the lexicon cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
