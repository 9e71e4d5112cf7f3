"""Ways to break the folder of a model: each takes the folder and changes it; for tests and for `make fuzz`."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Break = Callable[[Path], None]
DEEP = "[" * 100_000
LONG = "9" * 5_000
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def change_json(folder: Path, name: str, **values: Any) -> None:
    file = folder / name
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    file.write_text(json.dumps(content | values), encoding="utf-8")


def write_text(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")


def change_weights(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    weights = {name: change(tensor).contiguous() for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def cut_weights(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def write_header(folder: Path, header: bytes, rest: bytes = b"") -> None:
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + rest)


def change_header(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes each tensor's entry in the header of the weights; the numbers stay."""
    content = (folder / WEIGHTS).read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    change({name: tensor for name, tensor in header.items() if name != "__metadata__"})
    write_header(folder, json.dumps(header).encode(), content[end:])


def overlap(tensors: dict[str, Any]) -> None:
    """Makes two tensors of the same size share the same bytes."""
    seen: dict[str, list[int]] = {}
    for tensor in tensors.values():
        tensor["data_offsets"] = seen.setdefault(str(tensor["shape"]), tensor["data_offsets"])


def enlarge(tensors: dict[str, Any]) -> None:
    for tensor in tensors.values():
        tensor["shape"] = [10**9, *tensor["shape"][1:]]


def change_tokenizer(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")


def flip(folder: Path, name: str = WEIGHTS, place: float = 0.75) -> None:
    """Flips a bit that leaves a float finite: the lowest one of a byte at a multiple of four."""
    content = bytearray((folder / name).read_bytes())
    content[int(len(content) * place) // 4 * 4] ^= 1
    (folder / name).write_bytes(content)


def _far(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["zzz"] = 2**31


def _outside(content: dict[str, Any]) -> None:
    content["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [2**31]


def _panic(content: dict[str, Any]) -> None:
    content["model"] = {
        "type": "BPE", "continuing_subword_prefix": "zzzzzzz", "vocab": {"a": 0, "b": 1, "ab": 2},
        "merges": [["a", "b"]], **dict.fromkeys(("dropout", "unk_token", "end_of_word_suffix")),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
    }  # fmt: skip


def settings(**values: Any) -> Break:
    return partial(change_json, name=CONFIG, **values)


# Of every layout; the keys are those of transformers.
CONFIGS: dict[str, Break] = {
    "a billion layers": settings(num_hidden_layers=10**9, n_layers=10**9),
    "no layers": settings(num_hidden_layers=-1, n_layers=-1),
    "a vocabulary of a billion": settings(vocab_size=10**9),
    "layers in quotes": settings(num_hidden_layers="2", n_layers="2"),
    "no heads": settings(num_attention_heads=0, n_heads=0),
    "an activation of 500 letters": settings(hidden_act="a" * 500, hidden_activation="a" * 500, activation="a" * 500),
    "type as a list": settings(model_type=[]),
    "nested deep": partial(write_text, name=CONFIG, text=DEEP),
    "a number of thousands of digits": partial(write_text, name=CONFIG, text=f'{{"model_type": {LONG}}}'),
    "a list": partial(write_text, name=CONFIG, text="[]"),
    "not UTF-8": lambda folder: (folder / CONFIG).write_bytes(b'{"model_type": "\xff"}') and None,
}
OURS: dict[str, Break] = {
    "eps of -1": settings(norm_eps=-1.0, layer_norm_eps=-1.0),
    "eps infinite": settings(norm_eps=float("inf"), layer_norm_eps=float("inf")),
    "padding below 0": settings(pad_token_id=-5),
    "a billion positions and layers": settings(max_position_embeddings=10**12),
}
FILES: dict[str, Break] = {
    "all NaN": partial(change_weights, change=lambda tensor: torch.full_like(tensor, float("nan"))),
    "8 bits": partial(change_weights, change=lambda tensor: tensor.to(torch.int8)),
    "cut off": cut_weights,
    "overlapping": partial(change_header, change=overlap),
    "a billion rows in the header": partial(change_header, change=enlarge),
    "a header nested deep": partial(write_header, header=DEEP.encode()),
    "a header longer than the file": lambda folder: (folder / WEIGHTS).write_bytes(b"\xff" * 64) and None,
    "no tensors": partial(write_header, header=b"{}"),
    "empty": partial(write_text, name=WEIGHTS, text=""),
    "an id of 2**31": partial(change_tokenizer, change=_far),
    "ids outside around a text": partial(change_tokenizer, change=_outside),
    "a panic of the library": partial(change_tokenizer, change=_panic),
    "a tokenizer nested deep": partial(write_text, name="tokenizer.json", text='{"model": ' + DEEP),
    "tokenizer settings nested deep": partial(write_text, name="tokenizer_config.json", text=DEEP),
}
TASKS: dict[str, Break] = {
    "labels as a list": settings(id2label=["a", "b"]),
    "labels without numbers": settings(id2label={"x": "a"}),
    "more labels than outputs": settings(id2label={str(number): "a" for number in range(5)}),
    "an unknown kind": settings(unmask_task={"kind": "x" * 500}),
    "columns as a list": settings(unmask_task={"kind": "classify", "columns": ["text"]}),
    "another head": settings(unmask_task={"kind": "answer"}),
    "a negative stride": settings(unmask_task={"kind": "answer", "stride": -1}),
    "architectures of numbers": settings(architectures=[5], unmask_task=None),
}
