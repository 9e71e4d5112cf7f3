"""How a layout is stored: the names of its weights, and its config.json in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from unmask.errors import ModelError, SettingsError, UnsupportedError
from unmask.model.config import Activation, EncoderConfig
from unmask.model.names import Names
from unmask.settings import validated

Pooling = Literal["mean", "first"]
"""What a whole text is told from: the mean of its tokens, or the first one."""
_THEIRS: dict[Pooling, str] = {"first": "cls", "mean": "mean"}


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
        pooling_key: Where config.json says whether a classifier of texts is given the first token (`cls`) or the mean
            of all; None: it is the first token's.
    """

    names: Names
    write_config: Callable[[EncoderConfig], dict[str, Any]]
    read_config: ReadConfig
    pair_architecture: str | None = None
    pooling_key: str | None = None

    def pooling_content(self, pooling: Pooling) -> dict[str, Any]:
        """What config.json says of a classifier's pooling.

        Raises:
            ModelError: The layout's classifier is the first token's.
        """
        if self.pooling_key is not None:
            return {self.pooling_key: _THEIRS[pooling]}
        if pooling != "first":
            raise ModelError("classifiers of this layout take the first token; pooling by the mean has no place in it")
        return {}

    def pooling_of(self, content: Mapping[str, Any], where: str) -> Pooling:
        """What a config.json says of a classifier's pooling; transformers' default is the first token.

        Raises:
            ModelError: It is something else.
        """
        said = "cls" if self.pooling_key is None else content.get(self.pooling_key, "cls")
        for pooling, name in _THEIRS.items():
            if name == said:
                return pooling
        raise ModelError(f"{where}: {self.pooling_key} = {said!r} is not supported, only cls or mean")


def read_values(
    content: dict[str, Any],
    *,
    must_be: Mapping[str, Any],
    ours: Mapping[str, Any],
    values: Callable[[], dict[str, Any]],
) -> EncoderConfig:
    """Makes a configuration, and errors of whatever is wrong with the file.

    Args:
        content: The file, with the layout's defaults.
        must_be: What it must say: anything else is no such encoder, in transformers neither.
        ours: What it says of the encoders that ours can be; transformers runs the others.
        values: Takes the configuration's values out of the content.

    Raises:
        UnsupportedError: It is an encoder that ours cannot be.
        ModelError: The content says what it must not, lacks a key, or has a value that is not allowed.
    """
    _check(content, must_be, ModelError)
    _check(content, ours, UnsupportedError)
    try:
        found = values()
        _check_activation(found["activation"])
        return validated(EncoderConfig, found, where="config.json")
    except KeyError as error:
        raise ModelError(f"config.json: {error.args[0]} is missing") from error
    except ModelError:
        raise
    except SettingsError as error:
        raise ModelError(str(error)) from error
    except (TypeError, ValueError) as error:
        raise ModelError(f"config.json: {error}") from error


def _check(content: Mapping[str, Any], wanted: Mapping[str, Any], error: type[ModelError]) -> None:
    for key, value in wanted.items():
        if content[key] != value:
            raise error(f"config.json: {key} = {content[key]!r} is not supported, only {value!r}")


def _check_activation(activation: Any) -> None:
    known = get_args(Activation)
    if isinstance(activation, str) and activation not in known:
        raise UnsupportedError(
            f"config.json: activation = {activation!r} is not supported, only {', '.join(map(repr, known))}"
        )
