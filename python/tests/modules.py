"""Modules of PyTorch, which predict as the program does. Of other packages only torch is there."""

import contextlib
import copy
import io
import os
import pickle
import random
import re
import unittest
from pathlib import Path

import torch

import headlong
import headlong.torch

from bare import command
from rows import folder, write_csv

ROWS = 10_000
SMALL = {"model.dim": 8, "model.bottom": [16, 8], "model.top": [16, 1], "threads": 1}


def films():
    """Films that were watched or not: numbers, ids, lists and times, each missing at times."""
    draw = random.Random(5)
    columns = ("watched", "age", "price", "film", "genres", "country", "seen_at")
    rows = {name: [] for name in columns}
    for _ in range(ROWS):
        # Above what signed integers hold, too; as text, since lists of Python end there.
        film = str(draw.randrange(300) * 61_489_146_912_365_173)
        genres = [f"g{draw.randrange(12)}" for _ in range(draw.randrange(4))]
        taste = int(film) % 3 == 0
        rows["watched"].append(int(draw.random() < 0.2 + 0.4 * taste + 0.1 * (len(genres) % 2)))
        rows["age"].append(draw.randrange(-4, 90) if draw.random() < 0.9 else None)
        rows["price"].append(draw.randrange(9000) / 100 if draw.random() < 0.8 else None)
        rows["film"].append(film if draw.random() < 0.95 else None)
        rows["genres"].append("|".join(genres))
        rows["country"].append(draw.choice(["NO", "SE", "7", "007", None]))
        second = 1_700_000_000 + draw.randrange(9_000_000)
        rows["seen_at"].append(second if draw.random() < 0.9 else None)
    return rows


FILMS = films()
COLUMNS = {"label": "watched", "categorical": ["film", "genres", "country"], "lists": ["genres"]}
NUMBERS = {**COLUMNS, "dense": ["age", "price"]}


def config(columns, tables, **sections):
    tables = {"max_ids_per_sample": 4, **tables}
    return {"data": {"columns": columns}, "tables": tables, **sections}


def trained(config, data=None, **overrides):
    settings = {**SMALL, "epochs": 1, "batch_size": 500, "learning_rate": 0.1, **overrides}
    return headlong.train(config, FILMS if data is None else data, progress=False, **settings)


def difference(model, data=None, source=None):
    """The largest one of two probabilities, of the module and of the program."""
    data = FILMS if data is None else data
    module = headlong.torch.load(source or model._folder)
    found, expected = module.predict(data), torch.tensor(model.predict(data))
    assert len(found) == len(expected) and float(expected.std()) > 0.01
    return float((found - expected).abs().max())


