"""The first part of a training that begins with a checkpoint: its start, its data, and text of its old domain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from unmask.corpus.sources import STDIN
from unmask.errors import RunError
from unmask.pretraining.data import PreparedData, obtain_data
from unmask.pretraining.folder import RunFolder
from unmask.pretraining.old_text import check_old_data, obtain_old_text
from unmask.pretraining.reporter import Reporter
from unmask.pretraining.start import check_text, check_tokenizer, obtain_start, training_texts, with_start_tokenizer
from unmask.recipe.recipe import Recipe
from unmask.tokens.settings import TokenizerSettings


def data_from_checkpoint(sources: Sequence[str], folder: RunFolder, recipe: Recipe, reporter: Reporter) -> PreparedData:
    """Makes the start, prepares the new text with its tokenizer, and puts the old text beside it.

    Args:
        sources: Text files, or one prepared folder.
        folder: Of the run.
        recipe: With `start`.
        reporter: Told of what is done.

    Raises:
        UnmaskError: As `obtain_start`, `obtain_data` and `obtain_old_text`.
    """
    assert recipe.start is not None
    check_text(recipe, sources)
    facts = obtain_start(folder.start, recipe, training_texts(sources, recipe.corpus))
    for line in facts.describe(recipe.start.extend_vocab):
        reporter.note(line)
    preparing = with_start_tokenizer(recipe, folder.start, folder.data, sources)
    data = obtain_data(sources, folder.data, preparing, reporter)
    check_tokenizer(data.root, data.manifest, folder.start, recipe.start.checkpoint)
    reporter.note(obtain_old_text(folder.old, recipe.start, data.tokenizer))
    return data


def tokenizer_and_notes(
    sources: Sequence[str | Path], recipe: Recipe, folder: Path, *, sample_bytes: int
) -> tuple[TokenizerSettings, list[str]]:
    """What a dry run needs of the same: the start is made, with words of the beginning of the text alone.

    Args:
        sources: As the user gave them.
        recipe: With `start` or without.
        folder: Where the start goes.
        sample_bytes: How much text is looked at for new words.

    Returns:
        With which tokenizer text is prepared, and what there is to say.

    Raises:
        UnmaskError: As the real training.
    """
    if recipe.start is None:
        return recipe.tokenizer, []
    paths = [str(path) for path in sources]
    if STDIN in paths:
        raise RunError("--dry-run would use standard input up; give a file")
    check_old_data(recipe.start.old_data)
    check_text(recipe, paths)
    folder.parent.mkdir()
    texts = training_texts(paths, recipe.corpus)
    facts = obtain_start(folder, recipe, lambda: _first(texts(), sample_bytes))
    lines = list(facts.describe(recipe.start.extend_vocab))
    if recipe.start.extend_vocab is not None:
        lines.append(f"these are words of the first {sample_bytes / 2**20:.0f} MiB; the run looks at all of the text")
    return with_start_tokenizer(recipe, folder, folder.with_name("data"), paths).tokenizer, lines


def _first(texts: Iterable[str], num_bytes: int) -> Iterator[str]:
    """Texts until there are so many bytes."""
    gone = 0
    for text in texts:
        yield text
        gone += len(text.encode())
        if gone >= num_bytes:
            return
