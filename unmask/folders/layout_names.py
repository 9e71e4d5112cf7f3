"""How a layout is stored: the names of its weights, and its config.json, both in both directions.

The names are a table. A row says under which names a parameter of ours is stored; where it is stored in several parts
(queries, keys and values), they are stacked in our rows:

    encoder.blocks.3.attention.qkv.weight [3D, D]  <->  bert.encoder.layer.3.attention.self.query.weight [D, D]
                                                        ...key.weight, ...value.weight
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, get_args

import torch
from torch import Tensor

from unmask.errors import ModelError, SettingsError, UnsupportedError
from unmask.network.config import Activation, EncoderConfig
from unmask.settings import validated
from unmask.values import shown

log = logging.getLogger("unmask")

Held = TypeVar("Held")


class Shaped(Protocol):
    """A tensor, or what a file says of one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its size in each dimension."""


@dataclass(frozen=True)
class Names:
    """The names of a layout.

    Attributes:
        prefix: Of the encoder's weights in a masked language model; folders of a bare encoder lack it.
        rows: For a pattern of ours, their names; `{}` is what the pattern's group matched.
        kept: Beginnings of names of weights that we do not use, but write back.
        aliases: Other names of weights, and the name in the table.
        known: Weights that say nothing new, such as the tied decoder.
        write_aliases: Whether weights are written under their other names too.
        shared: Parameters of the masked-language-model head that heads of other tasks have too: a folder that has only
            these of it holds no such head.
    """

    prefix: str
    rows: Mapping[str, tuple[str, ...]]
    kept: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    known: tuple[str, ...] = ()
    write_aliases: bool = False
    shared: tuple[str, ...] = ()

    def theirs(self, name: str) -> list[str]:
        """The names under which one of our parameters is stored."""
        for pattern, templates in self.rows.items():
            if match := re.fullmatch(pattern, name):
                return [template.format(*match.groups()) for template in templates]
        raise AssertionError(f"no name in the layout for {name}")

    def to_transformers(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our parameters under transformers' names."""
        stored = {
            theirs: part.contiguous()
            for name, tensor in ours.items()
            for theirs, part in zip(self.theirs(name), tensor.chunk(len(self.theirs(name))), strict=True)
        }
        if not self.write_aliases:
            return stored
        return stored | {other: stored[name].clone() for other, name in self.aliases.items() if name in stored}

    def canonical(self, weights: Mapping[str, Held]) -> dict[str, Held]:
        """Weights, or what is known of them, under the names of the table: with the prefix, and old spellings new."""
        bare = not any(name.startswith(self.prefix) for name in weights)
        renamed = {}
        for name, tensor in weights.items():
            new = f"{self.prefix}{name}" if bare and not self._is_head(name) else name
            new = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", new))  # TensorFlow's names
            renamed[self.aliases.get(new, new)] = tensor
        return renamed

    def from_transformers(
        self, weights: Mapping[str, Tensor], shapes: Mapping[str, torch.Size], *, where: str
    ) -> dict[str, Tensor]:
        """Our parameters out of transformers' weights.

        Args:
            weights: Under canonical names.
            shapes: The names and shapes of our parameters that are wanted.
            where: The file, for the error's text.

        Returns:
            The parameters by our names. Those of the masked-language-model head are left out where a whole one is
            wanted, and the weights have nothing of one, or only what a classifier shares with it.

        Raises:
            ModelError: A weight is missing, of another shape, or not finite.
        """
        found = {}
        for name, theirs in self.find(shapes, weights, where=where).items():
            parts = [weights[part].to(torch.float32) for part in theirs]
            found[name] = parts[0] if len(parts) == 1 else torch.cat(parts)  # which copies, and most weights are whole
            if not found[name].sum().isfinite() and (number := int((~found[name].isfinite()).sum())):
                raise ModelError(
                    f"{where}: {', '.join(theirs)} hold {number:,} values that are not finite (NaN or infinity), so "
                    "the model says nothing: its training has diverged, or the file is damaged; give another copy"
                )
        return found

    def find(
        self, shapes: Mapping[str, torch.Size], stored: Mapping[str, Shaped], *, where: str
    ) -> dict[str, list[str]]:
        """Under which names parameters of ours are stored; arguments and errors as of `from_transformers`.

        Args:
            shapes: The names and shapes of our parameters that are wanted.
            stored: Tensors under canonical names, or what a file says of them.
            where: The file, for the error's text.
        """
        of_head = [name for name in shapes if name.startswith("head.") and name not in self.shared]
        has_head = not of_head or any(their in stored for name in of_head for their in self.theirs(name))
        found = {}
        for name, shape in shapes.items():
            if name.startswith("head.") and not has_head:
                continue
            found[name] = self.theirs(name)
            wanted = (shape[0] // len(found[name]), *shape[1:])
            for theirs in found[name]:
                if theirs not in stored:
                    raise ModelError(f"{where}: the weights lack {theirs}, which the layout in config.json has")
                if tuple(stored[theirs].shape) != wanted:
                    raise ModelError(
                        f"{where}: {theirs} has the shape {tuple(stored[theirs].shape)}, but config.json says {wanted}"
                    )
        return found

    def kept_weights(self, weights: Mapping[str, Tensor], used: set[str], *, where: str) -> dict[str, Tensor]:
        """What is written back unused; a log line names whatever else is left out.

        Args:
            weights: Under canonical names.
            used: Names of the table that our parameters took.
            where: The file, for the log.
        """
        rest = {name: tensor for name, tensor in weights.items() if name not in used and name not in self.known}
        kept = {name: tensor for name, tensor in rest.items() if name.startswith(self.kept)}
        if left_out := sorted(rest.keys() - kept.keys()):
            log.warning("%s: left out, since a masked language model has no place for it: %s", where, _few(left_out))
        return kept

    def _is_head(self, name: str) -> bool:
        """Whether a name stands beside the encoder's in a masked language model."""
        return any(name in templates for templates in self.rows.values()) or name in (*self.known, *self.aliases)


def _few(names: list[str]) -> str:
    return ", ".join(name[:100] for name in names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


Pooling = Literal["mean", "first"]
"""What a whole text is told from: the mean of its tokens, or the first one."""
_THEIRS: dict[Pooling, str] = {"first": "cls", "mean": "mean"}


class ReadConfig(Protocol):
    """Reads a configuration."""

    def __call__(self, content: dict[str, Any], *, mask_id: int) -> EncoderConfig:
        """See `unmask.folders.modernbert.read_config`."""


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
        raise ModelError(f"{where}: {self.pooling_key} = {shown(said)} is not supported, only cls or mean")


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
            raise error(f"config.json: {key} = {shown(content[key])} is not supported, only {value!r}")


def _check_activation(activation: Any) -> None:
    known = get_args(Activation)
    if isinstance(activation, str) and activation not in known:
        raise UnsupportedError(
            f"config.json: activation = {shown(activation)} is not supported, only {', '.join(map(repr, known))}"
        )
