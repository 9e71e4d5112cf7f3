"""The part of a model's card that says how the model is used; a test runs its snippets."""

from __future__ import annotations

PLACE = "path/to/this/folder"

_USE = """In transformers, without remote code (`AutoModel` gives the encoder alone):

```python
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

folder = "{place}"
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForMaskedLM.from_pretrained(folder)
print(pipeline("fill-mask", model=model, tokenizer=tokenizer)("{mask}", top_k=3))
```

In sentence-transformers (the mean over the tokens):

```python
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("{place}").encode(["one text", "another"])
```

In unmask:

```python
import unmask

print(unmask.load("{place}").fill("{mask}", top_k=3).masks[0])
```

`unmask verify {place}` shows that all of these are the same model; `unmask export {place} --format onnx --out onnx`
writes graphs for onnxruntime and TensorRT."""


def how_to_use(mask_token: str) -> str:
    """Snippets for transformers, sentence-transformers and unmask.

    Args:
        mask_token: As the tokenizer spells it. It is the whole example text, since every model knows it.
    """
    return _USE.replace("{place}", PLACE).replace("{mask}", mask_token)
