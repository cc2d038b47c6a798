"""What needs nothing but the standard library: dictionaries of lists, files, the command."""

import array
import copy
import os
import pickle
import signal
import subprocess
import sys
import time
import unittest
import warnings
from pathlib import Path

import headlong

from rows import QUICK, clicks, folder, write_csv

ROWS = clicks(4000)
MODEL = headlong.train(data=ROWS, label="clicked", **QUICK)


def command(*arguments, **options):
    program = Path(sys.executable).with_name("headlong")
    return subprocess.run([program, *arguments], capture_output=True, text=True, **options)


class Training(unittest.TestCase):
    def test_a_model_predicts_and_is_evaluated(self):
        self.assertGreater(MODEL.metrics["auc"], 0.75)
        self.assertIn("user", MODEL.settings)
        new = clicks(500, seed=1)
        found = MODEL.predict(new)
        self.assertIsInstance(found, array.array)
        self.assertEqual(len(found), 500)
        self.assertTrue(all(0 < probability < 1 for probability in found))
        metrics = MODEL.evaluate(new)
        self.assertEqual(metrics["samples"], 500)
        self.assertGreater(metrics["auc"], 0.75)
        del new["clicked"]
        self.assertEqual(MODEL.predict(new), found)

    def test_saved_copied_and_pickled_models_predict_the_same(self):
        new = clicks(50, seed=2)
        found = MODEL.predict(new)
        with folder() as scratch:
            MODEL.save(Path(scratch, "model"))
            self.assertEqual(headlong.load(Path(scratch, "model")).predict(new), found)
            with self.assertRaises(FileExistsError):
                MODEL.save(scratch)
            with self.assertRaisesRegex(headlong.Error, "elsewhere"):
                headlong.load(Path(scratch, "elsewhere"))
        self.assertEqual(pickle.loads(pickle.dumps(MODEL)).predict(new), found)
        self.assertEqual(copy.deepcopy(MODEL).metrics, MODEL.metrics)
        with folder() as empty:
            MODEL.save(empty)
            self.assertEqual(headlong.load(empty).predict(new), found)
        with folder() as scratch:
            MODEL.save(Path(scratch, "new", "model"))
            self.assertEqual(os.listdir(Path(scratch, "new")), ["model"])
            MODEL.save(Path(scratch, "model"))
            model = headlong.load(Path(scratch, "model"))
        with self.assertRaisesRegex(FileNotFoundError, "not there any more"):
            pickle.dumps(model)

    def test_a_damaged_older_checkpoint_is_passed_over_where_the_newest_is_asked_for(self):
        with folder() as scratch:
            settings = {"checkpoint_dir": scratch, "save_every": 20, "keep": 9}
            model = headlong.train(data=ROWS, label="clicked", **QUICK, **settings)
            steps = sorted(Path(scratch).glob("step-*"))
            self.assertGreater(len(steps), 1)
            for step in steps[:-1]:
                Path(step, "manifest.json").write_text("{}")
            with self.assertRaisesRegex(headlong.Error, "manifest.json"):
                headlong.load(scratch)
            newest = headlong.load(scratch, which="newest")
            self.assertEqual(pickle.loads(pickle.dumps(newest)).predict(ROWS), newest.predict(ROWS))
        with self.assertRaisesRegex(ValueError, "which: expected 'best' or 'newest'"):
            headlong.load(model._folder, which="last")

    def test_several_models_are_trained_as_the_command_does(self):
        model = headlong.train(data=ROWS, label="clicked", epochs=0.5, seeds=2)
        self.assertEqual(repr(model)[:26], "<headlong.Model: 2 models,")

    def test_a_configuration_is_a_dictionary_or_a_file(self):
        columns = {"label": "clicked", "dense": ["price"], "categorical": ["user", "page"]}
        config = {"data": {"columns": columns}, "tables": {"rows": [300, 30]}}
        config["train"] = {"batch_size": 64}
        model = headlong.train(config, ROWS, **{"model.dim": 4, "model.bottom": [8, 4]})
        start = model.events[0]
        self.assertEqual(start["config"]["model"]["dim"], 4)
        self.assertEqual(start["config"]["train"]["batch_size"], 64)
        with folder() as scratch:
            file = Path(scratch, "settings.toml")
            file.write_text(MODEL.settings)
            again = headlong.train(file, ROWS, **QUICK)
        self.assertEqual(again.events[-1]["weights_digest"], MODEL.events[-1]["weights_digest"])

    def test_a_callback_stops_training(self):
        seen = []

        def stop(event):
            seen.append(event["event"])
            return event["event"] != "step"

        model = headlong.train(
            data=ROWS, label="clicked", epochs=50, seeds=3, callbacks=stop, **{"train.log_every": 5}
        )
        self.assertEqual(seen[0], "start")
        self.assertEqual(model.events[-1]["reason"], "SIGTERM")
        self.assertEqual(model.num_models, 1)
        self.assertEqual(len(model.predict(ROWS)), 4000)

    def test_data_in_the_place_of_a_configuration_is_told(self):
        with self.assertRaisesRegex(TypeError, "config: expected a path .* found list; .*data="):
            headlong.train([ROWS], label="clicked")

    def test_an_event_is_a_callbacks_own(self):
        heard = []

        def spoil(event):
            event.clear()

        def hear(event):
            heard.append(dict(event))
            event.clear()

        model = headlong.train(data=ROWS, label="clicked", callbacks=[spoil, hear], **QUICK)
        self.assertEqual(heard[-1]["event"], "done")
        self.assertEqual(model.events[-1], heard[-1])

    def test_warnings_are_those_of_the_line_that_has_called(self):
        leaky = {**ROWS, "told": [2.5 * clicked for clicked in ROWS["clicked"]]}
        with self.assertWarnsRegex(UserWarning, "`told` alone tells the label") as warned:
            headlong.train(data=leaky, label="clicked", **QUICK)
        self.assertEqual(warned.filename, __file__)
        other = {**ROWS, "user": [-user for user in ROWS["user"]]}
        for apply in (MODEL.predict, MODEL.evaluate):
            with self.assertWarnsRegex(UserWarning, "user") as warned:
                apply(other)
            self.assertEqual(warned.filename, __file__)

    def test_nothing_is_said_aside(self):
        program = (
            "import headlong, rows, warnings\n"
            "warnings.simplefilter('ignore')\n"
            "clicks = rows.clicks(2000)\n"
            "clicks['told'] = [2.5 * clicked for clicked in clicks['clicked']]\n"
            "model = headlong.train(data=clicks, label='clicked', **rows.QUICK)\n"
            "model.evaluate({**clicks, 'user': [-1] * 2000})\n"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""))

    def test_an_error_in_a_callback_ends_training(self):
        def fail(event):
            raise ZeroDivisionError("in a callback")

        with self.assertRaisesRegex(ZeroDivisionError, "in a callback"):
            headlong.train(data=ROWS, label="clicked", epochs=50, callbacks=fail)

    def test_ctrl_c_saves_and_raises(self):
        program = (
            "import headlong, signal, sys, rows\n"
            # A job in the background ignores it, and so do its children.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "clicks = rows.clicks(4000)\n"
            "say = lambda event: print(event['event'], flush=True)\n"
            "settings = {'epochs': 2000, 'seeds': 1, 'threads': 1, 'train.log_every': 1}\n"
            "try:\n"
            "    headlong.train(data=clicks, label='clicked', checkpoint_dir=sys.argv[1],\n"
            "                   callbacks=say, patience=999, **settings)\n"
            "except KeyboardInterrupt:\n"
            "    sys.exit(7)\n"
        )
        with folder() as scratch:
            words = [sys.executable, "-c", program, scratch]
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
                while child.stdout.readline() != "step\n":
                    self.assertIsNone(child.poll())
                child.send_signal(signal.SIGINT)
                child.stdout.read()
            self.assertEqual(child.returncode, 7)
            model = headlong.load(scratch)
            self.assertEqual(len(model.predict(ROWS)), 4000)

    def test_other_threads_run_meanwhile(self):
        import threading

        beats = []
        is_over = threading.Event()

        def beat():
            while not is_over.wait(0.005):
                beats.append(time.perf_counter())

        thread = threading.Thread(target=beat)
        thread.start()
        began = time.perf_counter()
        headlong.train(data=ROWS, label="clicked", epochs=4, seeds=1)
        seconds = time.perf_counter() - began
        is_over.set()
        thread.join()
        self.assertGreater(len(beats), seconds / 0.005 / 10)


