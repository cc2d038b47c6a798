"""What a user of each library writes to predict the clicks of `test.csv` from `train.csv`.

`compare.py` runs each in a process of its own and counts the lines of its body. Every library is
at its defaults: one learner, no search; with one thread, since threads that wait for each other
cost CPU seconds, too. It gets the names of columns of ids or words (`categories`); a list is a
category of its own, as text. Each gives probabilities, in the order of the rows.
"""
import json
import pathlib
import sys

import numpy as np


def lightgbm(train, test, label, categories):
    """LightGBM: columns of pandas' type `category`."""
    import lightgbm
    import pandas
    train, test = pandas.read_csv(train), pandas.read_csv(test)
    for name in categories:
        train[name] = train[name].astype("category")
        test[name] = pandas.Categorical(test[name], train[name].cat.categories)
    model = lightgbm.LGBMClassifier(n_jobs=1).fit(train.drop(columns=label), train[label])
    return model.predict_proba(test.drop(columns=label))[:, 1]


def catboost(train, test, label, categories):
    """CatBoost: 1,000 trees, with statistics of categories."""
    import catboost
    import pandas
    words = dict.fromkeys(categories, str)
    train = pandas.read_csv(train, dtype=words)
    test = pandas.read_csv(test, dtype=words)
    train[categories], test[categories] = train[categories].fillna(""), test[categories].fillna("")
    model = catboost.CatBoostClassifier(cat_features=categories, thread_count=1)
    model.fit(train.drop(columns=label), train[label])
    return model.predict_proba(test.drop(columns=label))[:, 1]


def logistic(train, test, label, categories):
    """Logistic regression of scikit-learn: a weight of each value, numbers standardised."""
    import pandas
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    train, test = pandas.read_csv(train), pandas.read_csv(test)
    numbers = [name for name in train if name != label and name not in categories]
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), categories),
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers))
    model = make_pipeline(columns, LogisticRegression(max_iter=1000)).fit(train, train[label])
    return model.predict_proba(test)[:, 1]


def main():
    name, folder, table, output = sys.argv[1:]
    folder = pathlib.Path(folder)
    facts = json.loads((folder / f"{table}.json").read_text())
    predictions = globals()[name](folder / f"{table}-train.csv", folder / f"{table}-test.csv",
                                  facts["label"], facts["categories"])
    np.save(output, predictions)


if __name__ == "__main__":
    main()
