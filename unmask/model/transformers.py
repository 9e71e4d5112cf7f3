"""A network that transformers runs, in the place of ours: with the head of a task, one that predicts tokens, or none.

A network with a head makes logits, and does so in its own way (some heads see the first token, some the last, some a
mean). So what its encoder makes of a position *is* the logits there, and the heads that ours has beside the encoder
change nothing:

    of whole texts    [B, S, C]: the text's at its first position, 0 elsewhere
    of tokens         [B, S, C]
    of answers        [B, S, 2]: that an answer begins there, and that it ends there
    of hidden tokens  [B, S, V]
    of none           [B, S, D]: the hidden states, where the model stands without a head

A row holds one text, since these networks do not keep texts of a row apart.

Shape suffixes: B = rows, S = positions, T = B x S in a line, C = outputs, V = vocabulary, N = places, D = hidden size.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.core.errors import ModelError, load_json
from unmask.model.attention import Sequences

LONGEST = 512  # tokens, where nothing says how long an input may be
_UNBOUNDED = 1 << 20  # positions above which a number says that there is no bound


@dataclass(frozen=True)
class TransformersConfig:
    """The inputs of a network of transformers; named as in `EncoderConfig`.

    Attributes:
        hidden_size: Its width.
        max_position_embeddings: Longest input in tokens, special tokens included.
        num_types: Token types: 1 where it takes none.
        pad_id: The tokenizer's.
        vocab_size: Tokens that it has vectors for.
    """

    hidden_size: int
    max_position_embeddings: int
    num_types: int
    pad_id: int
    vocab_size: int


class TransformersEncoder(nn.Module):
    """Rows to logits, or to hidden states.

    Args:
        model: Of transformers, with its head or without one.
        width: Logits of a position, or its hidden size.
        takes_padding: Whether padding, masked, leaves the output for a text as it is.

    Attributes:
        compute_dtype: Of the activations: other types than float32 are autocast, by torch's rules, since the layers are
            not ours; weights stay in float32.
        shares_rows: A row holds one text.
    """

    shares_rows = False

    def __init__(self, model: Any, *, width: int, takes_padding: bool = True) -> None:
        super().__init__()
        self.model = model
        self.width = width
        self.takes_padding = takes_padding
        self.compute_dtype = torch.float32
        self._takes_mask = "attention_mask" in inspect.signature(model.forward).parameters

    @property
    def device(self) -> torch.device:
        """Of its weights."""
        return next(self.model.parameters()).device

    def forward(
        self,
        input_ids_BS: Tensor,
        *,
        segment_ids_BS: Tensor | None = None,
        position_ids_BS: Tensor | None = None,
        token_type_ids_BS: Tensor | None = None,
        sequences: Sequences | None = None,
        dropout_seed: int | None = None,
    ) -> Tensor:
        """Encodes rows of one text each.

        Args:
            input_ids_BS: int64.
            segment_ids_BS: 0 at tokens, -1 at padding. None: there is no padding.
            position_ids_BS, sequences: Not used: the network counts positions by itself, each kind in its own way.
            token_type_ids_BS: int64; None where the network takes none.
            dropout_seed: What is dropped is a function of it. Needed in training mode.

        Returns:
            [B, S, C], float32.
        """
        if self.training and dropout_seed is None:
            raise ModelError("a model in training mode needs a dropout_seed; give one, or call eval()")
        inputs = {"input_ids": input_ids_BS}
        if self._takes_mask:
            real = torch.ones_like(input_ids_BS) if segment_ids_BS is None else (segment_ids_BS >= 0).long()
            inputs["attention_mask"] = real
        if token_type_ids_BS is not None:
            inputs["token_type_ids"] = token_type_ids_BS
        device, dtype = self.device, self.compute_dtype
        cast = nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype)
        with cast, drawn_from(dropout_seed if self.training else None, device):
            output = self.model(**inputs, return_dict=True)
        if "logits" not in output and "last_hidden_state" in output:
            return output.last_hidden_state.float()
        if "start_logits" in output:
            return torch.stack([output.start_logits, output.end_logits], -1).float()
        if output.logits.ndim == 3:
            return output.logits.float()
        return functional.pad(output.logits[:, None], (0, 0, 0, input_ids_BS.shape[1] - 1)).float()


class _TransformersNetwork(nn.Module):
    """An encoder of transformers with what is known of its inputs.

    Texts of a batch must be equally long (`takes_padding`) where some models of the kind (FNet, those with
    convolutions) take no attention mask or let padding through it.
    """

    def __init__(self, model: Any, config: TransformersConfig, *, width: int, takes_padding: bool) -> None:
        super().__init__()
        self.encoder = TransformersEncoder(model, width=width, takes_padding=takes_padding)
        self.config = config
        self.pad_id = config.pad_id


class TransformersTask(_TransformersNetwork):
    """A network of transformers with the head of a task, to be called as ours is."""

    def __init__(self, model: Any, config: TransformersConfig) -> None:
        super().__init__(model, config, width=model.config.num_labels, takes_padding=True)

    @property
    def num_encoder_parameters(self) -> int:
        """Those without heads."""
        return sum(parameter.numel() for parameter in self.encoder.model.base_model.parameters())

    def outputs(self, head: str, logits_NC: Tensor, *, dropout_seed: int | None = None) -> Tensor:
        """The logits as they are: the encoder has the head, and has dropped what is dropped."""
        return logits_NC


class TransformersMaskedLM(_TransformersNetwork):
    """A masked language model of `AutoModelForMaskedLM`, to be called as ours is."""

    def __init__(self, model: Any, config: TransformersConfig) -> None:
        super().__init__(model, config, width=config.vocab_size, takes_padding=False)

    def predict(self, logits_TV: Tensor, positions_N: Tensor) -> Tensor:
        """Logits [N, V] at some places, of those at all places of a batch in a line."""
        return logits_TV.index_select(0, positions_N)


class TransformersBare(_TransformersNetwork):
    """An encoder without a head, such as `base_model` of a model with one, with which it shares its weights."""

    def __init__(self, model: Any, config: TransformersConfig) -> None:
        super().__init__(model, config, width=config.hidden_size, takes_padding=False)


@contextmanager
def drawn_from(seed: int | None, device: torch.device) -> Iterator[None]:
    """Draws of torch's own generators (the CPU's and the device's) come from a seed meanwhile; they are left as they
    were. The seed is any 64-bit integer; None changes nothing."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def longest_of(model: Any) -> int:
    """Positions that a network has. RoBERTa's kind begins its table behind the padding's id; other tables are larger
    than what is used of them."""
    positions = getattr(model.config, "max_position_embeddings", None)
    longest = positions if isinstance(positions, int) and 0 < positions < _UNBOUNDED else None
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and hasattr(module, "weight"):
            padding = getattr(module, "padding_idx", None)
            rows = len(module.weight) - (0 if padding is None else padding + 1)
            return rows if longest is None else min(rows, longest)
    return longest or LONGEST


