"""Tables of clicks of six shapes, made from a seed, whose best possible AUC is known.

    python tables.py FOLDER --seed 1 [--only tiny drift]

Each table is a function that draws columns and the log-odds of a click; clicks are drawn from
those, so no model can do better, but by chance, than the probabilities they were drawn from. What
the log-odds are made of is what click logs are said to have: popularity by a power law, effects of
ids around those of the group they belong to, factors of pairs of ids, bends in numbers, missing
values. `NAME-train.csv` and `NAME-test.csv` are of one process; `NAME.json` tells which columns
are ids or words and which are lists, what a user would know, and the best AUC on the test rows.
"""
import argparse
import dataclasses
import json
import pathlib

import numpy as np
import pandas as pd

LABEL = "clicked"
TEST_ROWS = 20_000


@dataclasses.dataclass
class Drawn:
    """Columns, what a user would know of them, and the log-odds of a click up to a constant."""
    columns: dict
    logit: np.ndarray
    categories: list
    lists: list = dataclasses.field(default_factory=list)
    rate: float = 0.2


def power_law(random, rows, values, exponent):
    """Indices below `values`, the first the most frequent."""
    weights = 1.0 / np.arange(1, values + 1) ** exponent
    return random.choice(values, rows, p=weights / weights.sum())


def grouped(random, values, groups, spread):
    """A group of each value, and effects of values around those of their groups."""
    group = random.integers(0, groups, values)
    return group, random.normal(0, spread, groups)[group] + random.normal(0, spread, values)


def factors(random, values, size, spread):
    """A vector of each value, the products of two of which have this spread."""
    return random.normal(0, np.sqrt(spread) / size ** 0.25, (values, size))


def words(random, prefix, values):
    """As many different words."""
    return np.array([f"{prefix}{v:x}" for v in random.choice(16 ** 6, values, replace=False)])


def numbers_as_ids(random, values):
    """As many different whole numbers with gaps, in no order."""
    return random.choice(values * 50, values, replace=False) + 1


def no_integers(random, rows):
    """Adverts on sites: words and numbers with fractions, some missing."""
    site, device, campaign = (power_law(random, rows, v, e) for v, e in
                              [(800, 1.0), (1500, 1.1), (300, 0.8)])
    country, browser = power_law(random, rows, 60, 1.2), power_law(random, rows, 12, 1.0)
    section, of_site = grouped(random, 800, 26, 0.4)
    _, of_device = grouped(random, 1500, 40, 0.25)
    section = section[site]
    price = np.exp(random.normal(0.5, 1.0, rows))
    visible, score = random.beta(2, 1.5, rows), random.normal(0, 1, rows)
    age = random.gamma(1.5, 4.0, rows)
    logit = (of_site[site] + of_device[device] + random.normal(0, 0.4, 300)[campaign]
             + random.normal(0, 0.3, 60)[country] + random.normal(0, 0.2, 12)[browser]
             + (factors(random, 300, 4, 0.5)[campaign] * factors(random, 26, 4, 0.5)[section]
                ).sum(1)
             + 0.9 * np.tanh(4 * (visible - 0.5)) - 0.25 * np.log(price) * (1 + (country < 3))
             + 0.4 * score + 0.3 * score * (section % 2) - 0.15 * np.sqrt(age))
    columns = {
        "site": words(random, "s", 800)[site], "section": words(random, "x", 26)[section],
        "device": words(random, "d", 1500)[device], "country": words(random, "l", 60)[country],
        "browser": words(random, "b", 12)[browser], "campaign": words(random, "c", 300)[campaign],
        "price": price.round(3), "visible": visible.round(4),
        "score": np.where(random.random(rows) < 0.1, np.nan, score.round(4)),
        "age": age.round(2),
    }
    return Drawn(columns, logit, ["site", "section", "device", "country", "browser", "campaign"])


def all_integers(random, rows):
    """Offers in a shop: ids, hours, counts and amounts, every one a whole number."""
    user, item, shop = (power_law(random, rows, v, e) for v, e in
                        [(4000, 0.8), (2000, 0.9), (150, 0.7)])
    kind, of_item = grouped(random, 2000, 20, 0.4)
    hour, day = random.integers(0, 24, rows), random.integers(0, 7, rows)
    age = np.clip(random.normal(40, 14, rows), 18, 90).astype(int)
    visits = random.negative_binomial(0.7, 0.03, rows)
    cents = np.exp(random.normal(7.5, 0.9, 2000)[item] + random.normal(0, 0.15, rows)).astype(int)
    since = random.geometric(0.05, rows)
    logit = (random.normal(0, 0.5, 4000)[user] + of_item[item] + random.normal(0, 0.3, 150)[shop]
             + (factors(random, 4000, 4, 0.6)[user] * factors(random, 2000, 4, 0.6)[item]).sum(1)
             + 0.3 * np.sin((hour - 14) / 24 * 2 * np.pi) + 0.2 * (day >= 5)
             - ((age - 35) / 25) ** 2 * np.linspace(0, 0.8, 20)[kind[item]]
             + 0.25 * np.log1p(visits) - 0.35 * np.log(cents) - 0.4 * (since > 14)
             - 0.3 * (since > 45))
    columns = {
        "user": numbers_as_ids(random, 4000)[user], "item": numbers_as_ids(random, 2000)[item],
        "shop": shop + 1, "hour": hour, "weekday": day, "age": age, "visits": visits,
        "price_cents": cents, "days_since": since,
    }
    return Drawn(columns, logit, ["user", "item", "shop", "hour", "weekday"])


