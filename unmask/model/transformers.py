"""Models that transformers runs, in place of ours: the network, and reading and writing its folder.

A transformers network computes logits with its own head, each in its own way (some heads read the first token, some
the last, some a mean). So its output at a position *is* the logits there, and `outputs` and `predict` add no head:

    head for             output
    whole texts          [B, S, C]: a text's logits at its first position, 0 elsewhere
    tokens               [B, S, C]
    answers              [B, S, 2]: that an answer begins there, and that it ends there
    masked tokens        [B, S, V]
    nothing (no head)    [B, S, D]: the hidden states

A row holds one text, since these networks do not separate texts within a row.

Code in folders is never run. The encoder's weights are read once. Each seed of a task builds a new network with a new
head, even if the folder had a head of the same size. A folder that transformers cannot read, or missing transformers,
is a ModelError.

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
    check_finite,
    check_kinds,
    check_vocabulary,
    has_weights,
    label_content,
    read_config_file,
    read_content,
    stored_tensors,
)
from unmask.model.fused import Sequences
from unmask.model.layout_names import LAYOUTS
from unmask.model.pooling import read_side_file
from unmask.tokenizer.loading import quiet_transformers

LONGEST = 512  # longest input in tokens, if no file states it
UNBOUNDED = 1 << 20  # numbers of positions from here on mean that there is no bound
_TABLES = re.compile(r"(_ids|index|tracked|mask|buckets?)$")  # buffers of integers, not weights
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_LINE = 300  # most characters of a library's error message
_POOLER = "pooler"  # a layer before heads; models trained without such a head may lack it


@dataclass(frozen=True)
class TransformersConfig:
    """The inputs of a transformers network, with the names of `EncoderConfig`."""

    hidden_size: int
    max_position_embeddings: int  # longest input in tokens, special tokens included
    num_types: int  # number of token types; 1 if it takes none
    pad_id: int  # the tokenizer's
    vocab_size: int  # rows of its embedding
    num_layers: int
    intermediate_size: int


class TransformersNetwork(nn.Module):
    """A transformers model with the interface of ours: with a task's head, as a masked language model, or as an encoder
    without a head.

    Args:
        width: Size of its output for a position: the number of logits, or the hidden size.
        takes_padding: Whether masked padding leaves the output for a text unchanged, so that texts of a batch may
            differ in length. Some models (FNet, those with convolutions) take no attention mask, or padding affects
            the output in spite of it.

    Attributes:
        compute_dtype: Type of the activations. Types other than float32 use torch's autocast, since the layers are not
            ours; weights stay in float32.
        shares_rows: False: a row holds one text.
    """

    shares_rows = False

    def __init__(self, model: Any, config: TransformersConfig, *, width: int, takes_padding: bool = False) -> None:
        super().__init__()
        self.model, self.config, self.pad_id = model, config, config.pad_id
        self.width, self.takes_padding = width, takes_padding
        self.compute_dtype = torch.float32
        self._takes_mask = "attention_mask" in inspect.signature(model.forward).parameters
        summary = getattr(model, "sequence_summary", None)  # of a text, from its last position in XLNet
        self._reads_last = getattr(summary, "summary_type", None) == "last"

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

        Segments are 0 at tokens and -1 at padding. Positions and sequences are not used: each kind of network counts
        positions in its own way. In training mode, `dropout_seed` determines what is dropped.
        """
        if self.training and dropout_seed is None:
            raise ModelError("a model in training mode needs a dropout_seed; give one, or call eval()")
        inputs = {"input_ids": input_ids_BS}
        if self._takes_mask:
            real = torch.ones_like(input_ids_BS) if segment_ids_BS is None else (segment_ids_BS >= 0).long()
            inputs["attention_mask"] = real
        if token_type_ids_BS is not None:
            inputs["token_type_ids"] = token_type_ids_BS
        if self._reads_last and segment_ids_BS is not None:  # padding goes to the left
            places = torch.arange(input_ids_BS.shape[1], device=input_ids_BS.device)
            order_BS = (places - (segment_ids_BS < 0).sum(1, keepdim=True)) % len(places)
            inputs = {name: tensor_BS.gather(1, order_BS) for name, tensor_BS in inputs.items()}
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
        """The logits unchanged: the network has already applied the head and dropout."""
        return logits_NC

    def predict(self, logits_TV: Tensor, positions_N: Tensor) -> Tensor:
        """Logits [N, V] at the given positions of a flattened batch."""
        return logits_TV.index_select(0, positions_N)

    def bare(self) -> TransformersNetwork:
        """Its encoder without the head, sharing the weights."""
        return TransformersNetwork(self.model.base_model, self.config, width=self.config.hidden_size).eval()


