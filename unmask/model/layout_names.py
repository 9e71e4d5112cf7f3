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
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, get_args

import torch
from torch import Tensor

from unmask.core.errors import ModelError, SettingsError, UnsupportedError, shown
from unmask.core.settings import validated
from unmask.model.config import Activation, EncoderConfig, Layout
from unmask.model.heads import stored_heads

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


ClassifierPooling = Literal["mean", "first"]
"""What a whole text is told from: the mean of its tokens, or the first one."""
_THEIRS: dict[ClassifierPooling, str] = {"first": "cls", "mean": "mean"}


class ReadConfig(Protocol):
    """Reads a configuration."""

    def __call__(self, content: dict[str, Any], *, mask_id: int) -> EncoderConfig:
        """See `unmask.model.layout_names.read_config`."""


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

    def pooling_content(self, pooling: ClassifierPooling) -> dict[str, Any]:
        """What config.json says of a classifier's pooling.

        Raises:
            ModelError: The layout's classifier is the first token's.
        """
        if self.pooling_key is not None:
            return {self.pooling_key: _THEIRS[pooling]}
        if pooling != "first":
            raise ModelError("classifiers of this layout take the first token; pooling by the mean has no place in it")
        return {}

    def pooling_of(self, content: Mapping[str, Any], where: str) -> ClassifierPooling:
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


# ----------------------------------------
# The layouts of BERT's family: BERT, RoBERTa (also as XLM-R and CamemBERT), and RoBERTa with its norms before.
#
# What the family shares comes first, then each layout with its names and its config.json.

# Parts that stand in the same place in all of the family: our block, their layer.
_LAYER = {
    r"attention\.out": "attention.output.dense",
    r"mlp\.into": "intermediate.dense",
    r"mlp\.out": "output.dense",
}
_QKV = ("query", "key", "value")
# What a config.json must say: a decoder predicts no masked tokens, and transformers 5 passes over relative positions,
# so that another model would be run.
_MUST_BE = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
# What it says of the encoders that ours can be.
_OURS = {"tie_word_embeddings": True}
_DEFAULTS: dict[str, Any] = {
    **_MUST_BE,
    **_OURS,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}
_ACTIVATIONS = {"gelu_new": "gelu_pytorch_tanh", "swish": "silu"}  # other names of the same functions


def encoder_rows(root: str, *, attention_norm: str, mlp_norm: str) -> dict[str, tuple[str, ...]]:
    """The names of the encoder's weights.

    Args:
        root: The encoder's name, such as `bert`.
        attention_norm, mlp_norm: Where the norms of a layer stand.
    """
    rows: dict[str, tuple[str, ...]] = {
        r"encoder\.tokens": (f"{root}.embeddings.word_embeddings.weight",),
        r"encoder\.positions": (f"{root}.embeddings.position_embeddings.weight",),
        r"encoder\.token_types": (f"{root}.embeddings.token_type_embeddings.weight",),
    }
    layer = _LAYER | {r"attention_norm": attention_norm, r"mlp_norm": mlp_norm}
    for kind in ("weight", "bias"):
        rows[rf"encoder\.norm\.{kind}"] = (f"{root}.embeddings.LayerNorm.{kind}",)
        begin, end = r"encoder\.blocks\.(\d+)\.", rf"\.{kind}"
        for ours, theirs in layer.items():
            rows[begin + ours + end] = (f"{root}.encoder.layer.{{}}.{theirs}.{kind}",)
        rows[rf"{begin}attention\.qkv{end}"] = tuple(
            f"{root}.encoder.layer.{{}}.attention.self.{part}.{kind}" for part in _QKV
        )
    return rows


