"""Models that transformers runs, in the place of ours: the network, and its folder in both directions.

A network with a head makes logits, and does so in its own way (some heads see the first token, some the last, some a
mean). So what its encoder makes of a position *is* the logits there, and the heads that ours has beside the encoder
change nothing:

    of whole texts    [B, S, C]: the text's at its first position, 0 elsewhere
    of tokens         [B, S, C]
    of answers        [B, S, 2]: that an answer begins there, and that it ends there
    of hidden tokens  [B, S, V]
    of none           [B, S, D]: the hidden states, where the model stands without a head

A row holds one text, since these networks do not keep texts of a row apart.

Folders are read without code from them. The encoder's weights are read once; a network for a task is made anew from
each seed, with a new head, also where the folder had one of the same size. What transformers cannot read, and
transformers where it is missing, is a ModelError.

Shape suffixes: B = rows, S = positions, T = B x S in a line, C = outputs, V = vocabulary, N = places, D = hidden size.
"""

from __future__ import annotations

import copy
import inspect
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.core.errors import ModelError, SettingsError, UnsupportedError, listed, shown
from unmask.core.hub import CONFIG, WEIGHTS
from unmask.model.config import EncoderConfig
from unmask.model.encoder import MaskedLM
from unmask.model.folder import (
    KEY,
    TaskHead,
    check_kinds,
    has_weights,
    label_content,
    read_config_file,
    read_content,
    stored_tensors,
)
from unmask.model.fused import Sequences
from unmask.model.layout_names import LAYOUTS
from unmask.model.pooling import read_side_file

LONGEST = 512  # tokens, where nothing says how long an input may be
UNBOUNDED = 1 << 20  # positions above which a number says that there is no bound
_TABLES = re.compile(r"(_ids|index|tracked|mask|buckets?)$")  # integers, and no weights
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_LINE = 300  # letters of what a library said
_POOLER = "pooler"  # a layer before heads, which models without such a head were not trained with


@dataclass(frozen=True)
class TransformersConfig:
    """The inputs of a network of transformers; named as in `EncoderConfig`."""

    hidden_size: int  # its width
    max_position_embeddings: int  # longest input in tokens, special tokens included
    num_types: int  # token types: 1 where it takes none
    pad_id: int  # the tokenizer's
    vocab_size: int  # tokens that it has vectors for


class TransformersNetwork(nn.Module):
    """A model of transformers with what is known of its inputs, to be called as ours is: with the head of a task, as a
    masked language model, or as an encoder without a head.

    Args:
        width: Numbers of a position in its output: its logits, or its hidden size.
        takes_padding: Whether padding, masked, leaves the output for a text as it is, so that texts of a batch may
            differ in length. Some models of a kind (FNet, those with convolutions) take no attention mask, or let
            padding through it.

    Attributes:
        compute_dtype: Of the activations: other types than float32 are autocast, by torch's rules, since the layers are
            not ours; weights stay in float32.
        shares_rows: A row holds one text.
    """

    shares_rows = False

    def __init__(self, model: Any, config: TransformersConfig, *, width: int, takes_padding: bool = False) -> None:
        super().__init__()
        self.model, self.config, self.pad_id = model, config, config.pad_id
        self.width, self.takes_padding = width, takes_padding
        self.compute_dtype = torch.float32
        self._takes_mask = "attention_mask" in inspect.signature(model.forward).parameters

    @property
    def encoder(self) -> TransformersNetwork:
        return self

    @property
    def device(self) -> torch.device:
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
        """Encodes rows of one text each: [B, S, C], float32.

        Segments are 0 at tokens and -1 at padding. Positions and sequences are not used: the network counts positions
        by itself, each kind in its own way. What is dropped in training mode is a function of `dropout_seed`.
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
            return output["last_hidden_state"].float()
        if "start_logits" in output:
            return torch.stack([output["start_logits"], output["end_logits"]], -1).float()
        logits = output["logits"]
        if logits.ndim == 3:
            return logits.float()
        return functional.pad(logits[:, None], (0, 0, 0, input_ids_BS.shape[1] - 1)).float()

    @property
    def num_encoder_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.base_model.parameters())

    def outputs(self, head: str, logits_NC: Tensor, *, dropout_seed: int | None = None) -> Tensor:
        """The logits of a task as they are: the encoder has the head, and has dropped what is dropped."""
        return logits_NC

    def predict(self, logits_TV: Tensor, positions_N: Tensor) -> Tensor:
        """Logits [N, V] of tokens at some places, of those at all places of a batch in a line."""
        return logits_TV.index_select(0, positions_N)

    def bare(self) -> TransformersNetwork:
        """The encoder in it, without the head, with the same weights."""
        return TransformersNetwork(self.model.base_model, self.config, width=self.config.hidden_size).eval()


TaskNetwork = MaskedLM | TransformersNetwork
TaskConfig = EncoderConfig | TransformersConfig


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


# ----------------------------------------
# Which folders transformers runs


def why_in_transformers(folder: Path) -> str | None:
    """Why transformers runs a folder's model, in words; None: our encoder does.

    It does where the layout is none of ours, where the model has a part that our encoder lacks, and where the weights
    are in other files. None, too, of what is no model's folder, or broken: reading it is an error elsewhere.
    """
    try:
        if (kind := read_content(folder)["model_type"]) not in LAYOUTS:
            return f"its type {shown(kind)} is not one of our layouts ({', '.join(LAYOUTS)})"
        if not has_weights(folder) and any((folder / name).is_file() for name in _OTHER_WEIGHTS):
            return "its weights are not in a safetensors file"
        content, layout = read_config_file(folder)
        layout.read_config({key: value for key, value in content.items() if "dropout" not in key}, mask_id=0)
    except UnsupportedError as error:
        return str(error) if has_weights(folder) else None
    except ModelError:
        pass
    return None


def check_transformers(folder: Path) -> None:
    """Raises a ModelError where transformers knows no masked language model of a folder's type."""
    _import_transformers(folder)
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    content = read_content(folder)
    if (kind := content["model_type"]) not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        own = "; code in the folder is never run" if "auto_map" in content else ""
        raise ModelError(
            f"{folder}: the model type {shown(kind)} is not one of our layouts ({', '.join(LAYOUTS)}), and "
            f"transformers has no masked language model for it{own}; fill, embed, evaluate and score need one "
            "of the two (finetune takes any encoder that transformers reads)"
        )


