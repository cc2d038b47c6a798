"""Odd frames, each of which trains, or is refused by an exception that names what is odd.

They are made in a process of its own: a crash of the interpreter is a failure of that process.
"""

import subprocess
import sys
import unittest
from pathlib import Path

#: How many there are, at least.
FRAMES = 200
#: What an exception is about, where it is not about one column.
WHOLE = (
    "expected at least one row",
    "no column is left to learn from",
    "expected at most 10000 columns",
    "is there several times",
    "whole columns",
    "no rows can be held out",
    "at least one column to learn it from",
)


class Malformed(unittest.TestCase):
    def test_odd_frames_train_or_are_refused_by_name(self):
        words = [sys.executable, "-B", "-X", "faulthandler", __file__, "all"]
        run = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parent)
        self.assertEqual(run.returncode, 0, run.stdout[-3000:] + run.stderr[-3000:])
        trained, refused = map(int, run.stdout.split()[-2:])
        self.assertGreaterEqual(trained + refused, FRAMES)
        self.assertGreater(trained, 60)
        self.assertGreater(refused, 60)


def columns(rows):
    """Columns of every kind that Arrow has, with what each is called."""
    import datetime
    import decimal

    import pyarrow as pa

    day, moment = datetime.date(2026, 3, 7), datetime.datetime(2026, 3, 7, 13, 5)
    some = lambda value, other=None: [value if row % 3 else other for row in range(rows)]
    plain = [
        pa.array([row % 7 for row in range(rows)], kind)
        for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    ]
    floats = [pa.array([row / 7 for row in range(rows)], kind) for kind in ("float32", "float64")]
    infinite, nan = float("inf"), float("nan")
    words = [f"w{row % 5}" for row in range(rows)]
    yield from enumerate(plain + floats)
    yield "half", pa.array([1.5] * rows, "float16")
    yield "null", pa.nulls(rows)
    yield "all nan", pa.array([nan] * rows)
    yield "some nan", pa.array(some(1.5, nan))
    yield "infinite", pa.array(some(1.5, infinite))
    yield "minus infinite", pa.array(some(1.5, -infinite))
    yield "all infinite", pa.array([infinite] * rows)
    yield "huge", pa.array([1e308 * (row % 2) for row in range(rows)])
    yield "tiny", pa.array([5e-324 * (row % 9) for row in range(rows)])
    yield "extremes", pa.array(some(2**63 - 1, -(2**63)))
    yield "unsigned", pa.array(some(2**64 - 1, 0), "uint64")
    yield "truths", pa.array(some(True, False))
    yield "sparse truths", pa.array(some(True))
    yield "words", pa.array(words)
    yield "large words", pa.array(words, pa.large_string())
    yield "word views", pa.array(words, pa.string_view())
    yield "bytes", pa.array([b"\xff\x00" + bytes([row % 5]) for row in range(rows)])
    yield "byte views", pa.array([b"\xff"] * rows, pa.binary_view())
    yield "fixed bytes", pa.array([b"abcd"] * rows, pa.binary(4))
    yield "long words", pa.array(["x" * 200_000 if row == 1 else "y" for row in range(rows)])
    yield "control", pa.array(["\x1f|\x00\n,\""[row % 6 :] for row in range(rows)])
    yield "empty words", pa.array([""] * rows)
    yield "blank words", pa.array(some("  ", "\t"))
    yield "numbers as words", pa.array([str(row % 9) for row in range(rows)])
    yield "mixed words", pa.array(some("1.5", "red"))
    yield "sparse words", pa.array(some("a"))
    yield "keys", pa.array(words).dictionary_encode()
    yield "keys with nulls", pa.array(some("a")).dictionary_encode()
    indices = pa.array([row % 3 for row in range(rows)], "int8")
    yield "null among values", pa.DictionaryArray.from_arrays(indices, ["a", None, "b"])
    yield "numbers by keys", pa.DictionaryArray.from_arrays(indices, [1.5, 2.5, 3.5])
    yield "lists by keys", pa.DictionaryArray.from_arrays(indices, pa.array([["a"], [], None]))
    nothing = pa.DictionaryArray.from_arrays(pa.nulls(rows, "int8"), pa.array([], "string"))
    yield "keys of nothing", nothing
    yield "lists", pa.array([words[: row % 3] for row in range(rows)], pa.list_(pa.string()))
    yield "large lists", pa.array([[row % 5] for row in range(rows)], pa.large_list(pa.int16()))
    yield "sparse lists", pa.array(some([1, None, 3]), pa.list_(pa.int64()))
    yield "lists of floats", pa.array(some([nan, 1.5]), pa.list_(pa.float64()))
    yield "lists of infinities", pa.array(some([infinite]), pa.list_(pa.float64()))
    yield "empty lists", pa.array([[]] * rows, pa.list_(pa.string()))
    yield "lists of lists", pa.array([[[1]]] * rows)
    yield "lists of days", pa.array([[day]] * rows)
    yield "fixed lists", pa.array([[1, 2]] * rows, pa.list_(pa.int64(), 2))
    yield "list views", pa.array([[1]] * rows, pa.list_view(pa.int64()))
    yield "structures", pa.array([{"a": 1}] * rows)
    yield "no fields", pa.array([{}] * rows, pa.struct([]))
    yield "maps", pa.array([[("a", 1)]] * rows, pa.map_(pa.string(), pa.int64()))
    sparse = pa.UnionArray.from_sparse(pa.array([0] * rows, "int8"), [pa.array([1] * rows)])
    yield "unions", sparse
    yield "runs", pa.RunEndEncodedArray.from_arrays(pa.array([rows], "int32"), pa.array([3]))
    yield "days", pa.array(some(day))
    yield "days of 64 bits", pa.array(some(day, day), pa.date64())
    for unit in ("s", "ms", "us", "ns"):
        yield f"times {unit}", pa.array(some(moment), pa.timestamp(unit))
        yield f"zoned {unit}", pa.array(some(moment), pa.timestamp(unit, "Europe/Oslo"))
    yield "far times", pa.array(some(2**62, -(2**62)), pa.timestamp("s"))
    yield "times by keys", pa.array([moment] * rows).dictionary_encode()
    yield "clocks", pa.array([datetime.time(13, 5)] * rows)
    yield "durations", pa.array([datetime.timedelta(1)] * rows)
    yield "intervals", pa.array([(1, 2, 3)] * rows, pa.month_day_nano_interval())
    yield "decimals", pa.array([decimal.Decimal("1.50")] * rows)
    yield "wide decimals", pa.array([decimal.Decimal("1.5")] * rows, pa.decimal256(50, 1))
    yield "sliced", pa.array(words + words)[3 : 3 + rows]
    yield "sliced truths", pa.array([True, False, None] * rows)[5 : 5 + rows]
    yield "sliced lists", pa.array([words[:2], []] * rows)[7 : 7 + rows]


