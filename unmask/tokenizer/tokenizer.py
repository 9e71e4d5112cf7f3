"""The tokenizer as the rest of unmask sees it: ids, word starts, and what masking must know about the vocabulary.

The `tokenizers` library does the work; a saved folder opens in transformers' `AutoTokenizer`.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, processors

from unmask.core.errors import TokenizerError
from unmask.core.files import say_once, writing
from unmask.tokenizer.spans import TokenPlaces
from unmask.tokenizer.words import WordStarts, spelling

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MOST_IDS = 1 << 24  # tables over the vocabulary have a row for each id, including gaps
BARE_TOKENS = ("[PAD]", "[MASK]")
# Names of the roles in BERT, RoBERTa, XLNet and ESM.
SPELLINGS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>", "<eos>"),
    "mask": ("[MASK]", "<mask>"),
}
_BARE_WITHOUT = ("unk", "cls", "sep")


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the special tokens that an encoder needs. A bare tokenizer of characters has only pad and mask."""

    pad: int
    unk: int | None
    cls: int | None
    sep: int | None
    mask: int

    @property
    def around(self) -> list[int]:
        return [id_ for id_ in (self.cls, self.sep) if id_ is not None]


def find_special_ids(backend: tokenizers.Tokenizer, names: Mapping[str, str | None]) -> SpecialIds:
    """Finds the special tokens by the given names, else by the usual ones. A role with the name None has no token.

    Only a tokenizer with neither [UNK] nor [CLS] nor [SEP] may lack them.
    """
    id_of: dict[str, Any] = {}
    left_out = {role for role, token in names.items() if token is None and role in _BARE_WITHOUT}
    for role, usual in SPELLINGS.items():
        spellings = () if role in left_out else (names.get(role) or usual[0], *usual)
        ids = [id_ for token in spellings if (id_ := backend.token_to_id(token)) is not None]
        id_of[role] = ids[0] if ids else None
    bare = all(id_of[role] is None for role in _BARE_WITHOUT)
    for role, usual in SPELLINGS.items():
        if id_of[role] is None and role not in left_out and not (bare and role in _BARE_WITHOUT):
            raise TokenizerError(
                f"the tokenizer has no {role} token ({' or '.join(usual)}), which an encoder needs: for a new "
                f'model, add it with tokenizer.add_special_tokens(["{usual[0]}"]) and save the tokenizer '
                "again; a model trained without it has no embedding for it and cannot be used"
            )
    return SpecialIds(**id_of)


def with_special_tokens(
    tokenizer: tokenizers.Tokenizer, *, mask_takes_space: bool, names: Sequence[str | None] = SPECIAL_TOKENS
) -> tokenizers.Tokenizer:
    """Makes the special tokens special, in place, and puts `[CLS]` and `[SEP]` around texts if they exist.

    `names` are the tokens of the roles pad, unk, cls, sep and mask. `mask_takes_space` makes the mask absorb the space
    before it in a prompt. Tokens that include the space before a word need this: training hides `Ġking`, so a prompt
    must not have a separate space before the mask.
    """
    known = [token for token in names if token is not None and tokenizer.token_to_id(token) is not None]
    before, after = ([token for token in names[n : n + 1] if token in known] for n in (2, 3))
    if before or after:
        single = [*before, "$A", *after]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single,
            pair=[*single, "$B:1", *(f"{token}:1" for token in after)] if after else None,
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (*before, *after)],
        )
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False, lstrip=mask_takes_space and token == names[-1])
            for token in known
        ]
    )
    return tokenizer


# Known words are looked up instead of tokenized. BERT's normaliser works character by character, and its pre-tokenizer
# splits text at white space and around each punctuation mark. So a text's tokens are those of its words, in order, and
# the library need tokenize each word only once. It caches words for BPE, but not for WordPiece. Text is split only at
# the commonest of these characters; the library splits the rest.