TaskNetwork = MaskedLM | TransformersNetwork
TaskConfig = EncoderConfig | TransformersConfig


@contextmanager
def drawn_from(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seeds torch's generators (the CPU's and the device's) for the block, and restores them afterwards. The seed is
    any 64-bit integer; None changes nothing."""
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
# Folders that transformers runs


def why_in_transformers(folder: Path) -> str | None:
    """The reason why transformers runs a folder's model, in words; None if our encoder does.

    transformers runs it if the layout is not one of ours, if the model has a part that our encoder lacks, or if the
    weights are not in safetensors. Also None for folders that are broken or hold no model: reading them is an error
    elsewhere.
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
    """Raises a ModelError if transformers has no masked language model for a folder's model type."""
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
    return transformers


# ----------------------------------------
# Reading and writing folders


@dataclass(frozen=True)
class TransformersPretrained:
    folder: Path  # the folder it was loaded from
    config: TransformersConfig  # its inputs
    theirs: Any  # its configuration in transformers; never changed
    weights: Mapping[str, Tensor]  # of the encoder, without a head; float32


def load_transformers(folder: Path, *, vocab_size: int, pad_id: int, max_length: int | None) -> TransformersPretrained:
    """Loads an encoder. `max_length` is the longest input of the task; None: the longest that the network takes."""
    model, missing = _read(folder, "AutoModel", what="encoder", vocab_size=vocab_size)
    _check_missing(folder, model, [name for name in missing if _POOLER not in name])
    config = _inputs_of(model, folder, pad_id=pad_id, max_length=max_length)
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in missing}
    return TransformersPretrained(folder, config, model.config, weights)


def load_transformers_model(
    folder: Path, *, vocab_size: int, pad_id: int
) -> tuple[TransformersNetwork | None, TransformersNetwork | None]:
    """Loads a masked language model and its encoder, which share weights, in float32. The model is None if the folder
    holds no head that predicts tokens; the encoder is None if there is also a decoder, or transformers does not
    separate it. Call `check_transformers` first."""
    model, missing = _read(folder, "AutoModelForMaskedLM", what="masked language model", vocab_size=vocab_size)
    prefix = f"{model.base_model_prefix}."
    _check_missing(folder, model, [name for name in missing if name.startswith(prefix) and _POOLER not in name])
    size = int(model.config.vocab_size)
    width, longest = _size_of(model)
    config = TransformersConfig(width, longest, 1, pad_id, size, *_layers_of(model.config, width))
    network = TransformersNetwork(model, config, width=size).eval()
    has_encoder = model.base_model is not model and not getattr(model.config, "is_encoder_decoder", False)
    return None if missing else network, network.bare() if has_encoder else None


def load_transformers_task(
    folder: Path, head: TaskHead, *, vocab_size: int, pad_id: int, max_length: int | None
) -> TransformersNetwork:
    """Loads a fine-tuned network that unmask or transformers wrote; arguments as in `load_transformers`."""
    auto, what = f"AutoModelFor{head.architecture}", f"model for {head.architecture}"
    model, missing = _read(folder, auto, what=what, vocab_size=vocab_size)
    _check_missing(folder, model, missing)
    config = _inputs_of(model, folder, pad_id=pad_id, max_length=max_length)
    return TransformersNetwork(model, config, width=model.config.num_labels, takes_padding=True).eval()


def transformers_with_head(
    pretrained: TransformersPretrained, head: TaskHead, *, seed: int, dropout: float | None, trained: bool = True
) -> TransformersNetwork:
    """A network with the pretrained weights, or drawn ones if not `trained`, and a new head, initialised by
    transformers. `dropout` replaces every dropout rate in the model's configuration."""
    folder, config = pretrained.folder, copy.deepcopy(pretrained.theirs)
    config._name_or_path = ""  # else transformers 4 writes the folder into config.json
    setattr(config, "dtype" if hasattr(config, "dtype") else "torch_dtype", torch.float32)
    config.problem_type = head.problem_type
    if head.names:
        config.id2label, config.label2id = dict(enumerate(head.names)), label_content(head.names)["label2id"]
    else:
        config.num_labels = 2  # begin and end
    if dropout is not None:
        numeric = [name for name, value in config.to_dict().items() if type(value) in (int, float)]
        rates = [name for name in numeric if "dropout" in name]
        if not rates:
            raise SettingsError(f"finetune.dropout: the config.json in {folder} has no dropout rate")
        for name in rates:
            setattr(config, name, dropout)

    auto = getattr(_import_transformers(folder), f"AutoModelFor{head.architecture}")
    with quiet_transformers(), drawn_from(seed, torch.device("cpu")):
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
    """Writes a network so that transformers' class for the task gives the same logits."""
    model = network.model
    setattr(model.config, KEY, dict(head.own))
    with quiet_transformers():
        model.save_pretrained(folder)
    if (folder / WEIGHTS).is_file():  # safetensors makes files that only their owner may read
        shutil.copymode(folder / CONFIG, folder / WEIGHTS)


