"""What sentence-transformers asks of optimum when it loads a graph, in a few lines over onnxruntime.

Optimum wants an older transformers than these tests run with. The stand-in looks for the file where optimum does, gives
a graph what it asks for, and returns the output that optimum's class of the task returns.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import onnxruntime
import pytest
import torch
from transformers.modeling_outputs import ModelOutput


class ORTModel:
    """A graph that is called like a model of transformers."""

    output: ClassVar[str]
    loaded: ClassVar[list[Path]] = []

    def __init__(self, file: Path, config: Any) -> None:
        self.session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        self.config, self.device, self.dtype = config, torch.device("cpu"), torch.float32
        self._save_pretrained = None  # which is replaced

    @classmethod
    def from_pretrained(
        cls, folder: str, *, config: Any, export: bool, subfolder: str, file_name: str, **others: object
    ) -> ORTModel:
        assert not export, "the folder holds a graph, and no other is to be made"
        file = Path(folder) / subfolder / file_name
        cls.loaded.append(file)
        return cls(file, config)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        return_dict: bool = True,
    ) -> ModelOutput:
        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        given["token_type_ids"] = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        feeds = {value.name: given[value.name].numpy() for value in self.session.get_inputs()}
        found: np.ndarray = self.session.run([self.output], feeds)[0]
        return ModelOutput({self.output: torch.from_numpy(found)})

    __call__ = forward


class ORTModelForFeatureExtraction(ORTModel):
    output = "last_hidden_state"


class ORTModelForMaskedLM(ORTModel):
    output = "logits"


def put_in_place(patch: pytest.MonkeyPatch) -> list[Path]:
    """Stands in for optimum until the test is over; returns the files that are loaded from now on."""
    names = SimpleNamespace(
        ONNX_WEIGHTS_NAME="model.onnx",
        ORTModelForCausalLM=ORTModel,
        ORTModelForFeatureExtraction=ORTModelForFeatureExtraction,
        ORTModelForMaskedLM=ORTModelForMaskedLM,
        ORTModelForSequenceClassification=ORTModel,
    )
    for name, content in (("optimum", {}), ("optimum.onnxruntime", vars(names))):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(content)
        patch.setitem(sys.modules, name, module)
    patch.setattr(ORTModel, "loaded", [])
    return ORTModel.loaded