def _import_transformers(folder: Path) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            f"{folder}: a model of type {shown(read_content(folder)['model_type'])} needs transformers, which "
            "is not installed: pip install 'unmask[transformers]'"
        ) from error
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # our errors say what is missing
    return transformers


# ----------------------------------------
# Reading and writing them


@dataclass(frozen=True)
class TransformersPretrained:
    folder: Path  # where it was loaded from
    config: TransformersConfig  # what its inputs look like
    theirs: Any  # its configuration in transformers; it stays as it is
    weights: Mapping[str, Tensor]  # of the encoder, without a head; float32


def load_transformers(folder: Path, *, vocab_size: int, pad_id: int, max_length: int | None) -> TransformersPretrained:
    """`max_length` is the longest input of the task; None: what the network takes."""
    model, missing = _read(folder, "AutoModel", what="encoder", vocab_size=vocab_size)
    _check_missing(folder, model, [name for name in missing if _POOLER not in name])
    config = _inputs_of(model, folder, pad_id=pad_id, max_length=max_length)
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in missing}
    return TransformersPretrained(folder, config, model.config, weights)


def load_transformers_model(
    folder: Path, *, vocab_size: int, pad_id: int
) -> tuple[TransformersNetwork | None, TransformersNetwork | None]:
    """Loads a masked language model in float32, or None where the folder holds no head that predicts tokens; and the
    encoder in it, which shares its weights, or None where there is a decoder, too, or transformers does not tell it
    apart. `check_transformers` has passed."""
    model, missing = _read(folder, "AutoModelForMaskedLM", what="masked language model", vocab_size=vocab_size)
    prefix = f"{model.base_model_prefix}."
    _check_missing(folder, model, [name for name in missing if name.startswith(prefix) and _POOLER not in name])
    size = int(model.config.vocab_size)
    config = TransformersConfig(*_size_of(model), 1, pad_id, size)
    network = TransformersNetwork(model, config, width=size).eval()
    has_encoder = model.base_model is not model and not getattr(model.config, "is_encoder_decoder", False)
    return None if missing else network, network.bare() if has_encoder else None


def load_transformers_task(
    folder: Path, head: TaskHead, *, vocab_size: int, pad_id: int, max_length: int | None
) -> TransformersNetwork:
    """Loads a fine-tuned network that unmask or transformers wrote; arguments as of `load_transformers`."""
    auto, what = f"AutoModelFor{head.architecture}", f"model for {head.architecture}"
    model, missing = _read(folder, auto, what=what, vocab_size=vocab_size)
    _check_missing(folder, model, missing)
    config = _inputs_of(model, folder, pad_id=pad_id, max_length=max_length)
    return TransformersNetwork(model, config, width=model.config.num_labels, takes_padding=True).eval()