def frames():
    """What is trained on, and the words of which a refusal has one."""
    import pandas
    import polars
    import pyarrow as pa

    rows = 60
    label = pa.array([row % 2 for row in range(rows)])
    price = pa.array([row * 0.37 % 5 for row in range(rows)])
    for name, column in columns(rows):
        name = f"col {name}"
        table = pa.table({"clicked": label, "price": price, name: column})
        yield table, (name,)
        # A label, a weight and rows in several parts of such a column.
        yield pa.table({"clicked": column, "price": price}), ("clicked",)
        yield {"data": table, "weight": name}, (name,)
        parts = [table[:7], table[7:7], table[7:]]
        yield pa.concat_tables(parts), (name,)
    good = {"clicked": label, "price": price}
    odd = ("", " ", "\x00", "a\nb", "*", "ü", "price ", "label", "a" * 10_000, "--data", "[x]")
    for name in odd:
        yield pa.table({**good, name: price}), (name, "field", "column")
    yield pa.table([label, price, price], ["clicked", "price", "price"]), ("price",)
    yield pa.table([label, label, price], ["clicked", "clicked", "price"]), ("clicked",)
    yield pa.table(good)[:0], ()
    yield pa.table(good)[:1], ("clicked",)
    yield pa.table(good)[:2], ("clicked",)
    yield pa.table({}), ()
    yield pa.table({"clicked": label}), ()
    yield pa.table({"price": price}), ("clicked",)
    yield pa.table({**good, "clicked": pa.array([1] * rows)}), ("clicked",)
    yield pa.table([pa.array([1])] * 1_000_000, [str(at) for at in range(1_000_000)]), ()
    yield pa.table({**good, **{f"n{at}": price for at in range(1500)}}), ()
    numbers = {"clicked": label.to_pylist(), "price": price.to_pylist()}
    odd_values = ([{}], [[]], [object()], [1, "a"], [b"x"], [1j], [None], [10**40], [2.5, True])
    for odd in (*odd_values, "ab", 7):
        values = odd * rows if isinstance(odd, list) else odd
        values = values[:rows] if isinstance(values, list) else values
        yield {**numbers, "odd": values}, ("odd", "whole columns")
    yield {**numbers, "short": [1]}, ("short",)
    yield pandas.DataFrame({**numbers, "odd": [object()] * rows}), ("odd",)
    yield pandas.DataFrame({**numbers, "odd": [1, "a"] * (rows // 2)}), ("odd",)
    keys = pandas.Categorical(["a", None] * (rows // 2))
    yield pandas.DataFrame({**numbers, "odd": keys}), ("odd",)
    yield pandas.DataFrame({**numbers, "odd": pandas.date_range("2026", periods=rows)}), ("odd",)
    yield pandas.DataFrame({**numbers, 7: [1] * rows}), ("7",)
    yield polars.DataFrame(numbers).with_columns(odd=polars.lit(1).cast(polars.Int128)), ("odd",)
    yield polars.DataFrame(numbers).with_columns(odd=polars.lit(None)), ("odd",)
    yield polars.DataFrame(numbers).with_columns(odd=polars.Series([object()] * rows)), ("odd",)
    yield polars.DataFrame({**numbers, "odd": [[]] * rows}), ("odd",)
    yield polars.DataFrame(numbers).clear(), ()
    yield [pa.table(good), pa.table({"clicked": label})], ("price",)
    other = pa.table({"clicked": label, "price": pa.array(["x"] * rows)})
    yield [pa.table(good), other], ("price",)


def outcome(headlong, number, data, names):
    """Whether a frame trains, and what is wrong with how it is refused."""
    settings = {"label": "clicked", "epochs": 1, "seeds": 1, "threads": 1, "progress": False}
    arguments = data if isinstance(data, dict) and "data" in data else {"data": data}
    try:
        model = headlong.train(**arguments, **settings)
        assert len(model.predict(arguments["data"])) > 0
        return True, None
    except headlong.Error as error:
        text = str(error)
        is_named = any(name in text for name in names) or any(one in text for one in WHOLE)
        # An infinite number is in a row.
        is_infinite = any("infinite" in name and "all" not in name for name in names)
        is_placed = "row " in text or not is_infinite
        if is_named and is_placed and "mistake in Headlong" not in text:
            return False, None
        return False, f"frame {number}: {names} {text[:300]!r}"
    except Exception as error:
        return False, f"frame {number}: {names} {type(error)} {str(error)[:300]!r}"


def main():
    import concurrent.futures

    import headlong

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        work = [pool.submit(outcome, headlong, at, *one) for at, one in enumerate(frames())]
        outcomes = [one.result() for one in work]
    wrong = [text for _, text in outcomes if text is not None]
    if wrong:
        sys.exit("\n".join(wrong))
    trained = sum(is_trained for is_trained, _ in outcomes)
    print(trained, len(outcomes) - trained)


if __name__ == "__main__":
    # Without an argument it is the test, with one the process.
    if len(sys.argv) == 1:
        unittest.main()
    import warnings

    warnings.simplefilter("ignore")
    main()
