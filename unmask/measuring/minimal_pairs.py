"""Minimal pairs in BLiMP's format, and in how many of them a model prefers the sentence that is right.

Files are of JSON lines, each with a sentence that is right and one that is wrong:

    {"sentence_good": "Katherine can't help herself.", "sentence_bad": "Katherine can't help himself.",
     "linguistics_term": "anaphor_agreement", "UID": "anaphor_gender_agreement", ...}

`UID` names the paradigm, `linguistics_term` the phenomenon that it belongs to. Where they are absent, the file's name
is the paradigm, and the paradigm is the phenomenon.

Source: Warstadt et al. 2020 (BLiMP: the benchmark of linguistic minimal pairs for English).
"""

from __future__ import annotations

import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
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
from unmask.text.json_cursor import EndsEarlyError, JsonCursor, told
from unmask.text.json_rows import parsed_line
from unmask.text.reading import BadInput, bare_suffix, broken_character, decoded, line_parts, open_bytes, pieces_of
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.values import shown

_LINES = (".jsonl", ".ndjson", ".json")
_TARS = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
_NO_PAIRS = (".zip", ".7z", ".rar", ".tar.zst")
_MOST_PAIRS = 1_000_000  # BLiMP has 67,000
_MOST_CHARS = 1 << 28  # of all of them
_SHAPE = "minimal pairs are a JSON object a line, or an array"


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
        CorpusError: There is no such file, no pair in it, a line is not in BLiMP's format or longer than a million
            characters, or there are more than a million pairs or 256 million characters; with file and line.
    """
    if not (os.path.isdir(path) or os.path.isfile(path)):
        raise CorpusError(f"{path}: {absence(path)}; give a file, a folder or a tar archive of minimal pairs")
    if path.is_file() and path.name.lower().endswith(_NO_PAIRS):
        raise CorpusError(f"{path}: this kind of archive is not read; unpack it, and give the folder")
    pairs: list[Pair] = []
    num_chars = 0
    for pair in _in_archive(path) if path.name.lower().endswith(_TARS) and not path.is_dir() else _in_files(path):
        pairs.append(pair)
        num_chars += len(pair.good) + len(pair.bad) + len(pair.paradigm) + len(pair.phenomenon)
        if len(pairs) > _MOST_PAIRS or num_chars > _MOST_CHARS:
            raise CorpusError(
                f"{path}: more than {_MOST_PAIRS:,} minimal pairs, or {_MOST_CHARS:,} characters of them; give fewer"
            )
    if not pairs:
        raise CorpusError(
            f"{path}: there are no minimal pairs in it; expected lines like "
            '{"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps."} in files that end with .jsonl'
        )
    return pairs


def _in_files(path: Path) -> Iterator[Pair]:
    """The pairs of a file, or of those in a folder in their order by name."""
    files = [path]
    if path.is_dir():
        files = sorted(entry for entry in path.rglob("*") if entry.is_file() and bare_suffix(entry) in _LINES)
    for each in files:
        with open_bytes(each) as content:
            yield from _pairs_of(str(each), content)


def _in_archive(path: Path) -> Iterator[Pair]:
    """The pairs of an archive, file by file in their order by name. It is read in one go and never unpacked."""
    found: list[tuple[str, list[Pair]]] = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.size < 0:  # behind which Python's own reader would go round in a circle
                    raise tarfile.ReadError("a file of negative size")
                hidden = Path(member.name).name.startswith("._")  # what macOS puts beside files
                if member.isfile() and not hidden and bare_suffix(Path(member.name)) in _LINES:
                    content = archive.extractfile(member)
                    assert content is not None, "a file has content"
                    name = f"{path}:{member.name}"
                    found.append((name, list(_pairs_of(name, content))))
    except CorpusError:  # of a file in it
        raise
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError, OverflowError) as error:
        reason = next(iter(str(error).splitlines()), "it ends too early").rstrip(":")  # the rest lists all methods
        raise CorpusError(f"{path}: not a readable tar archive, or a cut-off one ({reason})") from error
    for _, pairs in sorted(found, key=lambda each: each[0]):
        yield from pairs


def _pairs_of(name: str, file: IO[bytes]) -> Iterator[Pair]:
    own_name = Path(name).name.split(".")[0]
    for where, entry in _entries(name, file):
        sentences = [entry.get(key) if isinstance(entry, dict) else None for key in ("sentence_good", "sentence_bad")]
        good, bad = sentences
        if not (isinstance(good, str) and isinstance(bad, str) and good.strip() and bad.strip()):
            raise CorpusError(
                f"{where}: not in BLiMP's format; a pair is a JSON object with the texts sentence_good and sentence_bad"
            )
        paradigm = _called(entry, "UID", where) or own_name
        phenomenon = _called(entry, "linguistics_term", where) or paradigm
        if broken := broken_character(good + bad + paradigm + phenomenon):
            raise CorpusError(f"{where}: a sentence or a name holds {broken}, which is no character; take the pair out")
        yield Pair(good, bad, paradigm, phenomenon, where)


def _called(entry: dict[str, Any], key: str, where: str) -> str:
    """A name of the pair; empty where it has none."""
    value = entry.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool | list | dict):
        raise CorpusError(f"{where}: {key} is {shown(value)}, not a text")
    return str(value)


def _entries(name: str, file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    """What stands in each line, or in the array that the file is, and where."""
    chunks = decoded(pieces_of(file), name, BadInput(skip=False, way_out=None))
    begin, first = 1, ""
    for first in chunks:
        if first.strip():
            break
        begin += first.count("\n")
    if first.lstrip().startswith("["):
        yield from _elements(name, JsonCursor(name, chain([first], chunks), way_out=f"{_SHAPE} of such"))
        return
    for number, part in enumerate(line_parts(chain([first], chunks)), begin):
        where = f"{name}: line {number}"
        if not (part.starts and part.ends):
            raise CorpusError(f"{where} is longer than a million characters; {_SHAPE}")
        if part.text.strip():
            try:
                yield where, parsed_line(part.text)
            except ValueError as error:
                raise CorpusError(f"{where} {error}; {_SHAPE}") from error


def _elements(name: str, text: JsonCursor) -> Iterator[tuple[str, Any]]:
    """The elements of an array, one at a time."""
    text.take("[")
    number, is_over = 0, text.take("]")
    while not is_over:
        number += 1
        where = f"{name}: pair {number}"
        text.peek()
        try:
            value = text.value()
        except EndsEarlyError as error:
            raise CorpusError(f"{where} has no end: the file is cut off") from error
        except CorpusError:  # of the file: it is a ValueError, too
            raise
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{where} {told(error)}; {_SHAPE}") from error
        yield where, value
        is_over = text.take("]")
        if not is_over and not text.take(","):
            raise CorpusError(f"{where} is followed by {text.excerpt!r}, not by a comma; {_SHAPE}")
    if text.peek():
        raise CorpusError(f"{name}: {text.excerpt!r} follows what was the whole of it; {_SHAPE}")


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
