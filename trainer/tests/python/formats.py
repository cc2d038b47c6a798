"""numpy's side of the format tests: `read FOLDER` checks what headlong wrote there, `write FOLDER`
writes what it is to read."""
import sys, pathlib
import numpy as np

folder = pathlib.Path(sys.argv[2])
text = [line.split("\t") for line in (folder / "a.txt").read_text().splitlines()]
labels = np.array([int(row[0]) for row in text])
integers = np.array([[int(value or 0) for value in row[1:14]] for row in text])
ids = np.array([[int(value or "0", 16) for value in row[14:40]] for row in text])
ROWS = 1000

if sys.argv[1] == "read":
    dense = np.log(np.maximum(integers, 0) + 1.0).astype(np.float32)
    assert np.array_equal(
        np.load(folder / "day_0_labels.npy"), labels.reshape(-1, 1).astype(np.int32)
    )
    found = np.load(folder / "day_0_dense.npy")
    assert found.dtype == np.float32 and np.allclose(found, dense, rtol=3e-7, atol=0), np.abs(
        found - dense
    ).max()
    assert np.array_equal(np.load(folder / "day_0_sparse.npy"), (ids % ROWS).astype(np.int32))
    records = np.fromfile(folder / "a.bin", dtype="<i4").reshape(-1, 40)
    assert np.array_equal(records[:, 0], labels)
    assert np.array_equal(records[:, 1:14], integers)
    assert np.array_equal(records[:, 14:].astype(np.uint32), ids)
    split = folder / "split" / "train"
    assert np.array_equal(np.fromfile(split / "label.bin", dtype=np.bool_), labels.astype(bool))
    half = np.fromfile(split / "numerical.bin", dtype=np.float16).reshape(-1, 13)
    assert np.allclose(half, dense, rtol=1e-3)
    assert np.array_equal(
        np.fromfile(split / "cat_25.bin", dtype=np.int16), (ids[:, 25] % ROWS).astype(np.int16)
    )
else:
    hotness = [1, 3, 2]
    rng = np.random.default_rng(0)
    np.save(folder / "day_1_labels.npy", labels.reshape(-1, 1).astype(np.int32))
    np.save(folder / "day_1_dense.npy", rng.random((len(labels), 13), dtype=np.float32))
    members = {
        str(t): rng.integers(0, ROWS, (len(labels), h), dtype=np.int32)
        for t, h in enumerate(hotness)
    }
    np.savez(folder / "day_1_sparse_multi_hot.npz", **members)
    # The same samples as HugeCTR's records, for headlong's own to be compared with.
    dense = np.load(folder / "day_1_dense.npy")
    columns = [labels.reshape(-1, 1).astype("<i4").view("<u4"), dense.view("<u4")]
    columns += [members[str(t)].astype("<u4") for t in range(len(hotness))]
    np.concatenate(columns, axis=1).tofile(folder / "expected.raw")
print("agreed")