class Files(unittest.TestCase):
    def test_a_file_gives_the_weights_of_the_command(self):
        with folder() as scratch:
            file = Path(scratch, "clicks.csv")
            write_csv(ROWS, file)
            model = headlong.train(data=file, label="clicked", **QUICK)
            words = ["--auto", "--data", file, "--label", "clicked", "--epochs", "1"]
            words += ["--seeds", "1", "--threads", "1", "--checkpoint-dir", Path(scratch, "model")]
            run = command("train", *words, cwd=scratch)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn(model.events[-1]["weights_digest"], run.stdout)
            words = ["--checkpoint", Path(scratch, "model"), "--data", file, "--output", "-"]
            run = command("predict", *words, cwd=scratch)
            found = [float(line.split(",")[1]) for line in run.stdout.splitlines()[1:]]
            self.assertEqual(array.array("f", found), model.predict(file))

    def test_the_command_keeps_its_exit_codes(self):
        self.assertEqual(command("--version").stdout.strip(), f"headlong {headlong.__version__}")
        run = command("train", "--epoch", "2")
        self.assertEqual(run.returncode, 2)
        self.assertIn("--epochs", run.stderr)
        with folder() as scratch:
            # Each of two processes starts from the same wheel.
            words = ["launch", "-n", "2", "--", "train", "--set", "synthetic.train_rows=2_000"]
            run = command(*words, "--set", "synthetic.valid_rows=500", cwd=scratch)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn("2 ranks", run.stdout)


