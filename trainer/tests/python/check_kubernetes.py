"""Holds manifests against the schemas that their projects publish.

    check_kubernetes.py FILE...

Unknown names are errors, too. Prints the kinds that were checked.
"""
import importlib
import sys

import kubernetes_validate
import yaml

# By kind, the module of Kubeflow's package (it carries the models of JobSet as well) and its class.
MODELS = {
    "JobSet": "jobset_v1alpha2_job_set.JobsetV1alpha2JobSet",
    "TrainingRuntime": "trainer_v1alpha1_training_runtime.TrainerV1alpha1TrainingRuntime",
    "TrainJob": "trainer_v1alpha1_train_job.TrainerV1alpha1TrainJob",
}


def lost(given, kept, path):
    """What a model did not take over: names that it does not know."""
    if isinstance(given, dict):
        for name, value in given.items():
            if not isinstance(kept, dict) or name not in kept:
                yield f"{path}.{name}"
            else:
                yield from lost(value, kept[name], f"{path}.{name}")
    elif isinstance(given, list):
        for index, (value, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(value, other, f"{path}[{index}]")


def jobs(document):
    """The jobs that a set of them is made of."""
    spec = document["spec"].get("template", document)["spec"]
    for replicated in spec["replicatedJobs"]:
        metadata = {"name": replicated["name"]}
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata,
               "spec": replicated["template"]["spec"]}


def check(document):
    kind = document["kind"]
    if kind in MODELS:
        module, name = MODELS[kind].split(".")
        model = getattr(importlib.import_module(f"kubeflow_trainer_api.models.{module}"), name)
        unknown = list(lost(document, model.from_dict(document).to_dict(), kind))
        assert not unknown, f"unknown: {unknown}"
    if kind in ("JobSet", "TrainingRuntime"):
        list(map(check, jobs(document)))
    if kind not in MODELS:
        newest = kubernetes_validate.latest_version()
        kubernetes_validate.validate(document, newest, strict=True)
    print(kind)


for file in sys.argv[1:]:
    with open(file) as text:
        list(map(check, yaml.safe_load_all(text)))
