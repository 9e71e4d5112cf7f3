"""How a layout is stored: the names of its weights, and its config.json, both in both directions.

The names are a table. A row says under which names a parameter of ours is stored; where it is stored in several parts
(queries, keys and values), they are stacked in our rows:

    encoder.blocks.3.attention.qkv.weight [3D, D]  <->  bert.encoder.layer.3.attention.self.query.weight [D, D]
                                                        ...key.weight, ...value.weight
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from unmask.core.errors import ModelError, SettingsError, UnsupportedError, shown
from unmask.core.settings import validated
from unmask.model.config import Activation, EncoderConfig, Layout
from unmask.model.heads import stored_heads

log = logging.getLogger("unmask")

Held = TypeVar("Held")


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
            shapes: The names and shapes of our parameters.
            where: The file, for the error's text.

        Returns:
            The parameters by our names, without those of the masked-language-model head where the weights have nothing
            of one, or only what a classifier shares with it.
        """
        ours = {}
        for name, theirs in self.find(shapes, weights, where=where).items():
            parts = [weights[part].to(torch.float32) for part in theirs]
            ours[name] = parts[0] if len(parts) == 1 else torch.cat(parts)  # which copies, and most weights are whole
            if not ours[name].sum().isfinite() and (number := int((~ours[name].isfinite()).sum())):
                raise ModelError(
                    f"{where}: {', '.join(theirs)} hold {number:,} values that are not finite (NaN or infinity), so "
                    "the model says nothing: its training has diverged, or the file is damaged; give another copy"
                )
        return ours

    def find(self, shapes: Mapping[str, torch.Size], stored: Mapping[str, Any], *, where: str) -> dict[str, list[str]]:
        """Under which names parameters are stored; as `from_transformers`, with tensors or `StoredTensor`s."""
        of_head = [name for name in shapes if name.startswith("head.") and name not in self.shared]
        has_head = not of_head or any(their in stored for name in of_head for their in self.theirs(name))
        names = {}
        for name, shape in shapes.items():
            if name.startswith("head.") and not has_head:
                continue
            names[name] = self.theirs(name)
            expected = (shape[0] // len(names[name]), *shape[1:])
            for theirs in names[name]:
                if theirs not in stored:
                    raise ModelError(f"{where}: the weights lack {theirs}, which the layout in config.json has")
                if tuple(stored[theirs].shape) != expected:
                    raise ModelError(
                        f"{where}: {theirs} has the shape {tuple(stored[theirs].shape)}, but config.json says "
                        f"{expected}"
                    )
        return names

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


ClassifierPooling = Literal["mean", "first"]  # of a classifier of whole texts: a name of `unmask.model.pooling`
_POOLING_NAMES: dict[ClassifierPooling, str] = {"first": "cls", "mean": "mean"}


@dataclass(frozen=True)
class FolderLayout:
    """What a model folder needs to know of a layout.

    Attributes:
        names: Of its weights.
        write_config: A configuration to the content of config.json.
        read_config: The content of config.json, of transformers 4 or 5, or ours, and `mask_id`, the tokenizer's, to a
            configuration. It raises UnsupportedError for parts that our encoder lacks, and ModelError where the content
            lacks a key or has a value that is not allowed.
        pair_architecture: transformers' class with a head for pairs; None where it has none.
        pooling_key: Where config.json says whether a classifier of texts is given the first token (`cls`) or the mean
            of all; None: it is the first token's.
    """

    names: Names
    write_config: Callable[[EncoderConfig], dict[str, Any]]
    read_config: Callable[..., EncoderConfig]
    pair_architecture: str | None = None
    pooling_key: str | None = None

    def pooling_content(self, pooling: ClassifierPooling) -> dict[str, Any]:
        """What config.json says of a classifier's pooling."""
        if self.pooling_key is not None:
            return {self.pooling_key: _POOLING_NAMES[pooling]}
        if pooling != "first":
            raise ModelError("classifiers of this layout take the first token; pooling by the mean has no place in it")
        return {}

    def pooling_of(self, content: Mapping[str, Any], where: str) -> ClassifierPooling:
        """A classifier's pooling; transformers' default is the first token."""
        name = "cls" if self.pooling_key is None else content.get(self.pooling_key, "cls")
        for pooling, theirs in _POOLING_NAMES.items():
            if theirs == name:
                return pooling
        raise ModelError(f"{where}: {self.pooling_key} = {shown(name)} is not supported, only cls or mean")


# ----------------------------------------
# config.json. Fields of `EncoderConfig`, and the keys that say the same.

_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "initializer_range": "initializer_range",
    "pad_id": "pad_token_id",
}
_BERT_KEYS = _KEYS | {
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "type_vocab_size": "type_vocab_size",
    "norm_eps": "layer_norm_eps",
}
_MODERNBERT_KEYS = _KEYS | {
    "activation": "hidden_activation",
    "norm_eps": "norm_eps",
    "max_position_embeddings": "max_position_embeddings",
    "classifier_dropout": "classifier_dropout",
    "cls_id": "cls_token_id",
    "sep_id": "sep_token_id",
}
_ACTIVATIONS = {"gelu_new": "gelu_pytorch_tanh", "swish": "silu"}  # other names of the same functions


