"""The classifier for scikit-learn."""

import pickle
import unittest

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

from headlong.sklearn import DLRMClassifier

from rows import clicks

ROWS = pandas.DataFrame(clicks(3000))
X, Y = ROWS.drop(columns="clicked"), numpy.where(ROWS["clicked"], "yes", "no")
QUICK = {"epochs": 1, "seeds": 1, "threads": 1}


class Classifier(unittest.TestCase):
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
