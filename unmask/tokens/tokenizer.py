"""The tokenizer as the rest of unmask sees it: ids, word starts, and what masking must know of the vocabulary.

The work is done by the `tokenizers` library; a saved folder opens in transformers' `AutoTokenizer`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.errors import TokenizerError
from unmask.tokens.words import WordStarts, word_starts_of

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The same roles as RoBERTa and its children spell them.
_SPELLINGS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the special tokens that an encoder needs."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


@dataclass(frozen=True)
class Encoded:
    """The tokens of a text, without special tokens.

    Attributes:
        input_ids: [num_tokens], int32.
        word_starts: [num_tokens], bool: whether a word begins at the token.
    """

    input_ids: NDArray[np.int32]
    word_starts: NDArray[np.bool_]


class Tokenizer:
    """A tokenizer with its special ids, word starts and a table of what each id stands for.

    Attributes:
        backend: The `tokenizers.Tokenizer`.
        special: Ids of the special tokens.
        vocab_size: Number of ids; the largest id plus one.
        ordinary: [vocab_size], bool: ids that text consists of. Only these are ever masked or drawn as random
            replacements; special and unknown tokens and gaps in the ids are not.
        token_bytes: [vocab_size], int32: UTF-8 bytes of the text that an id stands for, without the
            continuation mark; 0 for special tokens.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Wraps a `tokenizers.Tokenizer`.

        Raises:
            TokenizerError: A special token is missing, or the kind of model is not supported.
        """
        # A copy: other holders of the tokenizer keep their settings, and stored truncation or padding, which many
        # released tokenizers have, would silently cut the corpus.
        backend = tokenizers.Tokenizer.from_str(backend.to_str())
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special = _find_special_ids(backend)
        self.word_starts: WordStarts = word_starts_of(backend)
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values()) + 1
        self.ordinary: NDArray[np.bool_] = np.zeros(self.vocab_size, dtype=bool)
        self.token_bytes: NDArray[np.int32] = np.zeros(self.vocab_size, dtype=np.int32)
        specials = {id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special}
        specials |= set(vars(self.special).values())
        for token, id_ in vocab.items():
            if id_ not in specials:
                self.ordinary[id_] = True
                self.token_bytes[id_] = len(self.word_starts.text_of(token).encode())

    @property
    def fingerprint(self) -> str:
        """A hash of everything the tokenizer does."""
        return hashlib.sha256(self.backend.to_str().encode()).hexdigest()

    def encode_corpus(self, texts: Sequence[str]) -> list[Encoded]:
        """Tokenizes corpus text, in which `[MASK]` or `[SEP]` are letters like any other.

        Args:
            texts: Any number of texts; they are tokenized in parallel.
        """
        before = self.backend.encode_special_tokens
        self.backend.encode_special_tokens = True
        try:
            encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        finally:
            self.backend.encode_special_tokens = before
        return [self._encoded(encoding.ids) for encoding in encodings]

    def encode_prompt(self, text: str) -> NDArray[np.int32]:
        """Tokenizes a text whose `[MASK]` are masks, with the special tokens around it."""
        return np.asarray(self.backend.encode(text, add_special_tokens=True).ids, dtype=np.int32)

    def starts(self, input_ids: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Whether a word begins at each token; any shape."""
        return self.word_starts.of_ids(input_ids)

    def token(self, token_id: int) -> str:
        """The token of an id, as it stands in the vocabulary."""
        token = self.backend.id_to_token(token_id)
        return f"<{token_id}>" if token is None else token

    def text(self, token_id: int) -> str:
        """The text that an id stands for, without the mark of a continuation."""
        return self.word_starts.text_of(self.token(token_id))

    def decode(self, input_ids: Sequence[int]) -> str:
        """The text of some ids; special tokens are left out."""
        return str(self.backend.decode(list(input_ids), skip_special_tokens=True))

    def save(self, folder: Path, *, max_length: int) -> None:
        """Writes `tokenizer.json` and what `AutoTokenizer` of transformers 4 and 5 wants beside it.

        Args:
            folder: An existing folder.
            max_length: Longest sequence of the model, special tokens included.
        """
        names = {f"{role}_token": self.token(id_) for role, id_ in vars(self.special).items()}
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
            **names,
        }
        self.backend.save(str(folder / "tokenizer.json"))
        for name, content in (("tokenizer_config.json", config), ("special_tokens_map.json", names)):
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def _encoded(self, ids: Sequence[int]) -> Encoded:
        input_ids = np.asarray(ids, dtype=np.int32)
        return Encoded(input_ids, self.word_starts.of_ids(input_ids))


def load_tokenizer(source: Path) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        source: A `tokenizer.json`, or a folder that holds one (a transformers folder does).

    Raises:
        TokenizerError: There is none, it is damaged, or it lacks what an encoder needs.
    """
    file = source / "tokenizer.json" if source.is_dir() else source
    if not file.is_file():
        raise TokenizerError(f"{source}: there is no tokenizer.json; give a folder that holds one, or that file")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exceptions
        raise TokenizerError(f"{file}: not a tokenizer of the `tokenizers` library: {error}") from error
    return Tokenizer(backend)


def _find_special_ids(backend: tokenizers.Tokenizer) -> SpecialIds:
    found: dict[str, int] = {}
    for role, spellings in _SPELLINGS.items():
        ids = [id_ for token in spellings if (id_ := backend.token_to_id(token)) is not None]
        if not ids:
            raise TokenizerError(
                f"the tokenizer has no {role} token ({' or '.join(spellings)}); an encoder needs one: add it with "
                f'tokenizer.add_special_tokens(["{spellings[0]}"]) and save the tokenizer again'
            )
        found[role] = ids[0]
    return SpecialIds(**found)


def as_tokenizer(source: Any) -> Tokenizer:
    """Takes a tokenizer in any of the forms that users have.

    Args:
        source: Ours, a `tokenizers.Tokenizer`, a transformers fast tokenizer, or a folder.

    Raises:
        TokenizerError: It is none of these (a slow transformers tokenizer has no `tokenizers` backend).
    """
    if isinstance(source, Tokenizer):
        return source
    if isinstance(source, tokenizers.Tokenizer):
        return Tokenizer(source)
    if isinstance(source, str | Path):
        return load_tokenizer(Path(source))
    backend = getattr(source, "backend_tokenizer", None)
    if isinstance(backend, tokenizers.Tokenizer):
        return Tokenizer(backend)
    raise TokenizerError(
        f"{type(source).__name__} is not a tokenizer that can be used: give a tokenizers.Tokenizer, a transformers "
        "fast tokenizer, or a folder that holds a tokenizer.json"
    )
