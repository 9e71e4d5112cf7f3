"""Scoring a model on minimal pairs, as a command and in Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask.core.errors import SettingsError
from unmask.core.results import Notify, Result, Sheet, Shown, Styled, usual_notify
from unmask.data.sources import readable
from unmask.measure.questions import Accuracy, Form, checked_form, few_paradigms, read_pairs, score_pairs
from unmask.tasks.loaded_model import Model, Scorable, as_scorable


class Scored(Result):
    """In how many minimal pairs a model prefers the sentence that is right.

    Attributes:
        accuracy: Of all pairs, ties one half.
        interval: That holds it in 95 of 100 cases.
        interval_over: `paradigms`, or `pairs` where there is one paradigm or all came out the same.
        pairs, num_paradigms, ties: How many.
        phenomena, phenomena_intervals: Accuracy and interval of each phenomenon.
        by_phenomenon, paradigms: The first six of these, of each phenomenon and each paradigm.
        warning: Where there are few paradigms; None else.
        form: Of the pseudo-log-likelihood.
    """

    accuracy: float
    interval: list[float]
    interval_over: str
    pairs: int
    num_paradigms: int
    ties: int
    phenomena: dict[str, float]
    phenomena_intervals: dict[str, list[float]]
    by_phenomenon: dict[str, dict[str, Any]]
    paradigms: dict[str, dict[str, Any]]
    warning: str | None
    form: str

    def shown(self) -> Iterator[Shown]:
        """A line a phenomenon."""
        rows: list[tuple[str | Styled, ...]] = [
            (name, f"{figures['accuracy']:.1%}", _interval(figures["interval"]), _over(figures))
            for name, figures in self.by_phenomenon.items()
        ]
        every = ("all", f"{self.accuracy:.1%}", _interval(self.interval), _over(self.to_dict()))
        rows.append(tuple(Styled(cell, "bold") for cell in every))
        yield Sheet(("phenomenon", ">accuracy", ">95 % interval", "over"), rows)
        yield Styled(f"{self.pairs:,} pairs, {self.ties:,} ties (one half each); 50 % is chance", "dim")
        if self.warning is not None:
            yield Styled(self.warning, "yellow")


def score(
    model: Model | Scorable | str | Path,
    pairs: str | Path,
    *,
    form: Form = "plain",
    pairs_per_paradigm: int | None = None,
    strict: bool = False,
    notify: Notify | None = None,
) -> Scored:
    """Tests a model's grammar on minimal pairs in BLiMP's format: accuracy by phenomenon.

    Args:
        model: Folder of a model, such as RUN/model, or its name on the hub.
        pairs: A file of JSON lines, a folder or a tar of such; or a pipe, or -.
        form: Pseudo-log-likelihood: plain, or word_l2r (later pieces of the word are hidden too).
        pairs_per_paradigm: Take the first so many of each paradigm. By default all.
        strict: Refuse a model whose files differ from its checksums.json.
        notify: Called with the progress.

    Raises:
        UnmaskError: As `read_pairs`, `score_pairs` and `checked_form`; or the number of pairs is below 1.
    """
    known = checked_form(form)
    if pairs_per_paradigm is not None and pairs_per_paradigm < 1:
        raise SettingsError(f"pairs a paradigm: a number from 1 on, not {pairs_per_paradigm}")
    with readable(pairs) as file:
        read = read_pairs(file)
    if pairs_per_paradigm is not None:
        taken: dict[str, int] = {}
        kept = []
        for pair in read:
            taken[pair.paradigm] = taken.get(pair.paradigm, 0) + 1
            if taken[pair.paradigm] <= pairs_per_paradigm:
                kept.append(pair)
        read = kept
    scorable = as_scorable(model, strict=strict)
    result = score_pairs(scorable.network, scorable.tokenizer, read, form=known, notify=notify or usual_notify())
    return Scored(
        {
            **_plain(result.overall),
            "phenomena": {name: figures.accuracy for name, figures in result.phenomena.items()},
            "phenomena_intervals": {name: list(figures.interval) for name, figures in result.phenomena.items()},
            "by_phenomenon": {name: _plain(figures) for name, figures in result.phenomena.items()},
            "warning": few_paradigms(result.overall),
            "paradigms": {name: _plain(figures) for name, figures in result.paradigms.items()},
            "form": known,
        }
    )


def _plain(figures: Accuracy) -> dict[str, Any]:
    return {**asdict(figures), "interval": list(figures.interval)}


def _over(figures: dict[str, Any]) -> str:
    """What an interval takes as drawn, and how many of it."""
    number = figures["num_paradigms" if figures["interval_over"] == "paradigms" else "pairs"]
    return f"{number:,} {figures['interval_over']}"


def _interval(interval: list[float]) -> str:
    return f"{interval[0]:.1%} to {interval[1]:.1%}"
