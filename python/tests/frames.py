"""Data frames of polars, pandas and pyarrow, which are read where they are."""

import contextlib
import datetime
import io
import os
import re
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
        with self.assertRaisesRegex(headlong.Error, "data: header: expected a column `user`"):
            model.predict(TABLE.drop_columns("user"))

    def test_the_programs_of_the_pages_run(self):
        root, here = Path(__file__).parents[2], Path.cwd()
        for page in ("docs/python.md", "README.md"):
            programs = re.findall("```py\n(.*?)```", (root / page).read_text(), re.DOTALL)
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

    def test_what_cannot_be_read_is_left_out_or_named(self):
        day = datetime.date(2026, 1, 1)
        times = TABLE.append_column("day", [[day] * 3000])
        model = headlong.train(data=times, label="clicked", **QUICK)
        self.assertIn("dates", model.settings)
        config = {"data": {"columns": {"label": "clicked", "dense": ["day"]}}}
        config["data"]["columns"].update(categorical=["user"], ignored=["*"])
        config["tables"] = {"rows": [300]}
        with self.assertRaisesRegex(headlong.Error, "data: column `day`: expected .* found dates"):
            headlong.train(config, times)
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
                # The type of 128 bits is refused before a column is looked at.
                self.assertRegex(str(error), "odd|_pli128")
