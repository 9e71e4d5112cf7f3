"""Questions to texts: SQuAD's JSON, and tables with the columns question, context and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.corpus.compression import open_bytes
from unmask.errors import CorpusError
from unmask.tasks.records import Answer, QuestionRecord


def read_squad(path: Path, *, with_answers: bool) -> list[QuestionRecord]:
    """The questions of a file in SQuAD's form, of version 1 or 2.

    Raises:
        CorpusError: The file is missing, no JSON, or of another form; or an answer does not stand where it is said to.

    Source: Rajpurkar et al. 2016 and 2018 (SQuAD and SQuAD 2.0), the form of their files.
    """
    if not path.is_file():
        raise CorpusError(f"{path}: no such file")
    with open_bytes(path) as file:
        try:
            content = json.load(file)
        except ValueError as error:
            raise CorpusError(f"{path}: not JSON: {error}") from error
    found: list[QuestionRecord] = []
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    number = len(found) + 1
                    context, question = paragraph["context"], entry["question"]
                    id_ = str(entry.get("id", number))
                    answers = None
                    if with_answers:
                        missing = entry.get("is_impossible", False)
                        given = [] if missing else [(a["text"], a["answer_start"]) for a in entry["answers"]]
                        answers = _checked(given, context, f"{path}: question {id_!r}")
                    found.append(QuestionRecord(number, id_, question, context, answers))
    except (KeyError, TypeError, AttributeError) as error:
        raise CorpusError(
            f"{path}: not in SQuAD's form: question {len(found) + 1} lacks {error}; expected data > paragraphs > "
            "context and qas > question, id, answers > text, answer_start"
        ) from error
    return found


def read_question_rows(
    path: Path, rows: Sequence[tuple[int, dict[str, Any]]], *, with_answers: bool
) -> Iterator[QuestionRecord]:
    """The questions of a table, with answers as `datasets` holds them: `{"text": [...], "answer_start": [...]}`.

    Raises:
        CorpusError: A column is missing, or an answer does not stand where it is said to.
    """
    for number, row in rows:
        where = f"{path}: row {number}"
        for name in ("question", "context", *(["answers"] if with_answers else [])):
            wanted = dict if name == "answers" else str
            if not isinstance(row.get(name), wanted):
                raise CorpusError(
                    f"{where} has no {name!r} that is a {'table' if wanted is dict else 'text'}; columns are "
                    f"{', '.join(row)}"
                )
        id_ = str(row.get("id", number))
        answers = None
        if with_answers:
            answers = _checked(_pairs(row["answers"], where), row["context"], where)
        yield QuestionRecord(number, id_, row["question"], row["context"], answers)


def _pairs(answers: Mapping[str, Any], where: str) -> list[tuple[str, int]]:
    texts, begins = answers.get("text"), answers.get("answer_start")
    if not (isinstance(texts, list) and isinstance(begins, list) and len(texts) == len(begins)):
        raise CorpusError(
            f"{where} has answers with {', '.join(answers) or 'nothing'}; expected are text and answer_start, two "
            "lists of the same length (both empty where there is no answer)"
        )
    return list(zip(texts, begins, strict=True))


def _checked(given: Sequence[tuple[str, int]], context: str, where: str) -> tuple[Answer, ...]:
    for text, begin in given:
        if not isinstance(text, str) or not isinstance(begin, int):
            raise CorpusError(f"{where}: the answer {text!r} at {begin!r} is no text with the number of a character")
        if begin < 0 or not text.strip() or context[begin : begin + len(text)] != text:
            raise CorpusError(
                f"{where}: the answer {text!r} does not stand at character {begin}, but {context[begin : begin + 20]!r}"
            )
    return tuple(Answer(text.strip(), begin + len(text) - len(text.lstrip())) for text, begin in given)