def lists(random, rows):
    """Articles with tags, and what the reader read before: both are lists of some length."""
    user = power_law(random, rows, 3000, 0.9)
    topic_of = random.integers(0, 12, 300)
    by_topic = [np.flatnonzero(topic_of == topic) for topic in range(12)]
    taste = random.dirichlet(np.full(12, 0.4), 3000)
    of_tag, of_user = random.normal(0, 0.4, 300), random.normal(0, 0.6, 3000)
    user_factors, tag_factors = factors(random, 3000, 4, 0.7), factors(random, 300, 4, 0.7)
    tags, read, logit = [], [], np.zeros(rows)
    for row in range(rows):
        topic = by_topic[random.integers(0, 12)]
        tag = np.unique(np.append(random.choice(topic, random.integers(1, 4)),
                                  random.integers(0, 300, random.integers(0, 2))))
        liked = random.choice(12, random.integers(0, 5), p=taste[user[row]])
        before = [by_topic[t][random.integers(0, len(by_topic[t]))] for t in liked]
        tags.append("|".join(f"t{t}" for t in tag))
        read.append("|".join(f"t{t}" for t in before))
        logit[row] = (of_tag[tag].sum() + user_factors[user[row]] @ tag_factors[tag].mean(0)
                      + 1.2 * np.isin(topic_of[before], topic_of[tag]).any())
    length, age = np.exp(random.normal(6, 0.8, rows)), random.integers(16, 85, rows)
    logit += of_user[user] - 0.3 * np.log(length) - 0.0006 * (age - 45) ** 2
    columns = {"reader": words(random, "r", 3000)[user], "tags": tags, "read_before": read,
               "length": length.round(1), "age": age}
    return Drawn(columns, logit, ["reader", "tags", "read_before"], ["tags", "read_before"])


def drift(random, rows):
    """News in order of time: items come and go, effects and the mean wander; the test is later."""
    time = np.sort(random.random(rows))
    user, place = power_law(random, rows, 2500, 0.8), power_law(random, rows, 40, 0.8)
    born = np.sort(random.uniform(-0.1, 1, 1500))
    youngest = np.searchsorted(born, time)
    item = np.maximum(youngest - 1 - random.exponential(120, rows).astype(int), 0)
    kind, of_item = grouped(random, 1500, 15, 0.4)
    steps = np.cumsum(random.normal(0, 0.08, (60, 15)), axis=0)
    wander = steps[(time * 59.99).astype(int), kind[item]]
    seconds = (1_790_000_000 + time * 60 * 86_400).astype(int)
    hour, day = seconds // 3600 % 24, seconds // 86_400 % 7
    price, rank = random.gamma(2, 10, rows), random.geometric(0.15, rows)
    logit = (random.normal(0, 0.6, 2500)[user] + of_item[item] + wander + 0.5 * time
             + random.normal(0, 0.3, 40)[place] - 0.8 * np.log1p(rank)
             + (factors(random, 2500, 3, 0.5)[user] * factors(random, 15, 3, 0.5)[kind[item]]
                ).sum(1)
             + 0.3 * np.sin(hour / 24 * 2 * np.pi) - 0.02 * np.abs(price - 18)
             - 6 * np.maximum(time - born[item], 0))
    columns = {
        "timestamp": seconds, "user": words(random, "u", 2500)[user],
        "item": words(random, "i", 1500)[item], "kind": words(random, "k", 15)[kind[item]],
        "place": words(random, "p", 40)[place], "hour": hour, "weekday": day,
        "price": price.round(2), "rank": rank,
    }
    return Drawn(columns, logit, ["user", "item", "kind", "place", "hour", "weekday"])


