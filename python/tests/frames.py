"""Data frames of polars, pandas and pyarrow, which are read where they are."""

import contextlib
import datetime
import io
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import numpy
import pandas
import polars
import pyarrow
import pyarrow.parquet

import headlong

from bare import command
from rows import QUICK, clicks, folder, write_csv

ROWS = {**clicks(3000), "genres": [["a", "b"][: row % 3] for row in range(3000)]}
TABLE = pyarrow.table(ROWS)


def digest(data, **overrides):
    model = headlong.train(data=data, label="clicked", **{**QUICK, **overrides})
    return model.events[-1]["weights_digest"]


class Frames(unittest.TestCase):
    def test_a_frame_gives_the_weights_of_the_command(self):
        with folder() as scratch:
            file = Path(scratch, "clicks.parquet")
            pyarrow.parquet.write_table(TABLE, file)
            for more in ([], ["--ranks", "4", "--batch-size", "64"], ["--set", "data.cache=off"]):
                # Without a cache, Parquet is read in one order only.
                order = ["--set", "data.order=sequential"] if "data.cache=off" in more else []
                words = ["--auto", "--data", file, "--label", "clicked", *more, *order]
                words += ["--epochs", "1", "--seeds", "1", "--threads", "1"]
                words += ["--checkpoint-dir", Path(scratch, str(len(more)))]
                run = command("train", *words, cwd=scratch)
                self.assertEqual(run.returncode, 0, run.stderr)
                overrides = {"ranks": 4, "batch_size": 64} if "--ranks" in more else {}
                if order:
                    overrides = {"data.cache": "off", "data.order": "sequential"}
                self.assertIn(digest(TABLE, **overrides), run.stdout)

    def test_all_frames_give_the_same_weights(self):
        expected = digest(TABLE)
        frame = polars.DataFrame(ROWS)
        halves = [frame[:1000], frame[1000:]]
        scattered = pandas.DataFrame(ROWS)
        scattered.index = range(3000, 0, -1)
        for same in (
            frame,
            frame.lazy(),
            halves,
            polars.concat(halves, rechunk=False),
            frame.with_columns(polars.col("page").cast(polars.Categorical)),
            frame.with_columns(polars.col("user").cast(polars.UInt32)),
            scattered,
            pyarrow.Table.from_batches(TABLE.to_batches(max_chunksize=77)),
            TABLE.set_column(1, "page", TABLE["page"].dictionary_encode()),
            TABLE.cast(TABLE.schema.set(1, pyarrow.field("page", pyarrow.large_string()))),
        ):
            self.assertEqual(digest(same), expected, type(same))

    def test_validation_rows_are_a_frame_of_their_own(self):
        model = headlong.train(data=TABLE[:2500], valid=TABLE[2500:], label="clicked", **QUICK)
        self.assertEqual(model.metrics["eval_samples"], 500)
        self.assertEqual(model.evaluate(TABLE[2500:])["auc"], model.metrics["auc"])

    def test_predictions_are_an_array_of_the_rows_in_their_order(self):
        model = headlong.train(data=TABLE, label="clicked", **QUICK)
        found = model.predict(polars.DataFrame(ROWS))
        self.assertEqual((found.dtype, found.shape), (numpy.float32, (3000,)))
        reverse = numpy.arange(2999, -1, -1)
        numpy.testing.assert_array_equal(model.predict(TABLE.take(reverse)), found[reverse])
        found[0] = 0.5
        # Of rows of which none has a list, polars does not know what would be in it.
        empty = polars.DataFrame({**ROWS, "genres": [[]] * 3000})
        self.assertEqual(len(model.predict(empty)), 3000)
        with self.assertRaisesRegex(headlong.Error, "data: header: expected a column `user`"):
            model.predict(TABLE.drop_columns("user"))

    def test_the_programs_of_the_pages_run(self):
        root, here = Path(__file__).parents[2], Path.cwd()
        for page in ("docs/python.md", "README.md"):
            programs = re.findall("```py\n(.*?)```", (root / page).read_text(), re.DOTALL)
            # Those are run where PyTorch is.
            programs = [program for program in programs if "torch" not in program]
            self.assertTrue(programs, page)
            with folder() as scratch, contextlib.redirect_stdout(io.StringIO()) as said:
                write_csv(clicks(9200), Path(scratch, "clicks.csv"))
                names = {}
                try:
                    os.chdir(scratch)
                    for program in programs:
                        exec(program, names)
                finally:
                    os.chdir(here)
            self.assertIn("0.", said.getvalue())

    def test_points_in_time_are_those_of_text(self):
        start = datetime.datetime(2026, 3, 1)
        moments = [start + datetime.timedelta(minutes=37 * row) for row in range(3000)]
        moments[5] = None
        # The rate follows the hour, so that it is found.
        clicked = [int(one is not None and one.hour % 3 == 0) for one in moments]
        base = TABLE.set_column(3, "clicked", pyarrow.array(clicked))
        texts = [None if one is None else one.isoformat() for one in moments]
        text = base.append_column("seen", [texts])
        model = headlong.train(data=text, label="clicked", **QUICK)
        self.assertRegex(model.settings, "# seen +time ")
        expected = model.events[-1]["weights_digest"]
        zoned = [one and one.replace(tzinfo=datetime.timezone.utc) for one in moments]
        for unit in ("s", "ms", "us", "ns"):
            for values, kind in (
                (moments, pyarrow.timestamp(unit)),
                (zoned, pyarrow.timestamp(unit, "Europe/Oslo")),
            ):
                same = base.append_column("seen", pyarrow.array(values, kind))
                self.assertEqual(digest(same), expected, kind)
        frame = polars.DataFrame(base).with_columns(seen=polars.Series(moments))
        self.assertEqual(digest(frame), expected)
        self.assertEqual(digest(base.to_pandas().assign(seen=pandas.Series(moments))), expected)
        columns = {**base.drop_columns("genres").to_pydict(), "seen": texts}
        same = {**columns, "seen": numpy.array(moments, "datetime64[s]")}
        self.assertEqual(digest(same), digest(columns))
        days = [one and one.date() for one in moments]
        digests = set()
        for of_day in (
            pyarrow.array(days, pyarrow.date32()),
            pyarrow.array(days, pyarrow.date64()),
            pyarrow.array([one and one.isoformat() for one in days]),
        ):
            columns = {"label": "clicked", "categorical": ["user"], "ignored": ["*"]}
            config = {"data": {"columns": columns}, "tables": {"rows": [300, 9]}}
            config["column"] = [{"name": "day", "parts": ["weekday"]}]
            model = headlong.train(config, base.append_column("day", of_day), epochs=1, threads=1)
            digests.add(model.events[-1]["weights_digest"])
        self.assertEqual(len(digests), 1)
        columns["dense"] = ["day"]
        del config["column"]
        config["tables"]["rows"] = [300]
        with self.assertRaisesRegex(headlong.Error, "column `day`: expected .*points in time"):
            headlong.train(config, base.append_column("day", pyarrow.array(days)))

    def test_weights_of_rows_are_a_column(self):
        ones = TABLE.append_column("often", pyarrow.array([1.0] * 3000))
        without = digest(ones, **{"data.columns.ignored": ["often"]})
        self.assertEqual(digest(ones, weight="often"), without)
        some = TABLE.append_column("often", pyarrow.array([2.0, 0.5] * 1500))
        self.assertNotEqual(digest(some, weight="often"), without)
        bad = TABLE.append_column("often", pyarrow.array([1.0] * 7 + [-1.0] + [1.0] * 2992))
        with self.assertRaisesRegex(headlong.Error, "column `often`: expected .*found -1"):
            digest(bad, weight="often")
        columns = {"label": "clicked", "categorical": ["user"], "ignored": ["*"]}
        config = {"data": {"columns": columns}, "tables": {"rows": [300]}}
        with self.assertRaisesRegex(headlong.Error, "row 7, column `often`: expected .*found -1"):
            headlong.train(config, bad, weight="often")

    def test_wide_frames_are_predicted_in_batches_that_fit(self):
        # The batch of training would take 10 GB here.
        program = (
            "import headlong, numpy, pyarrow, resource, warnings\n"
            "warnings.simplefilter('ignore')\n"
            "wide = {f'n{at}': numpy.linspace(0, at + 1, 200) for at in range(2000)}\n"
            "table = pyarrow.table({'clicked': [row % 2 for row in range(200)], **wide})\n"
            "model = headlong.train(data=table, label='clicked', epochs=1, seeds=1, threads=1)\n"
            "now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
            "resource.setrlimit(resource.RLIMIT_AS, (now + 2_000_000_000,) * 2)\n"
            "print(len(model.predict(table)), model.evaluate(table)['samples'])\n"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stdout), (0, "200 200\n"), run.stderr)

    def test_the_program_for_onnx_runs(self):
        page = (Path(__file__).parents[2] / "docs/formats.md").read_text()
        programs = re.findall("```python\n(.*?)```", page, re.DOTALL)
        program, = (program for program in programs if "onnx" in program)
        rows = {"watched": [0, 1] * 500, "price": [1.5, 2.5, 0.0, 9.25] * 250, "film": [3, 9] * 500}
        columns = {"label": "watched", "dense": ["price"], "categorical": ["film"]}
        config = {"data": {"columns": columns}, "tables": {"rows": [20]}}
        here = Path.cwd()
        with folder() as scratch, contextlib.redirect_stdout(io.StringIO()) as said:
            model = headlong.train(config, rows, epochs=1, threads=1)
            words = ["checkpoint", "export", model._folder, "--output", Path(scratch, "model.onnx")]
            self.assertEqual(command(*words).returncode, 0)
            try:
                os.chdir(scratch)
                exec(program, {})
            finally:
                os.chdir(here)
        self.assertIn("array", said.getvalue())

    def test_rows_without_any_value_are_predicted(self):
        model = headlong.train(data=TABLE, label="clicked", **QUICK)
        for name in set(ROWS) - {"clicked"}:
            rows = {of: values[:3] for of, values in ROWS.items()}
            missing = model.predict(polars.DataFrame({**rows, name: [None] * 3}))
            self.assertEqual(len(missing), 3)
            nothing = pandas.DataFrame({**rows, name: [None] * 3})
            self.assertEqual(model.predict(nothing).tolist(), missing.tolist())

    def test_a_report_takes_no_frame_for_a_file(self):
        with folder() as scratch:
            output, model = Path(scratch, "run"), Path(scratch, "run", "model")
            options = {**QUICK, "output_dir": output, "checkpoint_dir": model}
            headlong.train(data=TABLE, label="clicked", **options)
            write_csv(clicks(100), Path(scratch, "data"))
            run = command("report", "run", cwd=scratch)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn("validated on a data frame", (output / "report.html").read_text())

    def test_what_cannot_be_read_is_left_out_or_named(self):
        for odd in (
            TABLE.append_column("odd", pyarrow.array([{"a": 1}] * 3000)),
            TABLE.append_column("odd", pyarrow.array([[[1]]] * 3000)),
            TABLE.append_column("odd", pyarrow.nulls(3000)),
            TABLE.append_column("odd", pyarrow.array([b"\xff"] * 3000)),
            TABLE.append_column("odd", pyarrow.array([1.5] * 3000, pyarrow.float16())),
            polars.DataFrame(ROWS).with_columns(odd=polars.lit(None)),
            polars.DataFrame(ROWS).with_columns(odd=polars.lit(1).cast(polars.Int128)),
            polars.DataFrame(ROWS).with_columns(odd=polars.lit(datetime.timedelta(1))),
            polars.DataFrame(ROWS).with_columns(odd=polars.lit(2).cast(polars.Decimal(9, 2))),
        ):
            try:
                model = headlong.train(data=odd, label="clicked", **QUICK)
                self.assertIn("odd", model.settings)
            except headlong.Error as error:
                self.assertIn("odd", str(error))
        some = [1.5] * 8 + [-numpy.inf] + [2.5] * 2991
        infinite = TABLE.append_column("odd", pyarrow.array(some))
        with self.assertRaisesRegex(headlong.Error, "row 8, column `odd`: expected a number.*inf"):
            headlong.train(data=infinite, label="clicked", **QUICK)
