"""Minimal pairs in BLiMP's format, and in how many of them a model prefers the sentence that is right.

Files are of JSON lines, each with a sentence that is right and one that is wrong:

    {"sentence_good": "Katherine can't help herself.", "sentence_bad": "Katherine can't help himself.",
     "linguistics_term": "anaphor_agreement", "UID": "anaphor_gender_agreement", ...}

`UID` names the paradigm, `linguistics_term` the phenomenon that it belongs to. Where they are absent, the file's name
is the paradigm, and the paradigm is the phenomenon.

Source: Warstadt et al. 2020 (BLiMP: the benchmark of linguistic minimal pairs for English).
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from unmask.errors import CorpusError, SettingsError
from unmask.files import absence
from unmask.measuring.pseudo_likelihood import Form, pseudo_log_likelihoods
from unmask.measuring.uncertainty import FEW, ratio_over_draws, wilson
from unmask.progress import Notify, ignore
from unmask.runner import Predictor
from unmask.text.json_rows import parsed_line
from unmask.text.reading import bare_suffix, broken_character, open_bytes
from unmask.tokenizer.tokenizer import Tokenizer

_LINES = (".jsonl", ".ndjson", ".json")
_TARS = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")


@dataclass(frozen=True)
class Pair:
    """A minimal pair.

    Attributes:
        good, bad: The sentence that is right, and the one that is wrong.
        paradigm: What pairs of a kind are called.
        phenomenon: What several paradigms show.
        where: File and line, for errors.
    """

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    where: str


def read_pairs(path: Path) -> list[Pair]:
    """Reads minimal pairs.

    Args:
        path: A file of JSON lines or of an array (also compressed), a folder of such, or a tar archive of such.

    Raises:
        CorpusError: There is no such file, no pair in it, or a line is not in BLiMP's format; with file and line.
    """
    if not (os.path.isdir(path) or os.path.isfile(path)):
        raise CorpusError(f"{path}: {absence(path)}; give a file, a folder or a tar archive of minimal pairs")
    pairs = [pair for name, file in _files(path) for pair in _pairs_of(name, file)]
    if not pairs:
        raise CorpusError(
            f"{path}: there are no minimal pairs in it; expected lines like "
            '{"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps."} in files that end with .jsonl'
        )
    return pairs


def _files(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files in their order by name, one open at a time."""
    if path.is_dir():
        for file in sorted(entry for entry in path.rglob("*") if entry.is_file() and bare_suffix(entry) in _LINES):
            with open_bytes(file) as content:
                yield str(file), content
    elif path.name.lower().endswith(_TARS):
        yield from _members(path)
    else:
        with open_bytes(path) as content:
            yield str(path), content


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files of an archive, which is read in one go and never unpacked to the disk."""
    found = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                hidden = Path(member.name).name.startswith("._")  # what macOS puts beside files
                if member.isfile() and not hidden and bare_suffix(Path(member.name)) in _LINES:
                    content = archive.extractfile(member)
                    assert content is not None, "a file has content"
                    found.append((f"{path}:{member.name}", content.read()))
    except (tarfile.TarError, EOFError, OSError) as error:
        reason = next(iter(str(error).splitlines()), "it ends too early").rstrip(":")  # the rest lists all methods
        raise CorpusError(f"{path}: not a readable tar archive ({reason})") from error
    yield from ((name, io.BytesIO(data)) for name, data in sorted(found))


def _pairs_of(name: str, file: IO[bytes]) -> Iterator[Pair]:
    own_name = Path(name).name.split(".")[0]
    for where, entry in _entries(name, file):
        sentences = [entry.get(key) if isinstance(entry, dict) else None for key in ("sentence_good", "sentence_bad")]
        good, bad = sentences
        if not (isinstance(good, str) and isinstance(bad, str) and good.strip() and bad.strip()):
            raise CorpusError(
                f"{where}: not in BLiMP's format; a pair is a JSON object with the texts sentence_good and sentence_bad"
            )
        if broken := broken_character(good + bad):
            raise CorpusError(f"{where}: a sentence holds {broken}, which is no character; take the pair out")
        paradigm = str(entry.get("UID") or own_name)
        yield Pair(good, bad, paradigm, str(entry.get("linguistics_term") or paradigm), where)


def _entries(name: str, file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    """What stands in each line, or in the array that the file is, and where."""
    lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
    for place, (number, line) in enumerate(lines):
        whole = place == 0 and line.lstrip().startswith(b"[")
        where = name if whole else f"{name}: line {number}"
        try:
            entry = parsed_line((line + file.read() if whole else line).decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise CorpusError(f"{where}: not UTF-8 ({error})") from error
        except ValueError as error:
            raise CorpusError(f"{where} {error}; minimal pairs are a JSON object a line, or an array") from error
        yield from ((f"{name}: pair {n}", each) for n, each in enumerate(entry, 1)) if whole else [(where, entry)]


TIE = 1e-4  # nats: what the order in which numbers are added up may change


@dataclass(frozen=True)
class Accuracy:
    """A share of pairs.

    Attributes:
        accuracy: Of the pairs; ties are one half.
        interval: That holds the true accuracy in 95 of 100 cases; it tells nothing of the training's seed.
        interval_over: What it takes as drawn: `paradigms`, by Student's t (`unmask.measuring.uncertainty`), since the
            pairs of a paradigm are made from one pattern and stand or fall together; `pairs` of a single paradigm, or
            of paradigms that all came out the same, by Wilson's interval, which speaks of other pairs of just these
            paradigms.
        pairs: How many.
        num_paradigms: Of how many paradigms.
        ties: How many of them are told neither way.
    """

    accuracy: float
    interval: tuple[float, float]
    interval_over: Literal["paradigms", "pairs"]
    pairs: int
    num_paradigms: int
    ties: int


@dataclass(frozen=True)
class PairResult:
    """Of a set of minimal pairs: `overall`, and by the name of each phenomenon and paradigm."""

    overall: Accuracy
    phenomena: dict[str, Accuracy]
    paradigms: dict[str, Accuracy]


def score_pairs(
    network: Predictor,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    *,
    form: Form = "plain",
    notify: Notify = ignore,
) -> PairResult:
    """Scores both sentences of each pair; the higher pseudo-log-likelihood is what the model prefers.

    Sums are compared, not means over tokens, as in the source; a sentence with more tokens has a lower sum. Sentences
    of the same tokens tie.

    Args:
        network, tokenizer, form, notify: As for `pseudo_log_likelihoods`.
        pairs: At least one.

    Raises:
        ModelError: A loss is no finite number.
        SettingsError: A sentence is longer than the model; with file and line.

    Source: Salazar et al. 2020, section 4.2.
    """
    check_lengths(pairs, tokenizer, longest=network.config.max_position_embeddings)
    totals = pseudo_log_likelihoods(network, tokenizer, _sentences(pairs), form=form, notify=notify).totals
    return tally(pairs, totals[0::2] - totals[1::2])


def check_lengths(pairs: Sequence[Pair], tokenizer: Tokenizer, *, longest: int) -> None:
    """Makes sure that a model takes all sentences.

    Args:
        pairs: Any number.
        tokenizer: Of the model.
        longest: Positions that the model takes, special tokens included.

    Raises:
        SettingsError: A sentence has no tokens, or more; with file and line.
    """
    room = longest - len(tokenizer.special.around)
    for number, encoded in enumerate(tokenizer.encode_corpus(_sentences(pairs))):
        if not 0 < len(encoded.input_ids) <= room:
            raise SettingsError(
                f"{pairs[number // 2].where}: a sentence of {len(encoded.input_ids)} tokens, but the model takes 1 to "
                f"{room} beside the special tokens; leave the pair out"
            )


def _sentences(pairs: Sequence[Pair]) -> list[str]:
    """The right one and the wrong one of each pair in turn."""
    return [sentence for pair in pairs for sentence in (pair.good, pair.bad)]


def tally(pairs: Sequence[Pair], differences: NDArray[np.float64]) -> PairResult:
    """Adds up.

    Args:
        pairs: At least one.
        differences: [num_pairs]: score of the right sentence minus that of the wrong one.
    """
    points = np.where(np.abs(differences) <= TIE, 0.5, differences > 0)
    paradigm = np.unique([pair.paradigm for pair in pairs], return_inverse=True)[1]
    return PairResult(
        _accuracy(points, paradigm),
        _by_name([pair.phenomenon for pair in pairs], points, paradigm),
        _by_name([pair.paradigm for pair in pairs], points, paradigm),
    )


def few_paradigms(found: Accuracy) -> str | None:
    """What must be said where an accuracy rests on few paradigms; None where it rests on enough."""
    if found.interval_over == "pairs":
        return "the interval is over pairs of just these paradigms: of others it tells nothing"
    if found.num_paradigms < FEW:
        return (
            f"there are {found.num_paradigms} paradigms only: the interval over them is wide, and less reliable than "
            f"with {FEW} or more"
        )
    return None


def _by_name(names: list[str], points: NDArray[np.float64], paradigm: NDArray[np.int64]) -> dict[str, Accuracy]:
    known = np.array(names)
    return {name: _accuracy(points[known == name], paradigm[known == name]) for name in sorted(set(names))}


def _accuracy(points: NDArray[np.float64], paradigm: NDArray[np.int64]) -> Accuracy:
    """Of some pairs, by the number of the paradigm of each."""
    won, count = float(points.sum()), len(points)
    found = ratio_over_draws(np.bincount(paradigm, weights=points), np.bincount(paradigm))
    interval = found.share_interval
    return Accuracy(
        accuracy=won / count,
        interval=wilson(won, count) if interval is None else interval,
        interval_over="pairs" if interval is None else "paradigms",
        pairs=count,
        num_paradigms=found.draws,
        ties=int((points == 0.5).sum()),
    )
