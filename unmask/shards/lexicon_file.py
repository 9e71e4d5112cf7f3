"""A lexicon and its settings: collocations with their PMI, and how informative each token is, in one file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import Field

from unmask.errors import DataError
from unmask.files import typed, write_atomically
from unmask.hashing import longer, mix
from unmask.settings import Settings
from unmask.shards.token_words import hashes_of_words
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.values import parse_json

MOST_WORDS = 5
LARGEST_SIZE = 800_000
_WORDS_PER_ENTRY = 256


class LexiconSettings(Settings):
    """Settings of a lexicon.

    Attributes:
        size: Most collocations; None is one for 256 words of the corpus, but not more than the paper's 800,000.
        min_count: Collocations stand in the corpus more often than this.
        max_words: Longest collocation.

    Source: Levine et al. 2021 (PMI-Masking), section 4: 2 to 5 words, more than 10 occurrences, 800,000 entries for
    16 GB of text.
    """

    size: Annotated[int, Field(ge=1)] | None = None
    min_count: Annotated[int, Field(ge=1)] = 10
    max_words: Annotated[int, Field(ge=2, le=MOST_WORDS)] = 5

    def size_for(self, num_words: int) -> int:
        """Most collocations for a corpus of so many words."""
        return self.size or min(LARGEST_SIZE, num_words // _WORDS_PER_ENTRY)


VERSION = 1
_FORMAT = "unmask lexicon"
_FACTS = "facts"


@dataclass(frozen=True)
class Lexicon:
    """Collocations, the strongest first; as a file, of safetensors. N = how many there are.

    Attributes:
        input_ids: [num_tokens], int32: their tokens, one collocation behind another.
        word_starts: [num_tokens], uint8: whether a word begins at the token.
        lengths: [N], int32: tokens of each.
        pmi: [N], float32, in nats.
        counts: [N], int64: how often each stands in the corpus.
        informativeness: [vocab_size], float32, in nats.
        facts: Where it comes from: `tokenizer_sha256`, `data_sha256`, `settings`, `num_words`, `candidates`.
    """

    input_ids: NDArray[np.int32]
    word_starts: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    pmi: NDArray[np.float32]
    counts: NDArray[np.int64]
    informativeness: NDArray[np.float32]
    facts: dict[str, Any]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_words(self) -> NDArray[np.int64]:
        """[N]: words of each collocation."""
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(self.word_starts.astype(np.int64), np.cumsum(self.lengths) - self.lengths)

    def hashes(self) -> NDArray[np.int64]:
        """[N], int64: the hash of each collocation, as masking makes it of rows."""
        words = hashes_of_words(self.input_ids.astype(np.int64), np.flatnonzero(self.word_starts))
        num_words = self.num_words
        first = np.cumsum(num_words) - num_words
        found = words[first]
        for n in range(1, int(num_words.max(initial=1))):
            more = num_words > n
            found[more] = longer(found[more], mix(words[first[more] + n]))
        return found

    def ids_of(self, number: int) -> list[int]:
        """The tokens of a collocation."""
        end = int(self.lengths[: number + 1].sum())
        return self.input_ids[end - int(self.lengths[number]) : end].tolist()

    @property
    def fingerprint(self) -> str:
        """A hash of the content."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The file's content, the same for the same lexicon."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        facts = {"format": _FORMAT, "version": VERSION, **self.facts}
        # One entry of metadata: safetensors writes several in any order.
        return safetensors.numpy.save(arrays, metadata={_FACTS: json.dumps(facts, sort_keys=True)})

    def save(self, path: Path) -> None:
        """Writes the file."""
        write_atomically(path, self.to_bytes())

    def check_tokenizer(self, tokenizer: Tokenizer, *, name: str) -> None:
        """Refuses another tokenizer than the one that it was made with.

        Raises:
            DataError: It is another.
        """
        if self.facts["tokenizer_sha256"] != tokenizer.fingerprint:
            raise DataError(
                f"{name}: the lexicon was made with another tokenizer than the one in use; make it anew with "
                "`unmask lexicon DATA --out F`, of data that this tokenizer has prepared"
            )


_ARRAYS = ("input_ids", "word_starts", "lengths", "pmi", "counts", "informativeness")


def load_lexicon(path: Path) -> Lexicon:
    """Reads a lexicon.

    Raises:
        DataError: There is none, or the file is something else, damaged, or of another version.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such lexicon; make it with `unmask lexicon DATA --out {typed(path)}`")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            facts = parse_json((file.metadata() or {})[_FACTS])
            if facts.pop("format") != _FORMAT:
                raise KeyError("format")
            version = facts.pop("version")
            arrays = {name: file.get_tensor(name) for name in _ARRAYS} if version == VERSION else {}
    except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
        raise DataError(f"{path}: not a lexicon, or a damaged one ({error}); make it with `unmask lexicon`") from error
    if version != VERSION:
        raise DataError(f"{path}: made by another version of unmask; make it anew with `unmask lexicon`")
    return Lexicon(**arrays, facts=facts)