def _read(folder: Path, auto: str, *, what: str, vocab_size: int) -> tuple[Any, list[str]]:
    """A model of one of transformers' `AutoModel` classes in float32, and the names of weights that the folder lacks.
    Code in the folder is never run. `what` names the kind of model in errors."""
    library = _import_transformers(folder)
    if has_weights(folder):
        weights = {name: tensor for name, tensor in stored_tensors(folder).items() if not _TABLES.search(name)}
        check_kinds(weights, str(folder))
    try:
        # Missing weights are drawn, without changing torch's generator.
        with quiet_transformers(), drawn_from(0, torch.device("cpu")):
            model, report = getattr(library, auto).from_pretrained(
                folder, output_loading_info=True, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        why = "" if (lacking := why_in_transformers(folder)) is None else f"{lacking}, and there is "
        raise ModelError(f"{folder}: {why}no {what} that transformers reads ({_reason(error)})") from error
    for name, weight in model.named_parameters():
        check_finite(weight, name, str(folder))
    check_vocabulary(folder, vocab_size, model.config.vocab_size)
    return model.float(), sorted(report["missing_keys"])


def _check_missing(folder: Path, model: Any, missing: list[str]) -> None:
    if missing:
        raise ModelError(f"{folder}: the weights lack {listed(missing, 4)}, which {type(model).__name__} has")


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    line = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    says_enough = isinstance(error, OSError | ValueError) and line  # other errors are unclear without their type
    return (line if says_enough else f"{type(error).__name__}: {line}")[:_LINE]


def _size_of(model: Any) -> tuple[int, int]:
    """The width of a network, and its number of positions. RoBERTa and its kin start their position table after the
    padding's id; other tables may have unused rows."""
    width = int(getattr(model.config, "hidden_size", None) or model.get_input_embeddings().weight.shape[1])
    positions = getattr(model.config, "max_position_embeddings", None)
    longest = positions if isinstance(positions, int) and 0 < positions < UNBOUNDED else None
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and hasattr(module, "weight"):
            padding = getattr(module, "padding_idx", None)
            rows = len(module.weight) - (0 if padding is None else padding + 1)
            return width, rows if longest is None else min(rows, longest)
    return width, longest or LONGEST


def _layers_of(config: Any, width: int) -> tuple[int, int]:
    """The number of layers and their intermediate size; BERT's proportions where the configuration has none."""
    return int(getattr(config, "num_hidden_layers", 12)), int(getattr(config, "intermediate_size", 4 * width))


def _inputs_of(model: Any, folder: Path, *, pad_id: int, max_length: int | None) -> TransformersConfig:
    """The inputs of a network. A network with relative positions only (DeBERTa) takes any length: its longest input is
    the task's, else the tokenizer's, else 512."""
    arguments, config = inspect.signature(model.forward).parameters, model.config
    if "attention_mask" not in arguments:
        raise ModelError(f"{folder}: models of type {config.model_type!r} take no attention mask; use another model")
    types = getattr(config, "type_vocab_size", None) if "token_type_ids" in arguments else 1
    width, longest = _size_of(model)
    if getattr(config, "relative_attention", False) and not getattr(config, "position_biased_input", True):
        tokenizer_limit = read_side_file(folder / "tokenizer_config.json", optional=True).get("model_max_length")
        if not isinstance(tokenizer_limit, int | float) or not 0 < tokenizer_limit < UNBOUNDED:  # huge if unlimited
            tokenizer_limit = None
        longest = int(max_length or tokenizer_limit or LONGEST)
    return TransformersConfig(width, longest, types or 1, pad_id, int(config.vocab_size), *_layers_of(config, width))
