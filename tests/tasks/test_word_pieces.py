"""Which tokens words of several begin and go on with, in any script."""

from __future__ import annotations

from unmask.tasks.fill import WordPieces
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import train_chars, train_wordpiece

GREEK = "ο βασιλιάς βλέπει τη βασίλισσα στη θάλασσα , ο φιλόσοφος θυμάται την Κωνσταντινούπολη ."
WORDS = ("βασιλιάς", "φιλόσοφος", "Κωνσταντινούπολη")


def test_a_vocabulary_without_a_letter_of_english() -> None:
    tokenizer = Tokenizer(train_wordpiece(lambda: [GREEK] * 3, vocab_size=90))
    assert not any(tokenizer.text(id_).isascii() and tokenizer.text(id_).isalpha() for id_ in range(5, 90))
    pieces = WordPieces.of(tokenizer).spaced
    opening, further = set(pieces.opening_A.tolist()), set(pieces.further_A.tolist())
    assert not opening & further
    for word in WORDS:
        begin, *rest = tokenizer.encode_corpus([word])[0].input_ids.tolist()
        assert begin in opening
        assert rest
        assert set(rest) <= further
    comma = tokenizer.backend.token_to_id(",")
    assert comma in pieces.whole_A.tolist()
    assert comma not in opening, "no word goes on with or behind it"


def test_ideographs_alone_make_no_words_of_several() -> None:
    tokenizer = Tokenizer(train_chars(lambda: ["我爱中国", "北京是中国的首都"]))
    pieces = WordPieces.of(tokenizer).spaced
    assert len(pieces.whole_A) == tokenizer.ordinary.sum()
    assert len(pieces.opening_A) == len(pieces.further_A) == 0
