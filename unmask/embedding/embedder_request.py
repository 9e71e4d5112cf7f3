"""What an embedder's training is asked for: its settings, the model that it begins with, and what it learns from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.embedding.embedder_run import EmbedderBudget
from unmask.embedding.settings import MINUTES, EmbedderSettings
from unmask.errors import ModelError, SettingsError
from unmask.folders.card_head import Origin, base_models
from unmask.folders.checksums import files_checked
from unmask.folders.model_folder import find_weights, has_prediction_head, load_model
from unmask.folders.transformers_folder import runs_in_transformers
from unmask.hub import lasting_name
from unmask.network.encoder import MaskedLM
from unmask.pretraining.run_data import is_prepared
from unmask.recipe.architecture import checkpoint_sha256, read_fitting_config
from unmask.recipe.overrides import Overrides, apply_overrides, as_overrides, set_value
from unmask.searching.item_documents import held_out_rule
from unmask.settings import validated
from unmask.tasks.task_model import is_fine_tuned
from unmask.text.given import InMemory, Named, Texts, told_apart
from unmask.text.pipes import is_stream
from unmask.text.settings import CorpusSettings
from unmask.text.sources import find_sources
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

_SECTIONS = {"embedder", "corpus", "card"}


@dataclass(frozen=True)
class EmbedderChoice:
    """The settings of a training, by section."""

    embedder: EmbedderSettings
    corpus: CorpusSettings
    budget: EmbedderBudget


def chosen_embedder(
    overrides: Overrides,
    *,
    minutes: float | None,
    steps: int | None,
    seed: int | None,
    sparse: bool = False,
    held_out: CorpusSettings | None = None,
) -> EmbedderChoice:
    """The settings that were asked for.

    Args:
        overrides: `embedder.key=value`, `corpus.key=value` and `card.key=value`.
        minutes, steps: The budget; None of both: ten minutes.
        seed: Short for `embedder.seed`.
        sparse: Short for `embedder.sparse`, as it is by itself.
        held_out: How the text of the model that it begins with was read and held out, which stays so where nothing
            else is asked for; None: by default.

    Raises:
        SettingsError: One is of another section, not known, or has a value that it cannot have; or there are two
            budgets.
    """
    if minutes is not None and steps is not None:
        raise SettingsError("give one of --minutes and --steps")
    for name, value in (("minutes", minutes), ("steps", steps)):
        if value is not None and not 0 < value < math.inf:
            raise SettingsError(f"--{name} {value}: give more than 0")
    values: dict[str, Any] = {}
    apply_overrides(values, as_overrides(overrides))
    if strangers := sorted(set(values) - _SECTIONS):
        raise SettingsError(
            f"{strangers[0]}: an embedder has the sections embedder (as in embedder.batch_size=512), corpus, which "
            "says how files are read, and card"
        )
    for name, value in values.get("card", {}).items():
        set_value(values, f"embedder.card.{name}", value)
    if seed is not None:
        set_value(values, "embedder.seed", seed)
    if sparse and not values.get("embedder", {}).get("sparse"):
        set_value(values, "embedder.sparse", {})
    corpus = (held_out or CorpusSettings()).model_dump()
    if "holdout" in values.get("embedder", {}):
        corpus["holdout"] = values["embedder"]["holdout"]
    budget = EmbedderBudget(MINUTES if minutes is None and steps is None else minutes, steps)
    return EmbedderChoice(
        validated(EmbedderSettings, values.get("embedder", {}), where="embedder"),
        validated(CorpusSettings, corpus | values.get("corpus", {}), where="corpus"),
        budget,
    )


@dataclass(frozen=True)
class Beginning:
    """The masked language model that a training begins with.

    Attributes:
        folder: Where it is.
        tokenizer: Its tokenizer.
        has_head: Whether it has a head for masked tokens.
        origin: What it is, for the card.
    """

    folder: Path
    tokenizer: Tokenizer
    has_head: bool
    origin: Origin

    def load(self) -> MaskedLM:
        """A copy to be trained.

        Raises:
            ModelError: A file is damaged.
        """
        with files_checked(self.folder):
            return load_model(self.folder, mask_id=self.tokenizer.special.mask)


def beginning_with(model: str | Path, settings: EmbedderSettings) -> Beginning:
    """Looks at the model that a training is to begin with.

    Raises:
        ModelError: It is not there, none of our encoder's, fine-tuned for a task, or has no head for masked tokens
            where these are to be learned.
        TokenizerError: Its tokenizer cannot be used.
    """
    folder = find_weights(model, way_out="give the folder of a masked language model, such as RUN/model")
    if is_fine_tuned(folder):
        raise ModelError(
            f"{folder}: fine-tuned for a task, and no masked language model any more; give the model that it was made "
            "from"
        )
    if runs_in_transformers(folder):
        raise ModelError(
            f"{folder}: transformers runs this model, and not our encoder, which trains embedding models of the "
            "layouts of BERT, RoBERTa and ModernBERT; give one of these"
        )
    tokenizer = load_tokenizer(folder)
    config = read_fitting_config(folder, tokenizer)
    has_head = has_prediction_head(folder, config.layout)
    if settings.mlm_weight > 0.0 and not has_head:
        raise ModelError(
            f"{folder}: a bare encoder without a head for masked tokens, which are to be learned beside the pairs; "
            "learn pairs alone with --set embedder.mlm_weight=0, or give a masked language model"
        )
    if settings.sparse is not None and not has_head:
        raise ModelError(
            f"{folder}: a bare encoder without a head for masked tokens, of which sparse vectors are made; give a "
            "masked language model, or go without --sparse"
        )
    name = lasting_name(model, folder)
    return Beginning(folder, tokenizer, has_head, Origin(name, checkpoint_sha256(folder), base_models(name, folder)))


def fitting_settings(settings: EmbedderSettings, beginning: Beginning) -> EmbedderSettings:
    """The settings with crops no longer than the model.

    Raises:
        SettingsError: Even the shortest crops are longer.
    """
    config = read_fitting_config(beginning.folder, beginning.tokenizer)
    room = config.max_position_embeddings - len(beginning.tokenizer.special.around)
    if settings.shortest > room or max(settings.first_lengths[0], settings.second_lengths[0]) > room:
        raise SettingsError(
            f"embedder.first_lengths and second_lengths begin with {settings.first_lengths[0]} and "
            f"{settings.second_lengths[0]} tokens, but the model has room for {room}; give shorter ones"
        )
    cut = {
        name: (least, min(most, room))
        for name, (least, most) in (
            ("first_lengths", settings.first_lengths),
            ("second_lengths", settings.second_lengths),
        )
    }
    return settings.model_copy(update=cut)


def given_texts(corpus: Texts | None, pairs: str | Path | None) -> list[Named]:
    """What there is to learn from beside pairs.

    Raises:
        CorpusError: A file is not there.
        SettingsError: There is nothing at all.
    """
    if corpus is None:
        if pairs is None:
            raise SettingsError("give text to learn from: files or a folder, or pairs of your own with --pairs")
        return []
    given = told_apart(corpus) or []
    named = [name for name in given if not isinstance(name, InMemory) and not is_stream(name)]
    if named and not is_prepared(named):
        find_sources(named, announce=False)
    return given


@dataclass(frozen=True)
class EmbedderRequest:
    """What is asked for, looked at before anything is read or written.

    Attributes:
        given: What there is to learn from beside pairs, as the user named it.
        pairs: The file of the user's pairs; None: there is none.
        beginning: The model that it begins with.
        choice: The settings, as given.
        fitted: Those of the embedder, with crops that fit the model.
        maker: The run or embedder whose rule says what is held out; None: the default rule does.
    """

    given: list[Named]
    pairs: Path | None
    beginning: Beginning
    choice: EmbedderChoice
    fitted: EmbedderSettings
    maker: Path | None

    @property
    def files(self) -> list[Path]:
        """Those of the texts."""
        return [Path(name) for name in self.given if not isinstance(name, InMemory) and not is_stream(name)]

    @property
    def inputs(self) -> list[Path]:
        """All files and folders that are read."""
        return [self.beginning.folder, *self.files, *([] if self.pairs is None else [self.pairs])]


def requested(
    model: str | Path,
    corpus: Texts | None,
    pairs: str | Path | None,
    chosen: Callable[..., EmbedderChoice],
    *,
    begun: Path | None = None,
) -> EmbedderRequest:
    """Looks at all that a training is asked for.

    Args:
        model, corpus, pairs: As for `embedder`.
        chosen: `chosen_embedder`, but for `held_out`.
        begun: The folder of the model of a training that goes on, which says what it held out.

    Raises:
        UnmaskError: As `embedder`, of whatever can be found wrong by now.
    """
    given = given_texts(corpus, pairs)
    choice = chosen()
    beginning = beginning_with(model, choice.embedder)
    maker, held_out = held_out_rule(begun or beginning.folder)
    choice = chosen(held_out=held_out)
    fitted = fitting_settings(choice.embedder, beginning)
    return EmbedderRequest(given, None if pairs is None else Path(pairs), beginning, choice, fitted, maker)