def _check(content: Mapping[str, Any], expected: Mapping[str, Any], error: type[ModelError]) -> None:
    for key, value in expected.items():
        if content[key] != value:
            raise error(f"config.json: {key} = {shown(content[key])} is not supported, only {value!r}")


def _encoder_config(content: Mapping[str, Any], keys: Mapping[str, str], more: dict[str, Any]) -> EncoderConfig:
    values = {field: content[key] for field, key in keys.items()} | more
    known, activation = get_args(Activation), values["activation"]
    if isinstance(activation, str):
        values["activation"] = _ACTIVATIONS.get(activation, activation)
        if values["activation"] not in known:
            raise UnsupportedError(
                f"config.json: activation = {shown(activation)} is not supported, only {', '.join(map(repr, known))}"
            )
    return validated(EncoderConfig, values, where="config.json")


@contextmanager
def _config_errors() -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise ModelError(f"config.json: {error.args[0]} is missing") from error
    except ModelError:
        raise
    except SettingsError as error:
        raise ModelError(str(error)) from error
    except (TypeError, ValueError) as error:
        raise ModelError(f"config.json: {error}") from error


# ----------------------------------------
# BERT's family: BERT, RoBERTa (also as XLM-R and CamemBERT), and RoBERTa with its norms before.

# A decoder predicts no masked tokens; and transformers 5 ignores relative positions, so that another model would run.
_BERT_MUST_BE = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
_BERT_OURS = {"tie_word_embeddings": True}  # what our encoder can be; transformers runs the others
_BERT_DEFAULTS: dict[str, Any] = {
    **_BERT_MUST_BE,
    **_BERT_OURS,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}


def _encoder_rows(root: str, *, attention_norm: str, mlp_norm: str) -> dict[str, tuple[str, ...]]:
    """The names of the encoder's weights: `root` is the encoder's name, such as `bert`; norms stand in two places."""
    rows: dict[str, tuple[str, ...]] = {
        r"encoder\.tokens": (f"{root}.embeddings.word_embeddings.weight",),
        r"encoder\.positions": (f"{root}.embeddings.position_embeddings.weight",),
        r"encoder\.token_types": (f"{root}.embeddings.token_type_embeddings.weight",),
    }
    layer = {
        r"attention\.out": "attention.output.dense",
        r"mlp\.into": "intermediate.dense",
        r"mlp\.out": "output.dense",
        r"attention_norm": attention_norm,
        r"mlp_norm": mlp_norm,
    }
    for kind in ("weight", "bias"):
        rows[rf"encoder\.norm\.{kind}"] = (f"{root}.embeddings.LayerNorm.{kind}",)
        begin, end = r"encoder\.blocks\.(\d+)\.", rf"\.{kind}"
        for ours, theirs in layer.items():
            rows[begin + ours + end] = (f"{root}.encoder.layer.{{}}.{theirs}.{kind}",)
        rows[rf"{begin}attention\.qkv{end}"] = tuple(
            f"{root}.encoder.layer.{{}}.attention.self.{part}.{kind}" for part in ("query", "key", "value")
        )
    return rows


