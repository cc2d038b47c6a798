#!/usr/bin/env python3
"""Runs an exported ONNX file and compares its outputs with the predictions of `headlong predict`.

    check_onnx.py MODEL.onnx COLUMNS.json PREDICTIONS.csv

COLUMNS.json: {"name": [value per row, ...], ...}: numbers (null is a missing one), ids (null is a
missing one), or lists of ids. Prints the number of rows and the largest difference of two
probabilities and of two logits.
"""

import csv
import json
import sys

import numpy as np
import onnxruntime


def feed(kind, shape, values, missing, padding):
    if kind == "tensor(double)":
        return np.array([np.nan if value is None else value for value in values], np.float64)
    if len(shape) == 1:
        ids = [missing if value is None else value for value in values]
        return np.array(ids, np.uint64).view(np.int64)
    most = max([1] + [len(value) for value in values])
    return np.array([value + [padding] * (most - len(value)) for value in values], np.int64)


model, columns, predictions = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
about = session.get_modelmeta().custom_metadata_map
missing, padding = (int(about[f"headlong.{name}"]) for name in ("missing_id", "padding"))
with open(columns) as file:
    columns = json.load(file)
feeds = {
    one.name: feed(one.type, one.shape, columns[one.name], missing, padding)
    for one in session.get_inputs()
}
probability, logit = session.run(["probability", "logit"], feeds)
with open(predictions) as file:
    rows = list(csv.DictReader(file))
assert len(rows) == len(logit), f"{len(rows)} rows, {len(logit)} outputs"


def difference(name, found):
    return np.abs(found - np.array([float(row[name]) for row in rows])).max()


print(len(rows), difference("probability", probability), difference("logit", logit))
