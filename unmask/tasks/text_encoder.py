"""A model as a transformer for scikit-learn's pipelines."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import SettingsError
from unmask.tasks.embed import LongTexts
from unmask.tasks.loaded_model import Backend, Model, Precision, load

try:
    from sklearn.base import BaseEstimator, TransformerMixin
except ImportError:  # the constructor raises; `help(unmask)` and `from unmask import *` need the class to exist

    class BaseEstimator: ...  # type: ignore[no-redef]

    class TransformerMixin: ...  # type: ignore[no-redef]


class TextEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns texts into the vectors of `Model.embed`, in scikit-learn's pipelines: `make_pipeline(TextEncoder(folder),
    LogisticRegression())` is a text classifier.

    Nothing is learned: `fit` only loads the model, and `transform` loads it if `fit` was not called. Clones share a
    loaded model. Pickles, such as those for the processes of a grid search, hold its folder or name instead of its
    weights.

    Args:
        model: Folder of a model or a run, a name on the hub, or a model that `unmask.load` loaded.
        pooling: As for `Model.embed`, as are `normalize` and `long_texts`.
        precision: As for `unmask.load`; a loaded model keeps its own.

    Raises:
        SettingsError: scikit-learn is not installed.
    """

    _loaded: tuple[object, Model] | None = None  # source and model
    _graph: tuple[object, Backend] = None, "torch"  # folder and backend of a graph that was pickled

    def __init__(
        self,
        model: str | Path | Model,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        long_texts: LongTexts = "split",
        precision: Precision = "float32",
    ) -> None:
        if not hasattr(BaseEstimator, "get_params"):
            raise SettingsError("TextEncoder needs scikit-learn; install it with: pip install scikit-learn")
        self.model = model
        self.pooling = pooling
        self.normalize = normalize
        self.long_texts = long_texts
        self.precision = precision

    def fit(self, X: Any, y: Any = None) -> Self:
        """Loads the model and checks the arguments; texts and targets are ignored."""
        self._loaded = None
        self._model().embed_settings(pooling=self.pooling, normalize=self.normalize, long_texts=self.long_texts)
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Vectors [texts, hidden_size], float32, of a list, an array or a column of texts."""
        return self._model().embed(X, pooling=self.pooling, normalize=self.normalize, long_texts=self.long_texts)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """`textencoder0`, `textencoder1`, ..., one for each dimension of a vector."""
        name, width = type(self).__name__.lower(), self._model().embedder.encoder.width
        return np.array([f"{name}{n}" for n in range(width)], dtype=object)

    def _model(self) -> Model:
        if isinstance(self.model, Model):
            return self.model
        source = (self.model, self.precision)
        if self._loaded is None or self._loaded[0] != source:
            backend = self._graph[1] if self._graph[0] == self.model else "torch"
            self._loaded = source, load(self.model, precision=self.precision, backend=backend)
        return self._loaded[1]

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in super().__getstate__().items() if name != "_loaded"}
        if isinstance(self.model, Model):
            model = str(self.model.hub or self.model.folder)
            state |= {"model": model, "precision": self.model.precision, "_graph": (model, self.model.backend)}
        return state

    def __sklearn_clone__(self) -> Self:
        clone: Self = super(TextEncoder, copy(self)).__sklearn_clone__()  # `copy` drops weights, else copied deeply
        clone.model, clone.precision, clone._graph = self.model, self.precision, self._graph
        return clone

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = tags.no_validation = True
        tags.input_tags.two_d_array = tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []
        return tags