# All are punctuation to BERT: ASCII's, and some of Unicode's categories P.
_MARKS = re.escape(string.punctuation + "“”‘’—–…«»")
_WORDS = re.compile(rf"[^ \n{_MARKS}]+|[{_MARKS}]")
MOST_WORDS = 1 << 19
MOST_CHARS = 1 << 23
# If more than this share of the words is new, looking up gains nothing (proteins, text without spaces).
MOST_NEW = 0.3
ENOUGH_WORDS = 10_000


class WordMemory:
    """Tokenizes texts word by word and remembers a bounded number of words. Several threads may use it."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        self.useful = True  # until a batch shows that words hardly ever repeat
        self._lock = Lock()  # around all changes of the tables: the library releases the GIL
        self._forget()

    def _forget(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict()  # numbers of words, in order of appearance
        self._numbers.default_factory = self._numbers.__len__
        self._num_chars = 0
        self._ids: NDArray[np.int32] = np.zeros(0, dtype=np.int32)  # tokens of all words, concatenated
        self._begins, self._lengths = (np.zeros(0, dtype=np.int64) for _ in range(2))  # of each word's tokens

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The tokens of all texts, concatenated, and how many each text has."""
        words = [_WORDS.findall(text) for text in texts]
        num_words = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
        total = int(num_words.sum())
        with self._lock:
            try:
                known = len(self._numbers)
                each = map(self._numbers.__getitem__, chain.from_iterable(words))
                numbers = np.fromiter(each, dtype=np.int64, count=total)
                new = list(islice(self._numbers, known, None))
                if total > ENOUGH_WORDS and len(new) > MOST_NEW * total:
                    self.useful = False
                if new:
                    ids, lengths = _joined(self.backend.encode_batch_fast(new, add_special_tokens=False))
                    self._begins = np.concatenate([self._begins, len(self._ids) + np.cumsum(lengths) - lengths])
                    self._ids = np.concatenate([self._ids, ids])
                    self._lengths = np.concatenate([self._lengths, lengths])
                    self._num_chars += sum(map(len, new))
            except BaseException:  # numbered words without tokens would shift those of later words
                self._forget()
                raise
            lengths, begins, ids = self._lengths[numbers], self._begins[numbers], self._ids
            if len(self._numbers) > MOST_WORDS or self._num_chars > MOST_CHARS:
                self._forget()
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        from_begin = np.repeat(begins - ends[:-1], lengths)
        input_ids = ids[from_begin + np.arange(ends[-1])]
        last = np.cumsum(num_words)
        return input_ids, ends[last] - ends[last - num_words]


# How much of a text becomes `[UNK]`, counted in letters: in a log, 0.5 % of the tokens may be 69 % of the text.

WARN_UNKNOWN = 0.01
MOST_EXAMPLES, EXAMPLE_CHARS = 3, 24
LONG_WORD = 100  # characters; longer ones are not remembered


@dataclass(frozen=True)
class UnknownText:
    """How much of a text became `[UNK]`, in letters: its characters other than white space and control characters."""

    letters: int = 0
    unknown: int = 0  # letters that became `[UNK]`
    examples: tuple[str, ...] = ()  # some of the words or letters that did, shortened

    @property
    def share(self) -> float:
        return self.unknown / max(self.letters, 1)

    def joined(self, later: UnknownText) -> UnknownText:
        examples = tuple(dict.fromkeys([*self.examples, *later.examples]))[:MOST_EXAMPLES]
        return UnknownText(self.letters + later.letters, self.unknown + later.unknown, examples)

    def describe(self) -> str:
        examples = ", ".join(map(repr, self.examples))
        return (
            f"{self.share:.1%} of the letters are unknown to the tokenizer (such as {examples}); use a "
            "byte-level BPE tokenizer, which spells any text (--tokenizer-kind bpe, or a model that has one, "
            "such as RoBERTa), or characters for sequences and formulas (--tokenizer-kind char)"
        )


