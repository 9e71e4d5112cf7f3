"""A model in scikit-learn's pipelines: the vectors of `embed`, and what scikit-learn asks of an estimator."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unmask
from tests.conftest import make_text
from unmask.core.errors import SettingsError

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

TEXTS = [line for line in make_text(20, seed=5).split("\n") if line][:24]
CLASSES = ["sea" if "sea" in text else "land" for text in TEXTS]


def test_vectors_are_those_of_embed(run: unmask.Run) -> None:
    pandas = pytest.importorskip("pandas")
    encoder = unmask.TextEncoder(run.folder / "model", pooling="first", normalize=True)
    expected = run.model.embed(TEXTS, pooling="first", normalize=True)
    assert (expected.dtype, expected.shape) == (np.float32, (len(TEXTS), 64))
    for texts in (TEXTS, np.array(TEXTS, dtype=object), np.array(TEXTS), pandas.Series(TEXTS, index=range(9, 33))):
        np.testing.assert_array_equal(encoder.fit_transform(texts), expected)
    names = encoder.get_feature_names_out()
    assert (len(names), names[0], names[63]) == (64, "textencoder0", "textencoder63")
    table = clone(encoder.set_output(transform="pandas")).fit_transform(pandas.Series(TEXTS, index=range(9, 33)))
    assert (list(table.columns), list(table.index)) == (list(names), list(range(9, 33)))
    encoder.set_output(transform="default").set_params(pooling="mean", normalize=False)
    np.testing.assert_array_equal(encoder.transform(TEXTS), run.model.embed(TEXTS))


def test_a_pipeline_with_a_classifier_is_searched_over(run: unmask.Run, tmp_path: Path) -> None:
    classifier = make_pipeline(unmask.TextEncoder(run.folder), LogisticRegression(C=100), memory=str(tmp_path))
    assert classifier.fit(TEXTS, CLASSES).score(TEXTS, CLASSES) > 0.9
    grid = {"textencoder__pooling": ["mean", "first"], "logisticregression__C": [1, 100]}
    search = GridSearchCV(classifier, grid, cv=2, error_score="raise").fit(np.array(TEXTS, dtype=object), CLASSES)
    assert len(search.cv_results_["params"]) == 4
    assert search.predict_proba(TEXTS[:3]).shape == (3, 2)


def test_a_loaded_model_is_shared_by_clones_and_is_its_folder_in_pickles(run: unmask.Run) -> None:
    model = unmask.load(run.folder, precision="bf16")
    encoder = unmask.TextEncoder(model, normalize=True).fit(TEXTS)
    vectors = encoder.transform(TEXTS)
    assert clone(encoder).get_params() == encoder.get_params()
    assert clone(encoder).model is model
    content = pickle.dumps(encoder)
    assert len(content) < 1000
    again = pickle.loads(content)
    assert again.get_params() == encoder.get_params() | {"model": str(model.folder), "precision": "bf16"}
    np.testing.assert_array_equal(again.transform(TEXTS), vectors)


def test_another_model_is_loaded_where_the_folder_changes(run: unmask.Run, model_copy: Path) -> None:
    encoder = unmask.TextEncoder(model_copy).fit(TEXTS)
    unmask.load(model_copy)  # it is whole
    (model_copy / "config.json").unlink()
    np.testing.assert_array_equal(encoder.transform(TEXTS), run.model.embed(TEXTS))
    with pytest.raises(unmask.ModelError):
        encoder.fit(TEXTS)
    np.testing.assert_array_equal(encoder.set_params(model=run.folder).transform(TEXTS), run.model.embed(TEXTS))


@pytest.mark.parametrize("wrong", [{"pooling": "least"}, {"long_texts": "drop"}, {"precision": "int4"}])
def test_wrong_arguments_are_said_by_fit(run: unmask.Run, wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        unmask.TextEncoder(run.folder, **wrong).fit(TEXTS)


LETTERS = str.maketrans("0123456789.-+", "aeioulmnrstvb")  # the tokenizer knows no digits


class RowEncoder(unmask.TextEncoder):
    """scikit-learn's checks give tables of numbers: rows are texts here, with a word of letters for each number."""

    def transform(self, X: Any) -> Any:
        if not hasattr(X, "__array__") and not isinstance(X, list):
            raise TypeError("sparse matrices are no texts")
        rows = [" ".join(f"{value:.6g}" for value in row) for row in np.asarray(X)]
        return super().transform([row.translate(LETTERS) for row in rows])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False
        return tags


def test_checks_of_scikit_learn(run: unmask.Run) -> None:
    expected = {"check_estimator_sparse_tag": "fit looks at no text, so it refuses none; transform does"}
    results = check_estimator(RowEncoder(str(run.folder)), expected_failed_checks=expected, on_fail=None, on_skip=None)
    failed = {each["check_name"]: each["exception"] for each in results if each["status"] == "failed"}
    assert failed == {}
    assert {each["check_name"] for each in results if each["status"] == "xfail"} == expected.keys()
    assert sum(each["status"] == "passed" for each in results) > 30


def test_without_scikit_learn_the_constructor_says_what_to_install(run: unmask.Run) -> None:
    """In a process of its own, which also shows that our models need no transformers."""
    code = f"""
import sys
sys.modules["sklearn"] = sys.modules["sklearn.base"] = None
from unmask import *
import unmask
try:
    unmask.TextEncoder("a")
except unmask.SettingsError as error:
    print(error)
unmask.load({str(run.folder)!r}).fill("[MASK]")
print("transformers" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install scikit-learn" in done.stdout
    assert done.stdout.endswith("False\n")