def width_of(model: Any) -> int:
    """The network's width."""
    return int(getattr(model.config, "hidden_size", None) or model.get_input_embeddings().weight.shape[1])


def transformers_config(model: Any, folder: Path, *, pad_id: int, max_length: int | None) -> TransformersConfig:
    """Reads off a network what inputs it takes.

    Args:
        model: Of transformers, with a head or without.
        folder: Of the model and its tokenizer.
        pad_id: The tokenizer's.
        max_length: The longest input of the task. A network that knows distances between tokens only, and no positions
            (DeBERTa), takes any; without this, what its tokenizer says, or 512.
    """
    arguments, config = inspect.signature(model.forward).parameters, model.config
    if "attention_mask" not in arguments:
        raise ModelError(
            f"{folder}: a model of type {config.model_type!r} takes no attention mask, so that padding would "
            "change what it says; take another model"
        )
    types = getattr(config, "type_vocab_size", None) if "token_type_ids" in arguments else 1
    longest = longest_of(model)
    if getattr(config, "relative_attention", False) and not getattr(config, "position_biased_input", True):
        longest = max_length or _tokenizer_length(folder) or LONGEST
    return TransformersConfig(width_of(model), longest, types or 1, pad_id, int(config.vocab_size))


def _tokenizer_length(folder: Path) -> int | None:
    """The longest input that the tokenizer's files name; transformers writes a huge number where there is none."""
    file = folder / "tokenizer_config.json"
    try:
        length = load_json(file).get("model_max_length") if file.is_file() else None
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{file}: not readable as JSON ({error}); mend it or take it away") from error
    return int(length) if isinstance(length, int | float) and 0 < length < _UNBOUNDED else None