def _count_letters(texts: Iterable[str]) -> int:
    """Counts letters by the first bytes of their UTF-8."""
    utf8 = np.frombuffer("".join(texts).encode(), dtype=np.uint8)
    return int(np.count_nonzero((utf8 > 0x20) & ((utf8 & 0xC0) != 0x80) & (utf8 != 0x7F)))


CONFIG = "tokenizer_config.json"
ANY_CLASS = "PreTrainedTokenizerFast"  # transformers' class for any tokenizer.json
_ROLES = "special_tokens_map.json"
_UNUSED = re.compile(r"\[unused\d+\]")  # BERT's spare entries


@dataclass(frozen=True)
class EncodedText:
    """The tokens of a text, or of several texts, concatenated, without special tokens."""

    input_ids: NDArray[np.int32]  # [num_tokens], int32
    word_starts: NDArray[np.bool_]  # [num_tokens], bool: whether a word begins at the token
    unknown: UnknownText = UnknownText()  # of all texts; not counted for single ones


class Tokenizer:
    """A tokenizer with its special ids, word starts and a table of what each id represents.

    Attributes:
        backend: The `tokenizers.Tokenizer`.
        special: Ids of the special tokens.
        vocab_size: Number of ids; the largest id plus one.
        ordinary: [vocab_size], bool: ids of which text consists. Only these are ever masked or drawn as random
            replacements; special and unknown tokens, BERT's `[unused1]` and its like, and gaps in the ids are not.
        token_bytes: [vocab_size], int32: UTF-8 bytes of the text that an id represents, without marks. The space in
            front of a word is not counted in any family, so bits per byte are comparable between families. Spelled-out
            white space is counted (a line break, a character tokenizer's space). An id for part of a character has that
            part's bytes; special tokens and a lone mark have none.
        class_name: Transformers' class that a saved folder names.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_names: Mapping[str, str | None] | None = None,
        class_name: str = ANY_CLASS,
    ) -> None:
        """Wraps a copy of a `tokenizers.Tokenizer`; a TokenizerError names a special token that is missing.

        Args:
            special_names: The tokens of the roles pad, unk, cls, sep and mask, if they are not the usual ones; None for
                a role without a token.
            class_name: Transformers' class, if the folder that the tokenizer came from named one.
        """
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=0) + 1
        if self.vocab_size > MOST_IDS:
            raise TokenizerError(  # before the library writes it, which kills the process if ids are so far apart
                f"the vocabulary has the id {self.vocab_size - 1:,}, but the highest allowed is "
                f"{MOST_IDS - 1:,}; give a tokenizer that numbers its entries without gaps"
            )
        # A copy, so that the caller's tokenizer keeps its settings. Many released tokenizers store truncation or
        # padding, which would silently cut the corpus.
        backend = tokenizers.Tokenizer.from_str(backend.to_str())
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.class_name = class_name
        self.special = find_special_ids(backend, special_names or {})
        self.word_starts = WordStarts(backend)
        # Letters known to have a spelling; None if all have one, or the library reports those that have none.
        model = json.loads(backend.to_str())["model"]
        unknown = {"BPE": "unk_token", "Unigram": "unk_id"}.get(model["type"])
        drops_unknown = unknown is not None and model.get(unknown) is None
        if self.word_starts.spelling.family == "byte_level":
            drops_unknown &= not vocab.keys() >= set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        self._known_letters: set[str] | None = set() if drops_unknown else None
        prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
        self._forms = [f"{before}%s{behind}" for before in {"", prefix} for behind in {"", suffix}]  # of a letter
        # Unigram falls back to bytes only if it has an unknown token.
        self._falls_back = model["type"] == "BPE" and bool(model.get("byte_fallback"))
        self._unknown_in: dict[str, tuple[str, int]] = {}  # by word or letter: the unknown part, and its letters
        self._watched: UnknownText | None = UnknownText()  # None once the warning was logged
        self.ordinary: NDArray[np.bool_] = np.zeros(self.vocab_size, dtype=bool)
        self.token_bytes: NDArray[np.int32] = np.zeros(self.vocab_size, dtype=np.int32)
        specials = {id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special}
        specials |= {id_ for id_ in vars(self.special).values() if id_ is not None}
        for token, id_ in vocab.items():
            if id_ not in specials:
                self.ordinary[id_] = _UNUSED.fullmatch(token) is None
                self.token_bytes[id_] = len(self.word_starts.spelling.text_bytes(token))
        with spelling():
            around = backend.encode("", add_special_tokens=True).ids
        if outside := [id_ for id_ in around if id_ >= self.vocab_size]:
            raise TokenizerError(
                f"the post_processor puts the id {outside[0]} around texts, but the vocabulary has only "
                f"{self.vocab_size} ids"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arguments, for workers of data loaders; the tables are rebuilt."""
        return Tokenizer, (self.backend, self.special_names, self.class_name)

    @property
    def special_names(self) -> dict[str, str | None]:
        return {role: None if id_ is None else self.token(id_) for role, id_ in vars(self.special).items()}

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.backend.to_str().encode()).hexdigest()

    @cached_property
    def _of_corpus(self) -> tokenizers.Tokenizer:
        """A copy that reads the tokens of the five roles as letters: the setting holds for all threads, and a prompt in
        another thread needs its masks. Other added tokens, special or not, are read as in a prompt."""
        text, roles = self.backend.to_str(), self.special_names.values()
        if any(token.special != (token.content in roles) for token in self.backend.get_added_tokens_decoder().values()):
            content = json.loads(text)
            for token in content["added_tokens"]:
                token["special"] = token["content"] in roles
            text = json.dumps(content)
        copy = tokenizers.Tokenizer.from_str(text)
        copy.encode_special_tokens = True
        return copy

    @cached_property
    def _memory(self) -> WordMemory | None:
        """A memory of words, if the tokens of a text are those of its words, in order."""
        parts = json.loads(self.backend.to_str())
        is_of_words = (
            parts["model"]["type"] == "WordPiece"
            and parts["pre_tokenizer"] == {"type": "BertPreTokenizer"}
            and (parts["normalizer"] or {}).get("type") in (None, "BertNormalizer")
            and {token["content"] for token in parts["added_tokens"]} <= set(self.special_names.values())
        )
        return WordMemory(self._of_corpus) if is_of_words else None

    def encode_corpus(self, texts: Sequence[str]) -> list[EncodedText]:
        """Tokenizes corpus text in parallel. `[MASK]` or `[SEP]` in it are plain letters; other added tokens are
        themselves. Warns of unknown text, see `watch`."""
        joined, lengths = self.encode_joined(texts)
        self.watch(joined.unknown)
        ends = np.cumsum(lengths)
        return [
            EncodedText(joined.input_ids[begin:end], joined.word_starts[begin:end])
            for begin, end in zip(ends - lengths, ends, strict=True)
        ]

    def encode_joined(self, texts: Sequence[str]) -> tuple[EncodedText, NDArray[np.int64]]:
        """As `encode_corpus`, but with the tokens of all texts concatenated, and how many each text has."""
        self.check_known(texts)
        with spelling():
            if self._memory is not None and self._memory.useful:
                tokens = self._memory.encode(texts)
            else:
                tokens = _joined(self._of_corpus.encode_batch_fast(list(texts), add_special_tokens=False))
        return self._encoded(texts, *tokens)

    def _encoded(
        self, texts: Sequence[str], input_ids: NDArray[np.int32], lengths: NDArray[np.int64]
    ) -> tuple[EncodedText, NDArray[np.int64]]:
        unknown = self.unknown_in(texts, input_ids, lengths)
        return EncodedText(input_ids, self.word_starts.of_texts(input_ids, lengths), unknown), lengths

    def unknown_in(
        self, texts: Sequence[str], input_ids: NDArray[np.integer[Any]], lengths: NDArray[np.int64]
    ) -> UnknownText:
        """What is unknown in some texts; their concatenated tokens show which texts have unknown tokens. Each distinct
        word is tokenized once. If letters are unknown one by one, each letter is, which saves half of the time."""
        letters, unk = _count_letters(texts), self.special.unk
        affected = np.unique(np.repeat(np.arange(len(texts)), lengths)[input_ids == unk]).tolist()
        if not affected:
            return UnknownText(letters)
        backend = self._of_corpus
        by_word = type(backend.model).__name__ in ("WordPiece", "WordLevel")
        pieces = Counter(chain.from_iterable(texts[n].split() if by_word else texts[n] for n in affected))
        known = self._unknown_in
        new = [piece for piece in pieces if piece not in known]
        result_of = {piece: known[piece] for piece in pieces.keys() - set(new)}
        for piece, encoding in zip(new, backend.encode_batch(new, add_special_tokens=False), strict=True):
            places = zip(encoding.ids, encoding.offsets, strict=True)
            stretches = [piece[begin:end] for id_, (begin, end) in places if id_ == unk]
            result_of[piece] = stretches[0] if stretches else "", _count_letters(stretches)
        if len(known) > MOST_WORDS:
            known = self._unknown_in = {}
        known |= {piece: result_of[piece] for piece in new if len(piece) <= LONG_WORD}
        lost = Counter[str]()
        for piece, count in pieces.items():
            stretch, unknown_letters = result_of[piece]
            if unknown_letters:
                lost[stretch] += count * unknown_letters
        examples = (stretch for stretch, _ in lost.most_common(MOST_EXAMPLES))
        cut = (text if len(text) <= EXAMPLE_CHARS else f"{text[:EXAMPLE_CHARS]}... ({len(text)})" for text in examples)
        return UnknownText(letters, lost.total(), tuple(cut))

    def watch(self, unknown: UnknownText) -> None:
        """Logs one warning once more than 1 % of the letters seen so far are unknown."""
        if self._watched is not None:
            self._watched = self._watched.joined(unknown)
            if self._watched.share > WARN_UNKNOWN:
                say_once(self._watched.describe())  # each run of a comparison has its own tokenizer
                self._watched = None

    def encode_placed(self, texts: Sequence[str]) -> tuple[EncodedText, TokenPlaces]:
        """As `encode_joined`, with the characters that each token covers, which is slower."""
        self.check_known(texts)
        with spelling():
            encodings = self._of_corpus.encode_batch(list(texts), add_special_tokens=False)
        encoded, lengths = self._encoded(texts, *_joined(encodings))
        offsets = np.array([pair for encoding in encodings for pair in encoding.offsets], dtype=np.int64).reshape(-1, 2)
        text_begin = np.cumsum([0, *map(len, texts)])[:-1]
        begin, end = (offsets + np.repeat(text_begin, lengths)[:, None]).T
        return encoded, TokenPlaces(begin, end, lengths, encoded.word_starts)

    def encode_prompt(self, text: str) -> NDArray[np.int32]:
        return self.encode_prompts([text])[0]

    def encode_prompts(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Token ids for a model, with special tokens around each text, as transformers encodes them; in parallel."""
        self.check_known(texts, is_prompt=True)
        with spelling():
            encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=True)
        return [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]

    def place_prompts(self, texts: Sequence[str]) -> list[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """As `encode_prompts`, with the characters [begin, end) of each token [S, 2], which is slower: [0, 0) for
        special tokens around the text. A `[MASK]` may include the white space beside it."""
        self.check_known(texts, is_prompt=True)
        with spelling():
            encodings = self.backend.encode_batch(list(texts), add_special_tokens=True)
        return [
            (np.asarray(encoding.ids, dtype=np.int32), np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2))
            for encoding in encodings
        ]

    def token(self, token_id: int) -> str:
        """The token as the vocabulary spells it."""
        token = self.backend.id_to_token(token_id)
        return f"<{token_id}>" if token is None else token

    def text(self, token_id: int) -> str:
        """The text that an id represents, without marks; parts of characters appear as `\ufffd`."""
        return self.word_starts.spelling.text_bytes(self.token(token_id)).decode(errors="replace")

    def space_before(self, token_id: int) -> bool:
        """Whether the token includes a space before its text, and is shown with one."""
        spelling = self.word_starts.spelling
        return spelling.family == "whole" or (
            spelling.family != "plain" and spelling.spell(self.token(token_id)).startswith(b" ")
        )

    def decode(self, input_ids: Sequence[int]) -> str:
        """Without special tokens."""
        return str(self.backend.decode(list(input_ids), skip_special_tokens=True))

    def save(self, folder: Path, *, max_length: int, with_types: bool = False) -> None:
        """Writes `tokenizer.json` and the files of `AutoTokenizer` of transformers 4 and 5 into an existing folder.

        `max_length` is the model's, special tokens included; `with_types` says whether the model has token types.
        """
        names = {f"{role}_token": token for role, token in self.special_names.items() if token is not None}
        flags = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
        added = sorted(self.backend.get_added_tokens_decoder().items())
        others = [token.content for _, token in added if token.special and token.content not in names.values()]
        config = {
            "tokenizer_class": self.class_name,
            "model_max_length": max_length,
            "model_input_names": ["input_ids", *(["token_type_ids"] if with_types else []), "attention_mask"],
            "clean_up_tokenization_spaces": False,
            **names,
            # transformers ignores a token's `special`: without this list, its collator would mask these tokens.
            **({"additional_special_tokens": others} if others else {}),
            "added_tokens_decoder": {str(id_): {flag: getattr(token, flag) for flag in flags} for id_, token in added},
        }
        cutter = json.loads(self.backend.to_str())["pre_tokenizer"] or {}
        if (prefix_space := cutter.get("add_prefix_space")) is not None:
            config["add_prefix_space"] = prefix_space  # transformers 4 would otherwise turn it off
        texts = {name: json.dumps(content, indent=2) + "\n" for name, content in ((CONFIG, config), (_ROLES, names))}
        texts["tokenizer.json"] = self.backend.to_str(pretty=True)  # the library's own saving raises a bare Exception
        for name, text in texts.items():
            with writing(folder / name):
                (folder / name).write_text(text, encoding="utf-8")

    def check_known(self, texts: Iterable[str], *, is_prompt: bool = False) -> None:
        """Checks that the vocabulary can spell some texts.

        If its model names no unknown token, BPE silently drops a letter that has no entry, and Unigram fails on it.
        Such letters are found here, each looked up once. If each byte has an entry, there are none. WordPiece and
        WordLevel look for whole words, and the library reports those that they do not know.
        """
        if self._known_letters is None:
            return
        mask, normalizer, cutter = self.token(self.special.mask), self.backend.normalizer, self.backend.pre_tokenizer
        id_of = self.backend.token_to_id
        for text in texts:
            raw = text.replace(mask, "") if is_prompt else text
            letters = set(raw if normalizer is None else normalizer.normalize_str(raw)) - self._known_letters
            for letter in sorted(letters):
                # A pre-tokenizer may turn it into bytes or a mark, which have their own entries, or drop it.
                pieces = [letter] if cutter is None else [piece for piece, _ in cutter.pre_tokenize_str(letter)]
                for symbol in "".join(pieces):
                    has_entry = any(id_of(form.replace("%s", symbol)) is not None for form in self._forms)
                    has_bytes = self._falls_back and all(id_of(f"<0x{b:02X}>") is not None for b in symbol.encode())
                    if not has_entry and not has_bytes:
                        raise TokenizerError(
                            f"the character {letter!r} is not in the vocabulary, and the tokenizer would drop it, "
                            "since its model names no unknown token (unk_token in tokenizer.json); remove the "
                            "character from the text, or train with tokenizer.bare=false"
                        )
            self._known_letters |= letters


def _joined(encodings: Sequence[Any]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The concatenated ids of some encodings, and the length of each."""
    lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
    each = chain.from_iterable(encoding.ids for encoding in encodings)
    return np.fromiter(each, dtype=np.int32, count=int(lengths.sum())), lengths