class Errors(unittest.TestCase):
    def refused(self, words, **arguments):
        with self.assertRaises(headlong.Error) as raised:
            headlong.train(**{"data": ROWS, "label": "clicked", **QUICK, **arguments})
        for word in words:
            self.assertIn(word, str(raised.exception))

    def test_what_is_wrong_is_named(self):
        self.refused(["clickd", "price"], label="clickd")
        self.refused(["many", "'epochs <X>'"], epochs="many")
        self.refused(["batch_size"], batch_size=-1)
        self.refused(["model.dimm", "model.dim"], **{"model.dimm": 4})
        self.refused(["absent.csv"], data="absent.csv")
        self.refused(["train.batch_size"], **{"train.batch_size": -1})
        self.refused(["`data`"], data=None)
        self.refused(["__arrow_c_stream__", "int"], data=3)
        self.refused(["data.columns.label"], config={})
        self.refused(["`resume`", "checkpoint_dir"], resume=True)
        for nothing in (None, []):
            with self.assertRaisesRegex(TypeError, "expected a data frame"):
                MODEL.predict(nothing)
        self.refused(["name a callback"], log_json="log.json")

    def test_rows_and_columns_are_named(self):
        def with_value(column, row, value):
            rows = {name: list(values) for name, values in ROWS.items()}
            rows[column][row] = value
            return rows

        columns = {"label": "clicked", "categorical": ["user"], "ignored": ["*"]}
        config = {"data": {"columns": columns}, "tables": {"rows": [300]}}
        for row, value in ((7, 2), (8, None), (9, float("nan"))):
            with self.assertRaisesRegex(headlong.Error, f"data: row {row}, column `clicked`"):
                headlong.train(config, with_value("clicked", row, value))
        self.refused(["clicked", "2"], data=with_value("clicked", 7, 2))
        self.refused(["row 9", "price", "inf"], data=with_value("price", 9, float("inf")))
        self.refused(["row 3", "user", "str"], data=with_value("user", 3, "seven"))
        self.refused(["row 3", "user", "64 bits"], data=with_value("user", 3, 10**30))
        self.refused(["row 0", "user", "dict"], data=with_value("user", 0, {}))
        self.refused(["at least one row"], data={name: [] for name in ROWS})
        self.refused(["`short`", "4000 values", "found 1"], data={**ROWS, "short": [1]})
        many = {f"n{at}": [1] for at in range(20_000)}
        self.refused(["at most 10000 columns, found 20000"], data=many)

    def test_odd_rows_are_read_or_refused(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for rows in (
                {name: values[:1] for name, values in ROWS.items()},
                {**ROWS, **{f"n{at}": ROWS["price"] for at in range(200)}},
                {**ROWS, "page": ["x" * 100_000 if at == 5 else "y" for at in range(4000)]},
                {**ROWS, "page": [None] * 4000},
                {**ROWS, "price": [float("nan")] * 4000},
                {**ROWS, "": ROWS["user"]},
                {"clicked": ROWS["clicked"]},
            ):
                try:
                    headlong.train(data=rows, label="clicked", **QUICK)
                except headlong.Error as error:
                    self.assertNotIn("mistake in Headlong", str(error))


class Importing(unittest.TestCase):
    def test_nothing_heavy_is_imported(self):
        program = "import headlong, sys; print(' '.join(sys.modules))"
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        heavy = {"numpy", "pandas", "polars", "pyarrow", "sklearn", "asyncio"}
        self.assertEqual(heavy & set(run.stdout.split()), set())
        self.assertTrue(os.path.exists(Path(headlong.__file__).with_name("py.typed")))


if __name__ == "__main__":
    unittest.main()
