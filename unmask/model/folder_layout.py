"""How a layout is stored: the names of its weights, and its config.json in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from unmask.errors import ModelError, SettingsError
from unmask.model.config import EncoderConfig
from unmask.model.names import Names
from unmask.settings import validated


class ReadConfig(Protocol):
    """Reads a configuration."""

    def __call__(self, content: dict[str, Any], *, mask_id: int) -> EncoderConfig:
        """See `unmask.model.modernbert.read_config`."""


@dataclass(frozen=True)
class FolderLayout:
    """What a model folder needs to know of a layout.

    Attributes:
        names: Of its weights.
        write_config, read_config: Its config.json.
        pair_architecture: transformers' class with a head for pairs; None where it has none.
        label_config: What config.json says beside the classes where there is a head for them.
    """

    names: Names
    write_config: Callable[[EncoderConfig], dict[str, Any]]
    read_config: ReadConfig
    pair_architecture: str | None = None
    label_config: Mapping[str, Any] = field(default_factory=dict)


def read_values(
    content: dict[str, Any], *, must_be: Mapping[str, Any], values: Callable[[], dict[str, Any]]
) -> EncoderConfig:
    """Makes a configuration, and errors of whatever is wrong with the file.

    Args:
        content: The file, with the layout's defaults.
        must_be: What it must say, since the encoder can do nothing else.
        values: Takes the configuration's values out of the content.

    Raises:
        ModelError: The content says something else, lacks a key, or has a value that is not allowed.
    """
    for key, value in must_be.items():
        if content[key] != value:
            raise ModelError(f"config.json: {key} = {content[key]!r} is not supported, only {value!r}")
    try:
        return validated(EncoderConfig, values(), where="config.json")
    except KeyError as error:
        raise ModelError(f"config.json: {error.args[0]} is missing") from error
    except SettingsError as error:
        raise ModelError(str(error)) from error
    except (TypeError, ValueError) as error:
        raise ModelError(f"config.json: {error}") from error