def _write_family_config(config: EncoderConfig, *, architecture: str) -> dict[str, Any]:
    """The dropout is written for the attention's probabilities too, as is usual, although ours leaves them whole."""
    ids = {"cls_token_id": config.cls_id, "sep_token_id": config.sep_id}
    if config.parts.positions_after_padding:  # RoBERTa's kind has names of its own for the sequence's ends
        ids |= {"bos_token_id": config.cls_id, "eos_token_id": config.sep_id}
    return {
        "architectures": [architecture],
        "model_type": config.layout,
        **{key: getattr(config, field) for field, key in _BERT_KEYS.items()},
        "attention_probs_dropout_prob": config.dropout,
        "classifier_dropout": config.classifier_dropout,
        "max_position_embeddings": config.first_position + config.max_position_embeddings,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        **{name: value for name, value in ids.items() if value is not None},
        "mask_token_id": config.mask_id,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def _read_family_config(
    content: dict[str, Any], *, layout: Layout, mask_id: int, first_position: int = 0
) -> EncoderConfig:
    """`first_position`: the row of the position table that a segment's first token takes."""
    content = {**_BERT_DEFAULTS, **content}
    _check(content, _BERT_MUST_BE, ModelError)
    _check(content, _BERT_OURS, UnsupportedError)
    with _config_errors():
        positions, of_classifier = content["max_position_embeddings"], content.get("classifier_dropout")
        more = {
            "layout": layout,
            "cls_id": content.get("cls_token_id"),
            "sep_id": content.get("sep_token_id"),
            "mask_id": mask_id,
            # What is no number is an error further on.
            "max_position_embeddings": positions - first_position if isinstance(positions, int) else positions,
            "rotary": None,
            "classifier_dropout": content["hidden_dropout_prob"] if of_classifier is None else of_classifier,
        }
        return _encoder_config(content, _BERT_KEYS, more)


def _read_bert_config(content: dict[str, Any], *, mask_id: int) -> EncoderConfig:
    return _read_family_config({"pad_token_id": 0, **content}, layout="bert", mask_id=mask_id)


def _read_roberta_config(content: dict[str, Any], *, layout: Layout, mask_id: int) -> EncoderConfig:
    content = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, **content}
    ends = {"cls_token_id": content["bos_token_id"], "sep_token_id": content["eos_token_id"]}
    pad = content["pad_token_id"]
    first = pad + 1 if isinstance(pad, int) else 0
    return _read_family_config({**ends, **content}, layout=layout, mask_id=mask_id, first_position=first)