class Predictions(unittest.TestCase):
    def same(self, model, data=None):
        self.assertLess(difference(model, data), 1e-6)

    def test_bins_times_and_means_of_lists(self):
        column = [
            {"name": "age", "transform": "none", "bins": "ln2"},
            {"name": "price", "mean": 3.0, "scale": 0.7, "bins": "edges", "edges": [0.5, 42.0]},
            {"name": "seen_at", "parts": ["hour", "weekday"]},
        ]
        tables = {"rows": [500, 9, 40, 25, 8, 200, 6], "pooling": "mean"}
        self.same(trained(config(NUMBERS, tables, column=column)))

    def test_a_cross_network_a_dictionary_and_rows_of_bf16(self):
        columns = {**NUMBERS, "ignored": ["seen_at"]}
        model = {"interaction": "cross", "cross_layers": 2, "cross_rank": 8}
        tables = {"rows": "dictionary", "dtype": "bf16"}
        both = config(columns, tables, model=model)
        both["data"].update(ids="dictionary", min_count=30)
        with folder() as scratch:
            found = trained(both, output_dir=scratch)
        self.same(found)
        names = list(headlong.torch.load(found._folder).state_dict())
        self.assertEqual(names[:3], [f"emb_l.{table}.weight" for table in range(3)])
        for name in ("bot_l.2.bias", "cross.1.v.weight", "cross.0.w.bias", "top_l.0.weight"):
            self.assertIn(name, names)

    def test_vectors_side_by_side_without_numbers(self):
        columns = {**COLUMNS, "ignored": ["*"]}
        cat = config(columns, {"rows": [301, 7, 40]}, model={"interaction": "cat"})
        cat["data"]["ids"] = "modulo"
        self.same(trained(cat, **{"model.bottom": []}))

    def test_tables_of_raw_ids(self):
        table = [
            {"name": "C1", "kind": "hashed", "rows": 400, "options": {"min_count": 16}},
            {"name": "C2", "kind": "hashed", "rows": 5},
        ]
        columns = {**NUMBERS, "ignored": ["seen_at"]}
        model = trained(config(columns, {"rows": [400, 5, 40]}, table=table), seeds=2)
        # Ids without a row, too, and those that training has not seen.
        self.same(model)
        other = {**FILMS, "film": list(range(ROWS))}
        self.same(model, other)
        rows = headlong.torch.load(model._folder).models[0].emb_l[0].weight.shape[0]
        self.assertTrue(5 < rows < 300, rows)

    def test_admitted_ids_and_criteos_text(self):
        draw = random.Random(3)
        with folder() as scratch:
            file = Path(scratch, "rows.txt")
            lines = []
            for _ in range(ROWS):
                first = draw.randrange(40)
                fields = [str(int(draw.random() < (0.7 if first % 2 else 0.2)))]
                numbers = [str(draw.randrange(-2, 90)) for _ in range(13)]
                ids = [first] + [int(400 * draw.random() ** 3) for _ in range(25)]
                ids = [f"{one * 2654435769 % 2**32:08x}" for one in ids]
                fields += [one if draw.random() < 0.9 else "" for one in numbers + ids]
                lines.append("\t".join(fields))
            file.write_text("\n".join(lines) + "\n")
            for ids in ("admitted", "dictionary"):
                data = {"ids": ids, "min_count": 3, "format": "criteo"}
                model = trained({"data": data, "tables": {"rows": 500}}, file, output_dir=scratch)
                self.same(model, file)

    def test_an_ensemble_and_its_exported_file(self):
        columns = {**NUMBERS, "ignored": ["seen_at"]}
        model = trained(config(columns, {"rows": [500, 9, 40]}), seeds=3)
        self.same(model)
        with folder() as scratch:
            file = Path(scratch, "ensemble.pt")
            words = ["checkpoint", "export", model._folder, "--output", file]
            refused = command(*words)
            self.assertEqual(refused.returncode, 2)
            self.assertIn("ensemble.pt: expected a name that ends in .onnx", refused.stderr)
            run = command(*words, "--format", "torch")
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertLess(difference(model, source=file), 1e-6)
            content = file.read_bytes()
            for part in (b"", content[:7], content[:100], content[: len(content) // 2], b"[1]" * 9):
                file.write_bytes(part)
                with self.assertRaisesRegex(headlong.Error, "ensemble.pt: "):
                    headlong.torch.load(file)
            with self.assertRaises(FileNotFoundError):
                headlong.torch.load(Path(scratch, "absent"))

    def test_the_comparison_can_tell(self):
        columns = {**NUMBERS, "ignored": ["seen_at"]}
        models = [trained(config(columns, {"rows": [500, 9, 40]}), seed=seed) for seed in (1, 2)]
        self.assertGreater(difference(models[0], source=models[1]._folder), 1e-3)


class Module(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        columns = {**NUMBERS, "ignored": ["seen_at"]}
        cls.model = trained(config(columns, {"rows": [500, 9, 40]}))

    def load(self):
        return headlong.torch.load(self.model._folder)

    def test_it_is_trained_further(self):
        module, labels = self.load(), torch.tensor(FILMS["watched"]).float()
        inputs = module.inputs(FILMS)
        shapes = [tuple(one.shape) for one in inputs]
        self.assertEqual(shapes, [(ROWS, 2), (ROWS,), (ROWS, 3), (ROWS,)])
        optimizer = torch.optim.Adagrad(module.parameters(), lr=0.02)
        losses = []
        for _ in range(8):
            loss = nn_loss(module(*inputs), labels)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            self.assertTrue(all(one.grad is not None for one in module.parameters()))
            optimizer.step()
        self.assertLess(losses[-1], losses[0] - 0.005)
        again = self.load()
        again.load_state_dict(module.state_dict())
        self.assertTrue(torch.equal(again.predict(FILMS), module.predict(FILMS)))

    def test_it_is_copied_and_saved(self):
        module = self.load()
        found = module.predict(FILMS)
        stored = io.BytesIO()
        torch.save(module.state_dict(), stored)
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            self.assertTrue(torch.equal(other.predict(FILMS), found))
        part = {name: values[:10] for name, values in FILMS.items()}
        self.assertTrue(torch.allclose(module.predict(part, batch_size=3), found[:10], atol=1e-6))

    def test_what_is_wrong_is_named(self):
        module = self.load()
        with self.assertRaisesRegex(headlong.Error, "data: header: expected a column `film`"):
            module.predict({"age": [1], "price": [2.0]})
        for nothing in (None, []):
            with self.assertRaisesRegex(TypeError, "expected a data frame"):
                module.predict(nothing)
        with self.assertRaisesRegex(ValueError, "expected rows of 3 tables, found 1"):
            module(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))

    def test_the_programs_of_the_pages_run(self):
        page = (Path(__file__).parents[2] / "docs/python.md").read_text()
        programs = [one for one in re.findall("```py\n(.*?)```", page, re.DOTALL) if "torch" in one]
        self.assertTrue(programs)
        here = Path.cwd()
        with folder() as scratch:
            try:
                os.chdir(scratch)
                self.model.save("model")
                write_csv(FILMS, Path("films.csv"))
                with contextlib.redirect_stdout(io.StringIO()):
                    for program in programs:
                        exec(program, {})
            finally:
                os.chdir(here)


def nn_loss(logits, labels):
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)


if __name__ == "__main__":
    unittest.main()
