"""Rows for the tests: clicks whose rate depends on the user, the page and the price."""

import math
import random
import tempfile
from pathlib import Path

#: Settings with which training takes a moment.
QUICK = {"epochs": 1, "seeds": 1, "threads": 1}


def clicks(count, seed=0):
    draw = random.Random(seed)
    rows = {"user": [], "page": [], "price": [], "clicked": []}
    for _ in range(count):
        user, page, price = draw.randrange(200), draw.randrange(20), draw.expovariate(0.1)
        rate = 1 / (1 + math.exp(-(user % 7 - 3) - (page % 5 - 2) + price / 10))
        rows["user"].append(10_000 + user)
        rows["page"].append(f"/page/{page}")
        rows["price"].append(price if draw.random() < 0.9 else None)
        rows["clicked"].append(int(draw.random() < rate))
    return rows


def folder():
    """An empty folder that goes with the object."""
    return tempfile.TemporaryDirectory(prefix="headlong-test-")


def write_csv(rows, file):
    def field(value):
        return "" if value is None else str(value)

    lines = [",".join(rows)] + [",".join(map(field, row)) for row in zip(*rows.values())]
    Path(file).write_text("\n".join(lines) + "\n")
