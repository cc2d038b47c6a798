"""pyarrow's side of the format tests: `read FOLDER` checks Parquet and CSV that headlong wrote
there, `write FOLDER` writes what it is to read, `compare FOLDER` checks what headlong made of
that."""
import csv, pathlib, sys
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

folder = pathlib.Path(sys.argv[2])
text = [line.split("\t") for line in (folder / "a.txt").read_text().splitlines()]


def made():
    """A table of all kinds of columns: missing values, empty lists, words."""
    rng = np.random.default_rng(1)
    count = 5000
    lists = [rng.integers(0, 2**40, rng.integers(0, 4)).tolist() for _ in range(count)]
    return pa.table({
        "label": pa.array((np.arange(count) % 3 == 0).tolist(), pa.bool_()),
        "I1": pa.array(rng.random(count, dtype=np.float32)),
        "I2": pa.array([None if i % 7 == 0 else float(i) / 8 for i in range(count)], pa.float64()),
        "C1": pa.array([None if i % 5 == 0 else i * 3 for i in range(count)], pa.int32()),
        "C2": pa.array(lists, pa.list_(pa.uint64())),
        "C3": pa.array([str(i % 10) for i in range(count)], pa.string()),
    })


if sys.argv[1] == "read":
    table = pq.read_table(folder / "a.parquet")
    assert table.column("label").to_pylist() == [int(row[0]) for row in text]
    for column in range(13):
        wanted = [int(row[1 + column]) if row[1 + column] else None for row in text]
        assert table.column(f"I{column + 1}").to_pylist() == wanted
    for column in range(26):
        wanted = [int(row[14 + column], 16) if row[14 + column] else None for row in text]
        found = table.column(f"C{column + 1}")
        assert found.type == pa.uint64() and found.to_pylist() == wanted
    with open(folder / "a.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0][:2] == ["label", "I1"] and rows[0][-1] == "C26"
    hexadecimal = lambda row: (
        row[:14] + [str(int(value, 16)) if value else "" for value in row[14:]]
    )
    assert rows[1:] == [hexadecimal(row) for row in text]
    members = np.load(folder / "day_1_sparse_multi_hot.npz")
    table = pq.read_table(folder / "m.parquet")
    for column in range(3):
        wanted = members[str(column)]
        found = table.column(f"C{column + 1}").to_pylist()
        assert np.array_equal(np.array(found).reshape(wanted.shape), wanted)
    dense = np.load(folder / "day_1_dense.npy")
    found = np.stack([table.column(f"I{column + 1}").to_numpy() for column in range(13)], axis=1)
    assert found.dtype == np.float32 and np.array_equal(
        found.view(np.uint32), dense.view(np.uint32)
    )
elif sys.argv[1] == "write":
    pq.write_table(made(), folder / "w.parquet", compression="zstd", row_group_size=777)
else:
    table = made()
    with open(folder / "w.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [
        str(int(label)) for label in table.column("label").to_pylist()
    ]
    found = np.array([row["I1"] for row in rows], dtype=np.float32)
    assert np.array_equal(found.view(np.uint32), table.column("I1").to_numpy().view(np.uint32))
    assert [float(row["I2"]) for row in rows] == [
        value or 0.0 for value in table.column("I2").to_pylist()
    ]
    empty = lambda value: "" if value is None else str(value)
    assert [row["C1"] for row in rows] == [empty(value) for value in table.column("C1").to_pylist()]
    assert [row["C2"] for row in rows] == [
        "|".join(map(str, value)) for value in table.column("C2").to_pylist()
    ]
    assert [row["C3"] for row in rows] == table.column("C3").to_pylist()
print("agreed")
