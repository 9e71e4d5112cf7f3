"""The YAML metadata at the head of a model card (README.md), which the hub reads.

    base_model, base_model_relation    the model that training began from, if the hub has it
    license, language                  as the user states them (`CardSettings`); never guessed
    pipeline_tag, library_name, tags   the model's task, and the library that loads it
    metrics, model-index               what was measured, on which file

`datasets` is left out: the text came from files, and a file with the name of a hub dataset need not be that dataset.

Source: the hub's own example, https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo, field_validator

from unmask.core.hub import hub_name
from unmask.core.settings import Settings

CARD = "README.md"
_CUSTOM = "custom"  # the type of a data set that is not on the hub
_IDENTIFIER = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*\+*")
_LANGUAGE = re.compile(r"[a-z]{2,3}|multilingual|code")

log = logging.getLogger("unmask")


class CardSettings(Settings):
    """What you state about a model on its card. These settings change nothing but the card.

    Source of the names: https://huggingface.co/docs/hub/repositories-licenses. They are checked by their form alone,
    since the hub's list grows.
    """

    license: str | None = None
    """The license, by the hub's name: `apache-2.0`, `mit`, `cc-by-4.0`, ...; `other` for one that the hub does not
    list: name it in the card then."""
    language: Annotated[
        tuple[str, ...] | None, BeforeValidator(lambda value: (value,) if isinstance(value, str) else value or None)
    ] = None
    """Language of the text, or several: codes of ISO 639 (`fi`, `fin`), `multilingual`, or `code`."""

    @field_validator("*")
    @classmethod
    def _check_form(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and not _IDENTIFIER.fullmatch(value):
            near = re.sub(r"[\s_]+", "-", value.strip().lower())
            hint = f"; did you mean {near!r}?" if _IDENTIFIER.fullmatch(near) else ""
            raise ValueError(f"expected the hub's name of a license, such as apache-2.0, mit, cc-by-4.0 or other{hint}")
        for code in value if isinstance(value, tuple) else ():
            if not _LANGUAGE.fullmatch(code):
                raise ValueError(
                    f"{code!r} is not a language to the hub; give a code of ISO 639 (fi, fin), multilingual, or code"
                )
        return value


@dataclass(frozen=True)
class Origin:
    """The model that a training began with."""

    checkpoint: str  # its name and commit on the hub, or its absolute path
    sha256: str  # of its content
    base_models: tuple[str, ...] = ()  # its names on the hub; empty if it has none


def base_models(checkpoint: str, folder: Path) -> tuple[str, ...]:
    """Names on the hub for a card's `base_model`: the model's own name, or the `base_model` that its own card states.
    `checkpoint` is the model's lasting name (`unmask.core.hub.lasting_name`), `folder` the folder that holds it.

    `_name_or_path` of a config.json is not used, since a relative path in it (`runs/first`) looks like a name, and a
    wrong name would show a stranger's model on the hub.
    """
    if not Path(checkpoint).is_absolute():
        return (checkpoint.partition("@")[0],)
    card = folder / CARD
    if not card.is_file():
        return ()
    import yaml
    from huggingface_hub import metadata_load

    try:
        base = (metadata_load(card) or {}).get("base_model")
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = str(error).partition("\n")[0]
        log.warning("%s: the card's head cannot be read, so its facts about the base model are lost: %s", card, reason)
        return ()
    names = [base] if isinstance(base, str) else base if isinstance(base, list) else []
    on_hub = [hub_name(name) for name in names if isinstance(name, str)]
    return tuple(name.name for name in on_hub if name is not None)


def name_of_folder(folder: Path) -> str:
    """A model's name, taken from its folder: `mine` for `runs/mine/model`."""
    whole = folder.resolve()
    return (whole.parent if whole.name == "model" else whole).name or "model"


def encodable(text: str) -> str:
    """The text, made safe for a card: file names may have bytes that are not UTF-8, and line breaks that YAML turns
    into spaces."""
    return re.sub("[\x85\u2028\u2029]", " ", text.encode("utf-8", "replace").decode("utf-8"))


def card_head(
    settings: CardSettings,
    *,
    name: str,
    task: tuple[str, str],
    tags: Sequence[str],
    base: Sequence[str],
    figures: Sequence[tuple[str, str, Mapping[str, tuple[str, float | None]]]] = (),
    library: str = "transformers",
    **more: str,
) -> str:
    """The YAML head of a card as huggingface_hub writes it, without the `---` lines around it.

    `task` is the hub's name of the task and a readable one, `base` the names of the base models, `library` the library
    that loads the model; `more` are further keys. Each item of `figures` is a measured split: the name of its file,
    `validation` or `test`, and for each readable metric name the hub's metric name and the value, None if undefined.
    """
    from huggingface_hub import EvalResult, ModelCardData  # a fifth of a second, for those who write a card

    results = [
        EvalResult(
            task_type=task[0],
            task_name=task[1],
            dataset_type=_CUSTOM,
            dataset_name=encodable(dataset),
            dataset_split=split,
            metric_type=metric,
            metric_name=shown,
            metric_value=value,
        )
        for dataset, split, metrics in figures
        for shown, (metric, value) in metrics.items()
        if value is not None and math.isfinite(value)
    ]
    others: dict[str, Any] = {**({"base_model_relation": "finetune"} if base else {}), **more}
    data = ModelCardData(
        base_model=None if not base else base[0] if len(base) == 1 else list(base),
        language=None if settings.language is None else list(settings.language),
        library_name=library,
        license=settings.license,
        pipeline_tag=task[0],
        tags=list(tags),
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=encodable(name),
        eval_results=results or None,
        **others,
    )
    if not results:
        data.pop("model_name")  # it belongs to the model index, not to the head
    return data.to_yaml()
