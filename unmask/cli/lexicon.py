"""`unmask lexicon`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unmask.cli.progress import ConsoleReporter
from unmask.errors import RunError
from unmask.hashing import permutation
from unmask.lexicon.lexicon import Lexicon
from unmask.lexicon.settings import LexiconSettings
from unmask.pretraining.data import open_prepared
from unmask.pretraining.interrupt import Interruption
from unmask.pretraining.lexicon import make_lexicon
from unmask.settings import validated
from unmask.tokens.tokenizer import Tokenizer

SHOWN = 8


def run_lexicon(data: Path, out: Path, *, options: dict[str, Any], overwrite: bool) -> dict[str, Any]:
    """Makes a lexicon of prepared data and shows some of it.

    Raises:
        UnmaskError: The data cannot be used, a setting is off, or the file is there already or cannot be written.
        Interrupted: SIGINT or SIGTERM; nothing was written.
    """
    given = {name: value for name, value in options.items() if value is not None}
    settings = validated(LexiconSettings, given, where="lexicon")
    if out.is_dir():
        raise RunError(f"{out} is a folder; --out takes a file")
    if out.exists() and not overwrite:
        raise RunError(f"{out} is already there; replace it with --overwrite, or give another --out")
    opened = open_prepared(data)
    with Interruption("nothing was written"), ConsoleReporter() as reporter:
        lexicon = make_lexicon(opened, out, settings, reporter)
        _show(lexicon, opened.tokenizer, reporter)
        by_words = {str(n): int((lexicon.num_words == n).sum()) for n in range(2, settings.max_words + 1)}
        reporter.note(
            f"{len(lexicon):,} collocations of {lexicon.facts['candidates']:,} candidates in "
            f"{lexicon.facts['num_words']:,} words ({', '.join(f'{c:,} of {n}' for n, c in by_words.items())} words); "
            f"{out}"
        )
    return {
        "out": str(out),
        "collocations": len(lexicon),
        "by_words": by_words,
        "candidates": lexicon.facts["candidates"],
        "words": lexicon.facts["num_words"],
        "smallest_pmi": float(lexicon.pmi[-1]) if len(lexicon) else None,
        "min_count": settings.min_count,
        "fingerprint": lexicon.fingerprint,
    }


def _show(lexicon: Lexicon, tokenizer: Tokenizer, reporter: ConsoleReporter) -> None:
    """The strongest collocations, some of the others, and the most and the least informative tokens."""
    others = np.sort(permutation(len(lexicon), len(lexicon))[:SHOWN])
    for title, numbers in (("the strongest", np.arange(min(SHOWN, len(lexicon)))), ("some others", others)):
        reporter.note(f"{title}:")
        for number in numbers:
            text = tokenizer.decode(lexicon.ids_of(int(number)))
            reporter.note(f"  {lexicon.pmi[number]:6.2f} nats  {lexicon.counts[number]:>8,} times  {text}")
    ordinary = np.flatnonzero(tokenizer.ordinary)
    order = ordinary[np.argsort(lexicon.informativeness[ordinary], kind="stable")]
    for title, ids in (("most", order[::-1]), ("least", order)):
        reporter.note(f"{title} informative tokens: {' '.join(tokenizer.token(int(id_)) for id_ in ids[:SHOWN])}")