def transformers_with_head(
    pretrained: TransformersPretrained, head: TaskHead, *, seed: int, dropout: float | None, trained: bool = True
) -> TransformersNetwork:
    """A network with the same weights, or, where it is not to be `trained`, drawn ones, and a new head, as transformers
    draws it. `dropout` replaces every rate of dropout that the model's configuration has."""
    folder, config = pretrained.folder, copy.deepcopy(pretrained.theirs)
    config._name_or_path = ""  # else transformers 4 writes the folder into config.json
    setattr(config, "dtype" if hasattr(config, "dtype") else "torch_dtype", torch.float32)
    config.problem_type = head.problem_type
    if head.names:
        config.id2label, config.label2id = dict(enumerate(head.names)), label_content(head.names)["label2id"]
    else:
        config.num_labels = 2  # begin and end
    if dropout is not None:
        numbers = [name for name, value in config.to_dict().items() if type(value) in (int, float)]
        rates = [name for name in numbers if "dropout" in name]
        if not rates:
            raise SettingsError(f"finetune.dropout: the config.json in {folder} has no dropout rate")
        for name in rates:
            setattr(config, name, dropout)

    auto = getattr(_import_transformers(folder), f"AutoModelFor{head.architecture}")
    with drawn_from(seed, torch.device("cpu")):
        try:
            model = auto.from_config(config, trust_remote_code=False)
        except Exception as error:
            raise ModelError(
                f"{folder}: transformers has no {head.architecture} head for {config.model_type!r} ({_reason(error)})"
            ) from error
    if trained:
        missing = model.base_model.load_state_dict(pretrained.weights, strict=False).missing_keys
        _check_missing(folder, model, [name for name in missing if _POOLER not in name])
    return TransformersNetwork(model.float(), pretrained.config, width=model.config.num_labels, takes_padding=True)


def save_transformers_task(network: TransformersNetwork, head: TaskHead, folder: Path) -> None:
    """Writes a network that transformers' class for the task loads, with the same logits."""
    model = network.model
    setattr(model.config, KEY, dict(head.own))
    model.save_pretrained(folder)
    if (folder / WEIGHTS).is_file():  # safetensors makes files that only their owner may read
        shutil.copymode(folder / CONFIG, folder / WEIGHTS)


def _read(folder: Path, auto: str, *, what: str, vocab_size: int) -> tuple[Any, list[str]]:
    """A model of one of transformers' `AutoModel` classes in float32, and which of its weights the folder lacks. Code
    that a folder brings is neither run nor asked for. `what` is the kind of model, for errors."""
    library = _import_transformers(folder)
    if has_weights(folder):
        weights = {name: tensor for name, tensor in stored_tensors(folder).items() if not _TABLES.search(name)}
        check_kinds(weights, str(folder))
    try:
        with drawn_from(0, torch.device("cpu")):  # missing weights are drawn, and leave torch's generator as it was
            model, report = getattr(library, auto).from_pretrained(
                folder, output_loading_info=True, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        why = "" if (lacking := why_in_transformers(folder)) is None else f"{lacking}, and there is "
        raise ModelError(f"{folder}: {why}no {what} that transformers reads ({_reason(error)})") from error
    for name, weight in model.named_parameters():
        if not weight.sum().isfinite() and not weight.isfinite().all():
            raise ModelError(
                f"{folder}: {shown(name)} holds values that are not finite (NaN or infinity), so the model is "
                "useless: its training diverged, or the file is damaged; give another copy"
            )
    if vocab_size > model.config.vocab_size:
        raise ModelError(f"{folder}: the tokenizer has {vocab_size} ids, the model only {model.config.vocab_size}")
    return model.float(), sorted(report["missing_keys"])


def _check_missing(folder: Path, model: Any, missing: list[str]) -> None:
    if missing:
        raise ModelError(f"{folder}: the weights lack {listed(missing, 4)}, which {type(model).__name__} has")


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    line = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    says_enough = isinstance(error, OSError | ValueError) and line  # others say nothing without their type
    return (line if says_enough else f"{type(error).__name__}: {line}")[:_LINE]


def _size_of(model: Any) -> tuple[int, int]:
    """The width of a network, and the positions that it has. RoBERTa's kind begins its table behind the padding's id;
    other tables are larger than what is used of them."""
    width = int(getattr(model.config, "hidden_size", None) or model.get_input_embeddings().weight.shape[1])
    positions = getattr(model.config, "max_position_embeddings", None)
    longest = positions if isinstance(positions, int) and 0 < positions < UNBOUNDED else None
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and hasattr(module, "weight"):
            padding = getattr(module, "padding_idx", None)
            rows = len(module.weight) - (0 if padding is None else padding + 1)
            return width, rows if longest is None else min(rows, longest)
    return width, longest or LONGEST


def _inputs_of(model: Any, folder: Path, *, pad_id: int, max_length: int | None) -> TransformersConfig:
    """What inputs a network takes. One that knows distances between tokens only, and no positions (DeBERTa), takes any
    length; without that of a task, what its tokenizer says, or 512."""
    arguments, config = inspect.signature(model.forward).parameters, model.config
    if "attention_mask" not in arguments:
        raise ModelError(f"{folder}: models of type {config.model_type!r} take no attention mask; use another model")
    types = getattr(config, "type_vocab_size", None) if "token_type_ids" in arguments else 1
    width, longest = _size_of(model)
    if getattr(config, "relative_attention", False) and not getattr(config, "position_biased_input", True):
        of_tokenizer = read_side_file(folder / "tokenizer_config.json", optional=True).get("model_max_length")
        if not isinstance(of_tokenizer, int | float) or not 0 < of_tokenizer < UNBOUNDED:  # huge where there is none
            of_tokenizer = None
        longest = int(max_length or of_tokenizer or LONGEST)
    return TransformersConfig(width, longest, types or 1, pad_id, int(config.vocab_size))
