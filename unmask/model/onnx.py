"""Runs exported graphs in onnxruntime, in place of a folder's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.errors import ModelError, listed
from unmask.model.folder import read_config_file
from unmask.model.transformers import TransformersConfig, TransformersNetwork

ONNX = "onnx"  # the folder in which sentence-transformers and transformers.js look for a graph
# The only file names that they and optimum look for: a graph, and the graph with 8-bit weights
GRAPH_FILES = {"onnx": "model.onnx", "onnx-int8": "model_quantized.onnx"}


def open_session(file: Path) -> Any:
    """onnxruntime's session of a graph, with as many threads as torch. Raises a ModelError if it cannot be loaded."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(f"{file}: a graph needs onnxruntime: pip install 'unmask[onnx]'") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise _failed(file, "load", error) from error


def run_session(session: Any, file: Path, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of a graph by name. Entries of `inputs` that the graph does not have are ignored."""
    names = [output.name for output in session.get_outputs()]
    try:
        feeds = {spec.name: inputs[spec.name].contiguous().cpu().numpy() for spec in session.get_inputs()}
        return dict(zip(names, map(torch.from_numpy, session.run(names, feeds)), strict=True))
    except Exception as error:
        raise _failed(file, "run", error) from error


def _failed(file: Path, what: str, error: Exception) -> ModelError:
    line = str(error).partition("\n")[0]
    return ModelError(f"{file}: onnxruntime cannot {what} it ({line}); export the model again")


class OnnxGraph(nn.Module):
    """A graph with the interface of a transformers model."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file, self.session = file, open_session(file)
        self.place = nn.Parameter(torch.zeros(0), requires_grad=False)  # sets the device of inputs; the graph is on CPU

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        return_dict: bool = True,
    ) -> dict[str, Tensor]:
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": types}
        return run_session(self.session, self.file, inputs)


def find_graph(folder: Path, backend: str) -> Path:
    """The file of a graph in a folder that `unmask export` wrote."""
    file = folder / ONNX / GRAPH_FILES[backend]
    if not file.is_file():
        folders = sorted(str(path.parents[1]) for path in folder.rglob(f"{ONNX}/{file.name}"))
        int8 = " --int8" if backend == "onnx-int8" else ""
        way_out = f"give {listed(folders, 3)}" if folders else f"write it with unmask export --format onnx{int8}"
        raise ModelError(f"{file}: there is no such graph; {way_out}")
    return file


def load_onnx(file: Path, *, mask_id: int, pad_id: int) -> tuple[TransformersNetwork, str]:
    """The network of a graph, and the name of its first output: `logits`, `start_logits`, or `last_hidden_state` (no
    head)."""
    content, layout = read_config_file(file.parents[1])
    config = layout.read_config(content, mask_id=mask_id)
    inputs = TransformersConfig(
        config.hidden_size,
        config.max_position_embeddings,
        config.num_types,
        pad_id,
        config.vocab_size,
        config.num_layers,
        config.intermediate_size,
    )
    graph = OnnxGraph(file)
    output = graph.session.get_outputs()[0]
    width = output.shape[-1] if isinstance(output.shape[-1], int) else 2  # only answers have no fixed last axis
    return TransformersNetwork(graph, inputs, width=width, takes_padding=True).eval(), output.name
