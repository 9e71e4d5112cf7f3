"""README.md of a folder of graphs: how onnxruntime and TensorRT take them."""

from __future__ import annotations

from pathlib import Path

from unmask.exporting.onnx_graphs import OPSET, EmbedGraph, FillGraph
from unmask.using.embedding import EmbedSettings

_TEXT = """# ONNX graphs

Made by `unmask export`, opset {opset}, standard operations only. `tokenizer.json` and `config.json` are beside them, so
this folder can be used alone.

| file | outputs |
| --- | --- |
{files}

Inputs are {inputs}, each int64 of shape [batch, length]. Both axes are dynamic; the length goes up to {longest}. In
`attention_mask` a text's tokens are 1 and the padding behind them 0. Outputs at padding mean nothing.

`sentence_embedding` is {vectors}, as the model's folder says.

## onnxruntime

```python
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.enable_truncation({longest})
tokenizer.enable_padding(pad_id={pad}, pad_token={pad_token})
encoded = tokenizer.encode_batch(["one text", "another, longer text"])
feeds = {{
    "input_ids": np.array([text.ids for text in encoded]),
    "attention_mask": np.array([text.attention_mask for text in encoded]),{types}
}}
hidden, vectors = onnxruntime.InferenceSession("embed.onnx").run(None, feeds)
```

## TensorRT

TensorRT 10 reads graphs of this opset; give it the shapes to expect. Names end in `_quantized` where weights have
8 bits: these are for onnxruntime on CPUs, and TensorRT does not take them (their ranges are found at run time).

```
{trtexec}
```

`--fp16` rounds to half precision: compare some outputs with those of onnxruntime before relying on them. The same
graphs run on GPUs in onnxruntime with `providers=["TensorrtExecutionProvider", "CUDAExecutionProvider"]`.
"""


def write_readme(
    folder: Path,
    *,
    inputs: tuple[str, ...],
    max_length: int,
    graphs: tuple[str, ...],
    pad: tuple[int, str],
    settings: EmbedSettings,
) -> None:
    """Writes it.

    Args:
        folder: Of the graphs.
        inputs: Names of their inputs.
        max_length: Longest text in tokens.
        graphs: The files' names.
        pad: Id and name of the padding token.
        settings: How vectors are made.
    """
    outputs = {kind.file.removesuffix(".onnx"): kind.outputs for kind in (FillGraph, EmbedGraph)}
    shapes = {"logits": "batch, length, vocabulary", "last_hidden_state": "batch, length, hidden size"}
    lines = []
    for name in graphs:
        names = outputs[name.removesuffix(".onnx").removesuffix("_quantized")]
        told = (f"`{output}` [{shapes.get(output, 'batch, hidden size')}]" for output in names)
        lines.append(f"| `{name}` | {', '.join(told)} |")
    types = '\n    "token_type_ids": np.array([text.type_ids for text in encoded]),' if len(inputs) > 2 else ""
    vectors = {
        "mean": "the mean of a text's hidden states, special tokens included",
        "first": "the hidden state of a text's first token",
    }[settings.pooling]
    text = _TEXT.format(
        opset=OPSET,
        files="\n".join(lines),
        inputs=", ".join(f"`{name}`" for name in inputs),
        longest=max_length,
        pad=pad[0],
        pad_token=repr(pad[1]).replace("'", '"'),
        types=types,
        vectors=vectors + (", divided by its length" if settings.normalize else ""),
        trtexec=_trtexec(inputs, max_length),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def _trtexec(inputs: tuple[str, ...], max_length: int) -> str:
    lines = ["trtexec --onnx=embed.onnx --saveEngine=embed.plan --fp16"]
    for option, batch, length in (("min", 1, 1), ("opt", 8, max(1, max_length // 2)), ("max", 32, max_length)):
        shapes = ",".join(f"{name}:{batch}x{length}" for name in inputs)
        lines.append(f"    --{option}Shapes={shapes}")
    return " \\\n".join(lines)
