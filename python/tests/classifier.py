"""The classifier for scikit-learn."""

import pickle
import unittest
import warnings

import numpy
import pandas
import polars
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from headlong.sklearn import DLRMClassifier

from rows import clicks

ROWS = pandas.DataFrame(clicks(3000))
X, Y = ROWS.drop(columns="clicked"), numpy.where(ROWS["clicked"], "yes", "no")
QUICK = {"epochs": 1, "seeds": 1, "threads": 1}


#: What `check_estimator` asks of a classifier and this one does not do, and why.
NOT_PASSED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a row of weight 0 teaches nothing, but has its place in a batch: the steps are others "
        "than those of fewer rows"
    ),
}


class Classifier(unittest.TestCase):
    def test_it_is_an_estimator_of_scikit_learn(self):
        # Rates and epochs for the few rows of the checks.
        settings = {"epochs": 40, "learning_rate": 0.1, "seeds": 1, "threads": 1}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = check_estimator(
                DLRMClassifier(**settings), on_fail=None, expected_failed_checks=NOT_PASSED
            )
        failed = {one["check_name"]: one["exception"] for one in found if one["status"] == "failed"}
        self.assertEqual(failed, {})
        self.assertGreater(sum(one["status"] == "passed" for one in found), 50)
        # What is passed after all is taken off the list.
        not_passed = {one["check_name"] for one in found if one["status"] == "xfail"}
        self.assertEqual(not_passed, set(NOT_PASSED))

    def test_weights_of_rows_count(self):
        ones = DLRMClassifier(**QUICK).fit(X, Y, sample_weight=numpy.ones(len(Y)))
        plain = DLRMClassifier(**QUICK).fit(X, Y)
        numpy.testing.assert_array_equal(ones.predict_proba(X), plain.predict_proba(X))
        heavy = numpy.where(Y == "yes", 1.8, 0.2)
        weighted = DLRMClassifier(**QUICK).fit(X, Y, sample_weight=list(heavy))
        more = weighted.predict_proba(X)[:, 1].mean() - plain.predict_proba(X)[:, 1].mean()
        self.assertGreater(more, 0.1)
        for bad, words in (
            (heavy[1:], "sample_weight: expected a number for each of 3000 rows"),
            (numpy.where(numpy.arange(3000) == 7, -1, 1), "sample_weight: row 7: .* found -1"),
            (numpy.where(numpy.arange(3000) == 8, numpy.nan, 1), "row 8: .* found nan"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                DLRMClassifier(**QUICK).fit(X, Y, sample_weight=bad)

    def test_it_learns_predicts_and_is_scored(self):
        model = DLRMClassifier(**QUICK).fit(X, Y)
        self.assertEqual(list(model.classes_), ["no", "yes"])
        self.assertEqual(list(model.feature_names_in_), ["user", "page", "price"])
        found = model.predict_proba(X)
        numpy.testing.assert_allclose(found.sum(axis=1), 1)
        self.assertGreater(roc_auc_score(Y == "yes", found[:, 1]), 0.75)
        self.assertEqual(model.score(X, Y), (model.predict(X) == Y).mean())
        numpy.testing.assert_array_equal(model.predict_proba(polars.from_pandas(X)), found)
        again = pickle.loads(pickle.dumps(model))
        numpy.testing.assert_array_equal(again.predict_proba(X), found)

    def test_its_parameters_are_read_set_and_cloned(self):
        model = clone(DLRMClassifier(epochs=2, settings={"model.dim": 4}).set_params(seed=7))
        self.assertEqual(model.get_params()["settings"], {"model.dim": 4})
        self.assertEqual((model.epochs, model.seed), (2, 7))
        with self.assertRaises(NotFittedError):
            model.predict(X)

    def test_it_is_a_part_of_pipelines_and_searches(self):
        pipeline = make_pipeline(FunctionTransformer(), DLRMClassifier(**QUICK))
        grid = {"dlrmclassifier__learning_rate": [1e-6, 0.02]}
        search = GridSearchCV(pipeline, grid, cv=2, scoring="roc_auc").fit(X, Y)
        self.assertEqual(search.best_params_, {"dlrmclassifier__learning_rate": 0.02})
        self.assertEqual(len(search.predict(X[:5])), 5)

    def test_arrays_have_columns_without_names(self):
        numbers = numpy.random.default_rng(0).normal(size=(2000, 3))
        classes = numbers @ [1, 2, -3] > 0
        model = DLRMClassifier(**{**QUICK, "epochs": 5}).fit(numbers, classes)
        self.assertIn("x2", model.model_.settings)
        self.assertGreater(model.score(numbers, classes), 0.9)
        with self.assertRaisesRegex(ValueError, "X has 2 features, but DLRMClassifier"):
            model.predict(numbers[:, :2])

    def test_other_classes_are_refused(self):
        for classes in (["a"] * 3000, ["a", "b", "c"] * 1000):
            with self.assertRaisesRegex(ValueError, "binary classification"):
                DLRMClassifier(**QUICK).fit(X, classes)
        with self.assertRaisesRegex(TypeError, "sparse"):
            DLRMClassifier(**QUICK).fit(scipy.sparse.dok_matrix((3000, 2)), Y)
        with self.assertRaisesRegex(ValueError, "inconsistent"):
            DLRMClassifier(**QUICK).fit(X, Y[1:])
