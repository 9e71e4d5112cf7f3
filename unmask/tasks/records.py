"""What the tasks are given: a text or two, the words of a sentence, a question with its text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextRecord:
    """A text, or a pair of texts, with its class or number.

    Attributes:
        row: Row of the file, counted from 1.
        first: The text.
        second: The other text of a pair.
        label: Class; None where it is not known.
        value: Number of a regression; None where it is not known.
    """

    row: int
    first: str
    second: str | None = None
    label: str | None = None
    value: float | None = None


@dataclass(frozen=True)
class WordsRecord:
    """The words of a sentence, with their tags.

    Attributes:
        row: Row of the file, counted from 1: that of the first word, where each has a row.
        words: None is empty.
        tags: As many; None where they are not known.
    """

    row: int
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Answer:
    """An answer, and the character of the text at which it begins."""

    text: str
    begin: int


@dataclass(frozen=True)
class QuestionRecord:
    """A question to a text.

    Attributes:
        row: Row of the file, or the question's number in it, counted from 1.
        id: As the file calls it.
        question: What is asked.
        context: Where the answer is looked for.
        answers: Any of them is right; empty where the text has none; None where they are not known.
    """

    row: int
    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None = None


Record = TextRecord | WordsRecord | QuestionRecord


def texts_of(record: Record) -> tuple[str, ...]:
    """All that a record gives to be read."""
    match record:
        case TextRecord():
            return record.first, record.second or ""
        case WordsRecord():
            return record.words
        case QuestionRecord():
            return record.question, record.context