def write_family_config(config: EncoderConfig, *, architecture: str) -> dict[str, Any]:
    """The content of `config.json`.

    The dropout is written for the attention's probabilities too, as is usual, although it is not applied to them here.
    """
    ids = {"cls_token_id": config.cls_id, "sep_token_id": config.sep_id}
    return {
        "architectures": [architecture],
        "model_type": config.layout,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_act": config.activation,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "classifier_dropout": config.classifier_dropout,
        "max_position_embeddings": config.first_position + config.max_position_embeddings,
        "type_vocab_size": config.type_vocab_size,
        "initializer_range": config.initializer_range,
        "layer_norm_eps": config.norm_eps,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "pad_token_id": config.pad_id,
        **{name: value for name, value in ids.items() if value is not None},
        "mask_token_id": config.mask_id,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def read_family_config(
    content: dict[str, Any], *, layout: Layout, mask_id: int, first_position: int = 0
) -> EncoderConfig:
    """The configuration that a `config.json` stands for.

    Args:
        content: The file, parsed, of transformers 4 or 5, or ours; it says the padding's id.
        layout: Its layout.
        mask_id: From the tokenizer.
        first_position: The row of the position table that a segment's first token takes.

    Raises:
        UnsupportedError: It asks for a part that this encoder does not have.
        ModelError: It is no such encoder, lacks a key, or has a value that is not allowed.
    """
    content = {**_DEFAULTS, **content}
    activation = content["hidden_act"]
    of_classifier = content.get("classifier_dropout")  # null in most folders

    def values() -> dict[str, Any]:
        return {
            "layout": layout,
            "vocab_size": content["vocab_size"],
            "pad_id": content["pad_token_id"],
            "cls_id": content.get("cls_token_id"),
            "sep_id": content.get("sep_token_id"),
            "mask_id": mask_id,
            "num_layers": content["num_hidden_layers"],
            "hidden_size": content["hidden_size"],
            "num_heads": content["num_attention_heads"],
            "intermediate_size": content["intermediate_size"],
            "activation": _ACTIVATIONS.get(activation, activation) if isinstance(activation, str) else activation,
            "max_position_embeddings": _without(content["max_position_embeddings"], first_position),
            "norm_eps": content["layer_norm_eps"],
            "rotary": None,
            "type_vocab_size": content["type_vocab_size"],
            "dropout": content["hidden_dropout_prob"],
            "classifier_dropout": content["hidden_dropout_prob"] if of_classifier is None else of_classifier,
            "initializer_range": content["initializer_range"],
        }

    return read_values(content, must_be=_MUST_BE, ours=_OURS, values=values)


def _without(positions: Any, first: int) -> Any:
    """What is no number is an error further on."""
    return positions - first if isinstance(positions, int) else positions


def _write_bert_config(config: EncoderConfig) -> dict[str, Any]:
    return write_family_config(config, architecture="BertForMaskedLM")


def _read_bert_config(content: dict[str, Any], *, mask_id: int) -> EncoderConfig:
    return read_family_config({"pad_token_id": 0, **content}, layout="bert", mask_id=mask_id)


BERT = FolderLayout(
    names=Names(
        prefix="bert.",
        rows=encoder_rows("bert", attention_norm="attention.output.LayerNorm", mlp_norm="output.LayerNorm")
        | {
            r"head\.dense\.(weight|bias)": ("cls.predictions.transform.dense.{}",),
            r"head\.norm\.(weight|bias)": ("cls.predictions.transform.LayerNorm.{}",),
            r"head\.bias": ("cls.predictions.bias",),
            **stored_heads("bert"),
        },
        kept=("bert.pooler.", "cls.seq_relationship."),
        aliases={"cls.predictions.decoder.bias": "cls.predictions.bias"},
        known=("cls.predictions.decoder.weight", "bert.embeddings.position_ids"),
    ),
    write_config=_write_bert_config,
    read_config=_read_bert_config,
    pair_architecture="BertForPreTraining",
)


# RoBERTa: BERT's parts with other names, and positions that begin behind the padding's id.
def roberta_names(root: str, rows: dict[str, tuple[str, ...]]) -> Names:
    """The names of a RoBERTa, of the encoder's rows and the head's."""
    return Names(
        prefix=f"{root}.",
        rows=rows
        | {
            r"head\.dense\.(weight|bias)": ("lm_head.dense.{}",),
            r"head\.norm\.(weight|bias)": ("lm_head.layer_norm.{}",),
            r"head\.bias": ("lm_head.bias",),
            **stored_heads("roberta"),
        },
        kept=(f"{root}.pooler.",),
        aliases={"lm_head.decoder.bias": "lm_head.bias"},
        known=("lm_head.decoder.weight", f"{root}.embeddings.position_ids"),
        write_aliases=True,  # transformers 4.48 loses the bias (its own, too) where it stands only under one name
    )


def write_roberta_config(config: EncoderConfig, *, architecture: str) -> dict[str, Any]:
    """The content of `config.json`; the sequence's ends have names of their own here."""
    content = write_family_config(config, architecture=architecture)
    ends = {"bos_token_id": config.cls_id, "eos_token_id": config.sep_id}
    return content | {name: value for name, value in ends.items() if value is not None}


def read_roberta_config(content: dict[str, Any], *, layout: Layout, mask_id: int) -> EncoderConfig:
    """The configuration that a `config.json` stands for.

    Raises:
        UnsupportedError, ModelError: As for `read_family_config`.
    """
    defaults = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    content = {**defaults, **content}
    ends = {"cls_token_id": content["bos_token_id"], "sep_token_id": content["eos_token_id"]}
    pad = content["pad_token_id"]
    first = pad + 1 if isinstance(pad, int) else 0  # what is not a number is an error further on
    return read_family_config({**ends, **content}, layout=layout, mask_id=mask_id, first_position=first)


def _roberta_layout(layout: Layout, architecture: str) -> FolderLayout:
    """RoBERTa's network under the name of a model: transformers calls its weights `roberta` in all of them."""
    return FolderLayout(
        names=roberta_names(
            "roberta",
            encoder_rows("roberta", attention_norm="attention.output.LayerNorm", mlp_norm="output.LayerNorm"),
        ),
        write_config=partial(write_roberta_config, architecture=architecture),
        read_config=partial(read_roberta_config, layout=layout),
    )


ROBERTA = _roberta_layout("roberta", "RobertaForMaskedLM")
XLM_ROBERTA = _roberta_layout("xlm-roberta", "XLMRobertaForMaskedLM")
CAMEMBERT = _roberta_layout("camembert", "CamembertForMaskedLM")


# RoBERTa with norms before attention and MLP, and one behind the last block.
_ROOT = "roberta_prelayernorm"
ROBERTA_PRELAYERNORM = FolderLayout(
    names=roberta_names(
        _ROOT,
        encoder_rows(_ROOT, attention_norm="attention.LayerNorm", mlp_norm="intermediate.LayerNorm")
        | {r"encoder\.final_norm\.(weight|bias)": (f"{_ROOT}.LayerNorm.{{}}",)},
    ),
    write_config=partial(write_roberta_config, architecture="RobertaPreLayerNormForMaskedLM"),
    read_config=partial(read_roberta_config, layout="roberta-prelayernorm"),
)


# ----------------------------------------
# The ModernBERT layout: how a model is written so that transformers 4.48 and newer load it without remote code.

log = logging.getLogger("unmask")

NAMES = Names(
    prefix="model.",
    rows={
        r"encoder\.tokens": ("model.embeddings.tok_embeddings.weight",),
        r"encoder\.norm\.weight": ("model.embeddings.norm.weight",),
        r"encoder\.final_norm\.weight": ("model.final_norm.weight",),
        r"encoder\.blocks\.(\d+)\.attention_norm\.weight": ("model.layers.{}.attn_norm.weight",),
        r"encoder\.blocks\.(\d+)\.attention\.qkv\.weight": ("model.layers.{}.attn.Wqkv.weight",),
        r"encoder\.blocks\.(\d+)\.attention\.out\.weight": ("model.layers.{}.attn.Wo.weight",),
        r"encoder\.blocks\.(\d+)\.mlp_norm\.weight": ("model.layers.{}.mlp_norm.weight",),
        r"encoder\.blocks\.(\d+)\.mlp\.into\.weight": ("model.layers.{}.mlp.Wi.weight",),
        r"encoder\.blocks\.(\d+)\.mlp\.out\.weight": ("model.layers.{}.mlp.Wo.weight",),
        r"head\.dense\.weight": ("head.dense.weight",),
        r"head\.norm\.weight": ("head.norm.weight",),
        r"head\.bias": ("decoder.bias",),
        **stored_heads("modernbert"),
    },
    known=("decoder.weight",),
    shared=("head.dense.weight", "head.norm.weight"),
)
_MUST_BE_OF_MODERNBERT = {"position_embedding_type": "absolute"}
# What a config.json says of the encoders that ours can be.
_OURS_OF_MODERNBERT = {
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
    "tie_word_embeddings": True,
    "classifier_activation": "gelu",
}
_DEFAULTS_OF_MODERNBERT: dict[str, Any] = {
    **_MUST_BE_OF_MODERNBERT,
    **_OURS_OF_MODERNBERT,
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "initializer_range": 0.02,
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
    "mlp_dropout": 0.0,
    "classifier_dropout": 0.0,
}


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """The content of `config.json`. Both spellings of layer pattern and rotary settings are written: 4 and 5 differ."""
    full, sliding = "full_attention", "sliding_attention"
    rotary = config.rotary
    assert rotary is not None
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": "modernbert",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_activation": config.activation,
        "classifier_activation": "gelu",
        "classifier_pooling": "mean",
        "max_position_embeddings": config.max_position_embeddings,
        "initializer_range": config.initializer_range,
        "initializer_cutoff_factor": 2.0,
        "norm_eps": config.norm_eps,
        "norm_bias": False,
        "attention_bias": False,
        "attention_dropout": config.dropout,
        "mlp_bias": False,
        "mlp_dropout": config.dropout,
        "embedding_dropout": config.dropout,
        "classifier_bias": False,
        "classifier_dropout": config.classifier_dropout,
        "decoder_bias": True,
        "tie_word_embeddings": True,
        "local_attention": rotary.local_window,
        "global_attn_every_n_layers": rotary.global_every,
        "layer_types": [full if config.is_global(i) else sliding for i in range(config.num_layers)],
        "global_rope_theta": rotary.global_rope_theta,
        "local_rope_theta": rotary.local_rope_theta,
        "rope_parameters": {
            full: {"rope_type": "default", "rope_theta": rotary.global_rope_theta},
            sliding: {"rope_type": "default", "rope_theta": rotary.local_rope_theta},
        },
        "pad_token_id": config.pad_id,
        "cls_token_id": config.cls_id,
        "bos_token_id": config.cls_id,
        "sep_token_id": config.sep_id,
        "eos_token_id": config.sep_id,
        "mask_token_id": config.mask_id,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def read_config(content: dict[str, Any], *, mask_id: int) -> EncoderConfig:
    """The configuration that a `config.json` stands for.

    Args:
        content: The file, parsed; of transformers 4 or 5, or ours.
        mask_id: From the tokenizer; ModernBERT's configuration does not hold it.

    Raises:
        UnsupportedError: It asks for a part that this encoder does not have.
        ModelError: It lacks a key, or has a value that is not allowed.
    """
    content = {**_DEFAULTS_OF_MODERNBERT, **content}
    dropouts = [content[f"{part}_dropout"] for part in ("embedding", "attention", "mlp")]
    if any(rate != dropouts[0] for rate in dropouts):
        log.warning("config.json: dropout of embeddings, attention, MLP = %s; the highest is taken for all", dropouts)

    def values() -> dict[str, Any]:
        return {
            "layout": "modernbert",
            "vocab_size": content["vocab_size"],
            "pad_id": content["pad_token_id"],
            "cls_id": content["cls_token_id"],
            "sep_id": content["sep_token_id"],
            "mask_id": mask_id,
            "num_layers": content["num_hidden_layers"],
            "hidden_size": content["hidden_size"],
            "num_heads": content["num_attention_heads"],
            "intermediate_size": content["intermediate_size"],
            "activation": content["hidden_activation"],
            "max_position_embeddings": content["max_position_embeddings"],
            "norm_eps": content["norm_eps"],
            "rotary": {
                "global_every": _global_every(content),
                "local_window": content["local_attention"],
                "global_rope_theta": _theta(content, "full_attention", "global_rope_theta"),
                "local_rope_theta": _theta(content, "sliding_attention", "local_rope_theta"),
            },
            "dropout": _highest(dropouts),
            "classifier_dropout": content["classifier_dropout"],
            "initializer_range": content["initializer_range"],
        }

    return read_values(content, must_be=_MUST_BE_OF_MODERNBERT, ours=_OURS_OF_MODERNBERT, values=values)


def _highest(rates: list[Any]) -> Any:
    """What is no number is an error further on."""
    others = [rate for rate in rates if not isinstance(rate, int | float)]
    return others[0] if others else max(rates)


def _global_every(content: dict[str, Any]) -> Any:
    types = content.get("layer_types")
    if types is None:
        return content["global_attn_every_n_layers"]
    layers = content["num_hidden_layers"]
    if not isinstance(types, list) or (isinstance(layers, int) and len(types) != layers):
        raise ModelError(f"config.json: layer_types = {shown(types)} does not name a kind for each of {layers} layers")
    wanted = [kind == "full_attention" for kind in types]
    every = next((layer for layer, is_global in enumerate(wanted) if is_global and layer), max(1, len(types)))
    if wanted == [layer % every == 0 for layer in range(len(types))]:
        return every
    raise UnsupportedError(f"config.json: layer_types {shown(types)} is not 'every n-th layer is global'")


def _theta(content: dict[str, Any], kind: str, old_name: str) -> Any:
    parameters = content.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or not isinstance(own := parameters.get(kind) or {}, dict):
        raise ModelError(f"config.json: rope_parameters = {shown(parameters)} is no table with a table for {kind}")
    if not own:
        return content[old_name]
    if own.get("rope_type", "default") != "default":
        raise UnsupportedError(f"config.json: rope_type {shown(own['rope_type'])} is not supported, only 'default'")
    return own["rope_theta"]


MODERNBERT = FolderLayout(
    names=NAMES, write_config=write_config, read_config=read_config, pooling_key="classifier_pooling"
)