_POST_NORMS = {"attention_norm": "attention.output.LayerNorm", "mlp_norm": "output.LayerNorm"}
BERT = FolderLayout(
    names=Names(
        prefix="bert.",
        rows=_encoder_rows("bert", **_POST_NORMS)
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
    write_config=partial(_write_family_config, architecture="BertForMaskedLM"),
    read_config=_read_bert_config,
    pair_architecture="BertForPreTraining",
)


def _roberta_layout(layout: Layout, architecture: str, root: str, rows: dict[str, tuple[str, ...]]) -> FolderLayout:
    names = Names(
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
    return FolderLayout(
        names=names,
        write_config=partial(_write_family_config, architecture=architecture),
        read_config=partial(_read_roberta_config, layout=layout),
    )


# transformers calls the weights `roberta` in the first three.
_ROBERTA_ROWS = _encoder_rows("roberta", **_POST_NORMS)
ROBERTA = _roberta_layout("roberta", "RobertaForMaskedLM", "roberta", _ROBERTA_ROWS)
XLM_ROBERTA = _roberta_layout("xlm-roberta", "XLMRobertaForMaskedLM", "roberta", _ROBERTA_ROWS)
CAMEMBERT = _roberta_layout("camembert", "CamembertForMaskedLM", "roberta", _ROBERTA_ROWS)
_ROOT = "roberta_prelayernorm"
ROBERTA_PRELAYERNORM = _roberta_layout(
    "roberta-prelayernorm",
    "RobertaPreLayerNormForMaskedLM",
    _ROOT,
    _encoder_rows(_ROOT, attention_norm="attention.LayerNorm", mlp_norm="intermediate.LayerNorm")
    | {r"encoder\.final_norm\.(weight|bias)": (f"{_ROOT}.LayerNorm.{{}}",)},
)


# ----------------------------------------
# ModernBERT, written so that transformers 4.48 and newer load it without remote code.

_MODERNBERT_MUST_BE = {"position_embedding_type": "absolute"}
_MODERNBERT_OURS = {  # what our encoder can be
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
    "tie_word_embeddings": True,
    "classifier_activation": "gelu",
}
_MODERNBERT_DEFAULTS: dict[str, Any] = {
    **_MODERNBERT_MUST_BE,
    **_MODERNBERT_OURS,
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "initializer_range": 0.02,
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
    "mlp_dropout": 0.0,
    "classifier_dropout": 0.0,
}


def _write_modernbert_config(config: EncoderConfig) -> dict[str, Any]:
    """Both spellings of layer pattern and rotary settings are written, since transformers 4 and 5 differ."""
    full, sliding, rotary = "full_attention", "sliding_attention", config.rotary
    assert rotary is not None
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": "modernbert",
        **{key: getattr(config, field) for field, key in _MODERNBERT_KEYS.items()},
        "classifier_pooling": "mean",
        "initializer_cutoff_factor": 2.0,
        **_MODERNBERT_OURS,
        **{f"{part}_dropout": config.dropout for part in ("attention", "mlp", "embedding")},
        "local_attention": rotary.local_window,
        "global_attn_every_n_layers": rotary.global_every,
        "layer_types": [full if config.is_global(i) else sliding for i in range(config.num_layers)],
        "global_rope_theta": rotary.global_rope_theta,
        "local_rope_theta": rotary.local_rope_theta,
        "rope_parameters": {
            full: {"rope_type": "default", "rope_theta": rotary.global_rope_theta},
            sliding: {"rope_type": "default", "rope_theta": rotary.local_rope_theta},
        },
        "bos_token_id": config.cls_id,
        "eos_token_id": config.sep_id,
        "mask_token_id": config.mask_id,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def _read_modernbert_config(content: dict[str, Any], *, mask_id: int) -> EncoderConfig:
    content = {**_MODERNBERT_DEFAULTS, **content}
    rates = [content[f"{part}_dropout"] for part in ("embedding", "attention", "mlp")]
    if any(rate != rates[0] for rate in rates):
        log.warning("config.json: dropout of embeddings, attention, MLP = %s; the highest is taken for all", rates)
    _check(content, _MODERNBERT_MUST_BE, ModelError)
    _check(content, _MODERNBERT_OURS, UnsupportedError)
    with _config_errors():
        more = {
            "layout": "modernbert",
            "mask_id": mask_id,
            "dropout": max(rates),
            "rotary": {
                "global_every": _global_every(content),
                "local_window": content["local_attention"],
                "global_rope_theta": _theta(content, "full_attention", "global_rope_theta"),
                "local_rope_theta": _theta(content, "sliding_attention", "local_rope_theta"),
            },
        }
        return _encoder_config(content, _MODERNBERT_KEYS, more)


def _global_every(content: dict[str, Any]) -> Any:
    types, layers = content.get("layer_types"), content["num_hidden_layers"]
    if types is None:
        return content["global_attn_every_n_layers"]
    if not isinstance(types, list) or (isinstance(layers, int) and len(types) != layers):
        raise ModelError(f"config.json: layer_types = {shown(types)} does not name a kind for each of {layers} layers")
    full = [kind == "full_attention" for kind in types]
    every = next((layer for layer, is_global in enumerate(full) if is_global and layer), max(1, len(types)))
    if full == [layer % every == 0 for layer in range(len(types))]:
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


_LAYER = r"encoder\.blocks\.(\d+)\."
MODERNBERT = FolderLayout(
    names=Names(
        prefix="model.",
        rows={
            r"encoder\.tokens": ("model.embeddings.tok_embeddings.weight",),
            r"encoder\.norm\.weight": ("model.embeddings.norm.weight",),
            r"encoder\.final_norm\.weight": ("model.final_norm.weight",),
            _LAYER + r"attention_norm\.weight": ("model.layers.{}.attn_norm.weight",),
            _LAYER + r"attention\.qkv\.weight": ("model.layers.{}.attn.Wqkv.weight",),
            _LAYER + r"attention\.out\.weight": ("model.layers.{}.attn.Wo.weight",),
            _LAYER + r"mlp_norm\.weight": ("model.layers.{}.mlp_norm.weight",),
            _LAYER + r"mlp\.into\.weight": ("model.layers.{}.mlp.Wi.weight",),
            _LAYER + r"mlp\.out\.weight": ("model.layers.{}.mlp.Wo.weight",),
            r"head\.dense\.weight": ("head.dense.weight",),
            r"head\.norm\.weight": ("head.norm.weight",),
            r"head\.bias": ("decoder.bias",),
            **stored_heads("modernbert"),
        },
        known=("decoder.weight",),
        shared=("head.dense.weight", "head.norm.weight"),
    ),
    write_config=_write_modernbert_config,
    read_config=_read_modernbert_config,
    pooling_key="classifier_pooling",
)
# A layout is named as transformers names it in `model_type`.
LAYOUTS: dict[Layout, FolderLayout] = {
    "modernbert": MODERNBERT,
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
    "roberta-prelayernorm": ROBERTA_PRELAYERNORM,
}
