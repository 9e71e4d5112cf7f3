"""What masking needs besides rows: tables from the data, a lexicon, and scores if it follows a model.

Shape suffixes: A = anchors.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.commands.recipe import Recipe
from unmask.commands.run_data import PreparedData, open_prepared
from unmask.core.errors import DataError
from unmask.core.files import check_file, output_file, writing
from unmask.core.public import public
from unmask.core.remote import refused
from unmask.core.results import Reporter, Result, Shown, usual_reporter
from unmask.core.settings import validated
from unmask.data.data_folder import load_manifest
from unmask.data.lexicon import Lexicon, LexiconSettings, build_lexicon, load_lexicon
from unmask.masking.masker import Masker
from unmask.masking.settings import MaskingSettings, followed_scores
from unmask.masking.tables import (
    Tables,
    lexicon_of,
    named_background,
    named_lexicon,
    needed_lexicons,
    needs_documents,
    with_documents,
    with_lexicon,
)
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.scores import ScoreBoard

SHOWN_EXAMPLES = 8  # collocations


def masking_tables(
    settings: MaskingSettings, data: PreparedData, *, own_lexicon: Path, reporter: Reporter
) -> tuple[Tables, Lexicon | None]:
    """The tables of the data, those that the strategy needs besides, and a lexicon if it needs one.

    `own_lexicon` is the path of the lexicon that is used, or made, if the settings name none.
    """
    tables = data.tables
    if needs_documents(settings):
        tables = with_documents(tables, data.train)
    if not needed_lexicons(settings):
        return tables, None
    if (path := named_lexicon(settings)) is not None:
        lexicon = lexicon_of(path, data.tokenizer)
        return with_lexicon(tables, lexicon), lexicon
    usual = LexiconSettings()
    if own_lexicon.is_file():  # made before the run was interrupted
        lexicon = load_lexicon(own_lexicon)
        facts = lexicon.facts
        if facts["data_sha256"] == data.manifest.fingerprint and facts["settings"] == usual.model_dump():
            return with_lexicon(tables, lexicon), lexicon
    reporter.note("making a lexicon of the training text (to share one among runs, make it with `unmask lexicon`)")
    lexicon = make_lexicon(data, own_lexicon, usual, reporter)
    reporter.note(f"{len(lexicon):,} collocations of 2 to {usual.max_words} words: {own_lexicon}")
    return with_lexicon(tables, lexicon), lexicon


def masker_of(recipe: Recipe, tokenizer: Tokenizer, tables: Tables) -> Masker:
    boundaries = recipe.objectives.span_boundary is not None
    return Masker(recipe.masking, tokenizer, seed=recipe.training.seed, tables=tables, with_boundaries=boundaries)


def score_board(settings: MaskingSettings, data: PreparedData, device: torch.device) -> ScoreBoard | None:
    """The scores that the strategy follows; None if it follows none."""
    names = followed_scores(settings)
    if not names:
        return None
    path, num_anchors = named_background(settings)
    anchors = None
    if path is not None:
        background = load_manifest(path)
        if background.tokenizer_sha256 != data.manifest.tokenizer_sha256:
            raise DataError(
                f"{path} was prepared with another tokenizer; prepare the text with {path / 'tokenizer'}",
                options=["tokenizer"],
            )
        # Frequent here and rare in the background: p x log(p / q), with add-one smoothing.
        here, there = (
            (1.0 + np.array(each.token_frequencies)) / (each.vocab_size + sum(each.token_frequencies))
            for each in (data.manifest, background)
        )
        distinctive = here * np.log(here / there)
        distinctive[~data.tokenizer.ordinary] = -np.inf
        anchors = torch.from_numpy(np.argsort(-distinctive, kind="stable")[:num_anchors]).to(device)
    return ScoreBoard(
        names,
        vocab_size=data.manifest.vocab_size,
        every_steps=settings.refresh_steps,
        device=device,
        anchors_A=anchors,
        num_pos=len(data.tables.labels_of("pos", "weights of kind pos_loss")) if "pos_loss" in names else None,
    )


# ----------------------------------------
# Lexicons of collocations.


class LexiconMade(Result):
    """A lexicon, and its strongest collocations."""

    out: str  # the file
    collocations: int
    by_words: dict[str, int]  # collocations of each number of words
    candidates: int  # in the text, as are the words
    words: int
    smallest_pmi: float | None  # of the collocations, in nats
    min_count: int  # the option
    fingerprint: str
    examples: list[dict[str, Any]]  # the strongest: `text`, `pmi`, `count`

    def shown(self) -> Iterator[Shown]:
        yield from (f"{each['pmi']:6.2f} nats  {each['count']:>8,} times  {each['text']}" for each in self.examples)
        by_words = ", ".join(f"{count:,} of {n}" for n, count in self.by_words.items())
        yield (
            f"{self.collocations:,} collocations of {self.candidates:,} candidates in {self.words:,} words ({by_words} "
            f"words); {self.out}"
        )


@public
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
    """Finds collocations in prepared text, for strategy pmi. It masks each as a whole.

    Args:
        data: Folder made by unmask prepare.
        out: File of the lexicon, such as lexicon.safetensors.
        size: Maximum number of collocations. By default one per 256 words of text, at most 800,000.
        min_count: Keep only collocations that occur more often than this.
        max_words: Words of the longest collocation, up to 5.
        overwrite: Replace an existing file.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: The data cannot be used, a setting is out of range, or the file exists already or cannot be
            written.
    """
    refused(out, "a lexicon")
    values = {"min_count": min_count, "max_words": max_words, **({} if size is None else {"size": size})}
    settings, target = validated(LexiconSettings, values, where="lexicon"), Path(out)
    check_file(target, overwrite=overwrite)
    opened = open_prepared(Path(data))
    with output_file(target, overwrite=overwrite):
        made = make_lexicon(opened, target, settings, reporter or usual_reporter())
    tokens = np.split(made.input_ids, np.cumsum(made.lengths)[:-1])[:SHOWN_EXAMPLES]  # the strongest come first
    return LexiconMade(
        {
            "out": str(target),
            "collocations": len(made),
            "by_words": {str(n): int((made.num_words == n).sum()) for n in range(2, settings.max_words + 1)},
            "candidates": made.facts["candidates"],
            "words": made.facts["num_words"],
            "smallest_pmi": float(made.pmi[-1]) if len(made) else None,
            "min_count": settings.min_count,
            "fingerprint": made.fingerprint,
            "examples": [
                {"text": opened.tokenizer.decode(ids.tolist()), "pmi": float(pmi), "count": int(count)}
                for ids, pmi, count in zip(tokens, made.pmi, made.counts, strict=False)
            ],
        }
    )


def make_lexicon(data: PreparedData, out: Path, settings: LexiconSettings, reporter: Reporter) -> Lexicon:
    """Makes the lexicon of a training split and writes it, with temporary files beside it."""
    scratch = out.with_name(out.name + ".counts.partial")  # one left by a killed process is removed first
    with writing(out):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        try:
            lexicon = build_lexicon(
                data.train.chunks,
                data.tokenizer,
                settings,
                frequencies=data.frequencies,
                data_sha256=data.manifest.fingerprint,
                scratch=scratch,
                notify=reporter.notify,
            )
            lexicon.save(out)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    if not len(lexicon):
        reporter.warn(
            f"the text has no collocations (words in a row that occur more than {settings.min_count} "
            "times, and more often than by chance); masking by them is masking by whole words"
        )
    return lexicon