def heavy(random, rows):
    """Ids of which most are seen a few times, and some in every tenth row."""
    sizes, exponents = [100_000, 20_000, 5000, 400], [1.05, 1.0, 1.1, 1.0]
    ids = [power_law(random, rows, v, e) for v, e in zip(sizes, exponents)]
    group, of_first = grouped(random, sizes[0], 50, 0.5)
    effects = [of_first] + [grouped(random, v, 30, 0.35)[1] for v in sizes[1:]]
    pairs = [(factors(random, sizes[a], 3, 0.5)[ids[a]] * factors(random, sizes[b], 3, 0.5)[ids[b]]
              ).sum(1) for a, b in [(1, 3), (2, 3)]]
    score, hour = random.normal(0, 1, rows), random.integers(0, 24, rows)
    logit = (sum(effect[i] for effect, i in zip(effects, ids)) + sum(pairs) + 0.4 * score
             + 0.3 * np.cos(hour / 24 * 2 * np.pi))
    names = ["cookie", "page", "advert", "network"]
    columns = {name: numbers_as_ids(random, v)[i] for name, v, i in zip(names, sizes, ids)}
    columns |= {"region": words(random, "g", 50)[group[ids[0]]], "hour": hour,
                "score": score.round(4)}
    return Drawn(columns, logit, names + ["region", "hour"])


def tiny(random, rows):
    """People and an offer: few rows, like the tables that statistics courses use."""
    age, school = random.integers(18, 91, rows), random.integers(1, 17, rows)
    gain = np.where(random.random(rows) < 0.1, np.exp(random.normal(8, 1, rows)).astype(int), 0)
    job, land = random.integers(0, 14, rows), power_law(random, rows, 40, 1.2)
    sex = random.integers(0, 2, rows)
    hours = np.clip(random.normal(40, 12, rows), 1, 99).astype(int)
    logit = (-0.002 * (age - 50) ** 2 + 0.15 * school + 0.0004 * np.minimum(gain, 6000)
             + random.normal(0, 0.6, 14)[job] + random.normal(0, 0.4, 40)[land] + 0.6 * sex
             + 0.02 * hours * (1 + sex))
    columns = {
        "age": age, "school_years": school, "gain": gain, "job": words(random, "j", 14)[job],
        "land": words(random, "l", 40)[land], "sex": np.where(sex == 1, "m", "f"), "hours": hours,
    }
    return Drawn(columns, logit, ["job", "land", "sex"], rate=0.25)


TABLES = {
    "no_integers": (no_integers, 40_000), "all_integers": (all_integers, 40_000),
    "lists": (lists, 40_000), "drift": (drift, 40_000), "heavy": (heavy, 40_000),
    "tiny": (tiny, 5000),
}


def probabilities(logit, rate):
    """Those of log-odds that are moved until their mean is `rate`."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        p = 1 / (1 + np.exp(-(logit + middle)))
        low, high = (low, middle) if p.mean() > rate else (middle, high)
    return p


def auc(labels, scores):
    """Area under the ROC curve; ties count half."""
    ranks = pd.Series(scores).rank().to_numpy()
    ones = labels.sum()
    return (ranks[labels == 1].sum() - ones * (ones + 1) / 2) / (ones * (len(labels) - ones))


def make(folder, name, seed):
    """Writes a table. The last rows are the test: the later ones, where rows are in order."""
    table, train_rows = TABLES[name]
    random = np.random.default_rng([seed, *name.encode()])
    drawn = table(random, train_rows + TEST_ROWS)
    p = probabilities(drawn.logit, drawn.rate)
    labels = (random.random(len(p)) < p).astype(int)
    frame = pd.DataFrame({LABEL: labels} | drawn.columns)
    folder.mkdir(parents=True, exist_ok=True)
    frame[:train_rows].to_csv(folder / f"{name}-train.csv", index=False)
    frame[train_rows:].to_csv(folder / f"{name}-test.csv", index=False)
    facts = {"label": LABEL, "categories": drawn.categories, "lists": drawn.lists,
             "best_auc": auc(labels[train_rows:], p[train_rows:])}
    (folder / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def make_criteo(folder, source):
    """The Criteo sample as a table with names; no one knows its best AUC."""
    names = [LABEL] + [f"I{i}" for i in range(1, 14)] + [f"C{i}" for i in range(1, 27)]
    for part, file in [("train", "train.txt.gz"), ("test", "valid.txt.gz")]:
        frame = pd.read_csv(source / file, sep="\t", header=None, names=names, dtype=str)
        frame.to_csv(folder / f"criteo-{part}.csv", index=False)
    facts = {"label": LABEL, "categories": names[14:], "lists": [], "best_auc": None}
    (folder / "criteo.json").write_text(json.dumps(facts, indent=1) + "\n")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--only", nargs="*", choices=TABLES, default=list(TABLES))
    a = arguments.parse_args()
    for name in a.only:
        print(f"{name}: best possible AUC {make(a.folder, name, a.seed)['best_auc']:.4f}")


if __name__ == "__main__":
    main()
