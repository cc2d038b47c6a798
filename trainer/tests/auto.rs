//! `headlong train --auto`: what it takes columns for, what it refuses, and that what it prints
//! trains the same.

#![cfg(test)]

use crate::run_support::{Place, Run};
use headlong::auto::files::{OfFiles, choose_for};
use headlong::auto::{Asked, Kind, text};
use headlong::config::{CacheData, Config, Ids};
use headlong_device::rng::CounterRng;
use std::path::Path;
use tempfile::TempDir;

const GIB: u64 = 1 << 30;

/// A table with a column of each kind; the label depends on some of them.
fn table(rows: u64) -> String {
    let random = CounterRng::new(11, 4);
    let mut text =
        "row,clicked,user_number,age,visits,price,tags,day,seen_at,country,same,key,year\n"
            .to_owned();
    for row in 0..rows {
        let draw = |column: u64, most: f32| (random.uniform(row * 16 + column) * most) as u64;
        let user = draw(0, 150.0) * 7919 + 100_003;
        let age = 18 + draw(1, 70.0);
        let visits = (random.uniform(row * 16 + 2) * 8.0).exp() as u64;
        let price = (random.uniform(row * 16 + 3) * 10_000.0).round() / 100.0;
        let tags: Vec<String> = (0..draw(4, 4.0)).map(|_| format!("t{}", draw(5, 30.0))).collect();
        let rate = 0.1 + 0.4 * (user % 2) as f32 + 0.3 * (age as f32 - 18.0) / 70.0;
        let clicked = u8::from(random.uniform(row * 16 + 6) < rate);
        let country = ["NO", "SE", "DK", ""][draw(7, 4.0) as usize];
        let year = if draw(8, 2.0) == 0 { "1996" } else { "1997.0" };
        text += &format!(
            "{row},{clicked},{user},{age},{visits},{price},{},2026-11-{:02},{},{country},x,k{},{year}\n",
            tags.join("|"),
            1 + draw(9, 28.0),
            1_700_000_000 + row * 37,
            row * 31 % 65_537,
        );
    }
    text
}

fn write(folder: &TempDir, name: &str, text: &[u8]) -> std::path::PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn chosen(path: &Path, label: Option<&str>) -> headlong::Result<OfFiles> {
    let asked = Asked { label, usable_bytes: GIB, ..Asked::default() };
    choose_for(&[path.into()], None, &asked)
}

#[test]
fn each_kind_of_column_is_told() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, "clicks.csv", table(4000).as_bytes());
    let found = chosen(&path, None).unwrap();
    let kinds: Vec<(&str, Kind, &str)> = found
        .choices
        .columns
        .iter()
        .map(|column| (column.name.as_str(), column.kind, column.reason.as_str()))
        .collect();
    for (name, kind, words) in [
        ("row", Kind::Ignored, "counts the rows"),
        ("clicked", Kind::Label, "called like one"),
        ("user_number", Kind::Categorical, "neighbours differ"),
        ("age", Kind::Dense, "changes along"),
        ("visits", Kind::Dense, "heavy tail"),
        ("price", Kind::Dense, "fractions"),
        ("tags", Kind::List, "\"|\" between them"),
        ("day", Kind::Ignored, "no hour or weekday has a click rate"),
        ("seen_at", Kind::Ignored, "seconds since 1970, or parts of them, such as"),
        ("country", Kind::Categorical, "words"),
        ("same", Kind::Ignored, "constant: `x`"),
        ("key", Kind::Ignored, "unique in every row"),
        ("year", Kind::Categorical, "\"1996\" and \"1996.0\" are two ids"),
    ] {
        let column = kinds.iter().find(|column| column.0 == name).expect(name);
        assert!(
            column.1 == kind && column.2.contains(words),
            "{column:?}, expected {kind:?} {words}"
        );
    }
    let country = found.choices.columns.iter().find(|column| column.name == "country").unwrap();
    assert!((country.missing_share - 0.25).abs() < 0.03, "{country:?}");
    let config = found.choices.apply().unwrap();
    assert!(config.times().is_empty(), "{:?}", config.times());
    assert_eq!(config.data.columns.list_separator, Some('|'));
    assert_eq!(config.tables.max_ids_per_sample, 3);
    assert_eq!((config.data.ids, config.data.cache), (Ids::Dictionary, CacheData::Host));
}

#[test]
fn times_of_every_spelling_give_what_comes_again_of_them() {
    let folder = TempDir::new().unwrap();
    let reason = |number: fn(u64) -> String| {
        let row = |row: u64| {
            // Both the weekday and the hour count.
            let clicked = u8::from(row % 7 < 3 || row % 24 < 12);
            format!("{},{},{clicked}\n", number(row), row % 11)
        };
        let text = format!("at,c,y\n{}", (0..900).map(row).collect::<String>());
        let found = chosen(&write(&folder, "a.csv", text.as_bytes()), None).unwrap();
        let at = found.choices.columns[0].clone();
        (at.kind, at.parts.iter().map(|part| part.name()).collect::<Vec<_>>(), at.reason)
    };
    for (number, kind, parts, words) in [
        (
            (|row| format!("{}", 20_260_101 + row % 28)) as fn(u64) -> String,
            Kind::Time,
            vec!["weekday"],
            "8 digits",
        ),
        (
            |row| format!("{}", 20_261_301 + row % 28),
            Kind::Categorical,
            vec![],
            "few different ones",
        ),
        (
            |row| format!("2026-11-{:02}T{:02}:00:00Z", 1 + row % 28, row % 24),
            Kind::Time,
            vec!["hour", "weekday"],
            "hour, weekday",
        ),
        (
            |row| format!("202611{:02}{:02}0000", 1 + row % 28, row % 24),
            Kind::Time,
            vec!["hour", "weekday"],
            "14 digits",
        ),
        (
            |row| format!("{}", 1_700_000_000_000_000 + row * 3_600_000_000),
            Kind::Time,
            vec!["hour"],
            "seconds since 1970",
        ),
        (
            |row| match row {
                450 => "7 March".to_owned(),
                _ => format!("2026-11-{:02}", 1 + row % 28),
            },
            Kind::Ignored,
            vec![],
            "`7 March` is none",
        ),
        (
            |row| format!("2026-11-01 {:02}:00", row % 24),
            Kind::Ignored,
            vec![],
            "no hour or weekday has a click rate",
        ),
        (
            |row| format!("{:02}.11.2026", 1 + row % 28),
            Kind::Ignored,
            vec![],
            "written as 2026-11-26",
        ),
    ] {
        let found = reason(number);
        assert!(found.0 == kind && found.1 == parts && found.2.contains(words), "{found:?}");
    }
    // Another column has the hours already.
    let row = |row: u64| {
        let (weekday, hour) = (row % 7, row % 24);
        let clicked = u8::from(weekday < 3 || hour < 12);
        format!("2026-11-{:02} {hour:02}:00,h{hour},{clicked}\n", 1 + row % 28)
    };
    let text = format!("at,hour,y\n{}", (0..900).map(row).collect::<String>());
    let found = chosen(&write(&folder, "a.csv", text.as_bytes()), None).unwrap();
    assert_eq!(found.choices.apply().unwrap().column_name(1), "C2 (`at.weekday`)");
}

#[test]
fn ids_that_do_not_fit_memory_are_hashed() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, "clicks.csv", table(3000).as_bytes());
    let asked = Asked { usable_bytes: 20_000, ..Asked::default() };
    let config = choose_for(&[path.into()], None, &asked).unwrap().choices.apply().unwrap();
    assert_eq!((config.data.ids, config.model.dim), (Ids::Hash, 8));
}

#[test]
fn what_has_no_clear_label_is_refused_with_what_to_do() {
    let folder = TempDir::new().unwrap();
    let rows = |header: &str, row: &dyn Fn(u64) -> String| {
        (0..60).fold(format!("{header}\n"), |text, number| text + &row(number) + "\n")
    };
    let half = |number: u64| number % 2;
    let none = rows("a,b", &|n| format!("{n},{}", half(n)));
    let two = rows("click,label", &|n| format!("{},{}", half(n), half(n / 2)));
    let words = rows("a,y", &|n| format!("{n},{}", ["none", "some"][half(n) as usize]));
    let gaps = rows("a,y", &|n| format!("{},{}", n % 7, if n == 3 { "" } else { "1" }));
    let one = rows("y", &|n| half(n).to_string());
    let same = rows("a,y", &|n| format!("{},1", n % 7));
    let useless = rows("n,y", &|n| format!("{n},{}", half(n)));
    for (text, label, expected) in [
        (none.as_bytes(), None, "`b` holds 0 and 1: name one with --label COL"),
        (two.as_bytes(), None, "`click`, `label` could each be the label: name one with --label"),
        (words.as_bytes(), None, "no column holds only 0 and 1, false and true"),
        (words.as_bytes(), Some("y"), "column `y`: expected 0 and 1, found `none`, `some`"),
        (words.as_bytes(), Some("z"), "no column `z` among `a`, `y`"),
        (gaps.as_bytes(), Some("y"), "found 1 of 60 empty"),
        (same.as_bytes(), None, "`y` holds only one of them: a model learns from both"),
        (same.as_bytes(), Some("y"), "expected both 0 and 1, found `1` in every row"),
        (one.as_bytes(), None, "at least one column to learn it from, found 1 column: y"),
        (useless.as_bytes(), None, "no column is left to learn from"),
        (b"a,y\n", None, "expected at least one row, found none"),
        (b"\n\r\n", None, "expected the names of columns, found none"),
        (b"", None, "is empty"),
        (b"a,\0\x01\x02\n1,2\n", None, "NUL"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe\xfd,\x01\n", None, "expected the names of columns"),
    ] {
        let path = write(&folder, "a.csv", text);
        let error = chosen(&path, label).expect_err(expected);
        let message = format!("{error:?}");
        assert!(message.contains(expected), "{message}, expected {expected}");
    }
}

#[test]
fn what_is_printed_reads_back() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, "clicks.csv", table(1000).as_bytes());
    let found = chosen(&path, Some("clicked")).unwrap();
    let mut config = found.choices.apply().unwrap();
    let set = ["train.batch_size=77", "run.hybrid=rows=5", "optimizer.dense.name=adam"];
    config.set_all(&set).unwrap();
    let text = text::to_toml(&config, &found);
    assert_eq!(Config::from_toml(&text, "auto.toml").unwrap(), config, "{text}");
    let line = text.lines().find(|line| line.starts_with("batch_size = 77 ")).unwrap();
    assert!(line.ends_with("# not chosen but asked for"), "{line}");
    let comments = text.lines().filter(|line| line.contains('#'));
    comments.for_each(|line| assert!(line.chars().count() <= 96, "{line}"));
}

/// Trains with `--auto`, then with what that has kept: the same weights.
fn trains_the_same(place: &Place, data: &Path, more: &[&str]) -> String {
    let output = place.path("auto");
    let train = Run::new("train").with(&["--auto", "--threads", "1"]);
    let ended = train.path("--data", data).path("--output-dir", &output).with(more).succeeds();
    let kept = output.join(text::FILE_NAME);
    let again = Run::new("train").path("--config", &kept).succeeds();
    assert_eq!(ended.digest(), again.digest());
    ended.stdout + &std::fs::read_to_string(kept).unwrap()
}

#[test]
fn text_parquet_and_criteo_train_as_chosen_and_the_same_from_what_was_kept() {
    let place = Place::new("train.txt");
    let told = trains_the_same(&place, &place.train.clone(), &["--set", "train.batch_size=100"]);
    assert!(told.contains("batch_size = 100") && !told.contains("[data.columns]"), "{told}");
    let csv = place.path("clicks.csv");
    std::fs::write(&csv, table(1500)).unwrap();
    let valid = place.path("valid.csv");
    std::fs::write(&valid, table(300)).unwrap();
    let told = trains_the_same(&place, &csv, &["--valid", valid.to_str().unwrap()]);
    assert!(told.contains("# user_number") && told.contains("[data.columns]"), "{told}");
    let parquet = place.path("clicks.parquet");
    let convert = Run::new("data").with(&["convert", "--to", "parquet"]);
    let config = place.path("auto").join(text::FILE_NAME);
    convert.path("--config", &config).path("--data", &csv).path("--output", &parquet).succeeds();
    let told = trains_the_same(&place, &parquet, &["--label", "clicked", "--epochs", "1"]);
    assert!(told.contains("(parquet)") && told.contains("lists by its type"), "{told}");
}

/// One vector has none to be multiplied with.
#[test]
fn one_column_is_learned_from() {
    let place = Place::new("train.txt");
    let csv = place.path("one.csv");
    let random = CounterRng::new(5, 1);
    let row = |row: u64| {
        let of = (random.uniform(2 * row) * 4.0) as usize;
        let clicked = random.uniform(2 * row + 1) < [0.1, 0.35, 0.6, 0.85][of];
        format!("{},{}\n", ["a", "b", "c", "d"][of], u8::from(clicked))
    };
    std::fs::write(&csv, format!("c,y\n{}", (0..6000).map(row).collect::<String>())).unwrap();
    let log = place.path("log.json");
    let output = place.path("auto");
    let train = Run::new("train").with(&["--auto"]).path("--data", &csv);
    let train = train.path("--output-dir", &output).path("--log-json", &log);
    train.clone().succeeds();
    let eval = crate::run_support::last_event(&log, "eval");
    assert!(eval["auc"].as_f64() > Some(0.75), "{eval}");

    // What was kept takes other files, and files to validate on in place of rows held out.
    let kept = output.join(text::FILE_NAME);
    let again = Run::new("train").path("--config", &kept).path("--data", &csv);
    again.clone().path("--output-dir", &place.path("x")).succeeds();
    again.path("--valid", &csv).path("--output-dir", &place.path("y")).succeeds();
    // Without evaluations there is nothing to be patient about.
    train.clone().with(&["--eval-every", "0"]).succeeds();
    // What a person has changed is not lost.
    std::fs::write(&kept, "changed").unwrap();
    let told = train.succeeds().stderr;
    assert!(told.contains("auto.toml.before"), "{told}");
    assert_eq!(std::fs::read_to_string(output.join("auto.toml.before")).unwrap(), "changed");
}

/// It is no secret that a column is of after the click, and it is left out where that is asked for.
#[test]
fn a_column_that_tells_the_label_is_warned_of_and_can_be_left_out() {
    let place = Place::new("train.txt");
    let csv = place.path("leak.csv");
    let row = |row: u64| {
        let clicked = row * 7 % 10 < 3;
        format!("{},{},{}\n", row % 13, if clicked { "paid" } else { "" }, u8::from(clicked))
    };
    std::fs::write(&csv, format!("c,bill,y\n{}", (0..400).map(row).collect::<String>())).unwrap();
    let train = Run::new("train").with(&["--auto", "--dry-run"]).path("--data", &csv);
    let train = train.path("--output-dir", &place.path("auto"));
    let told = train.clone().succeeds();
    let warning = "column `bill` alone tells the label (AUC 1.000): was it known before the click?";
    assert!(told.stderr.contains(warning), "{}", told.stderr);
    assert!(!told.stderr.contains("column `c`"), "{}", told.stderr);
    assert!(told.stdout.contains("it alone tells the label"), "{}", told.stdout);
    let without =
        |name: &str| train.clone().with(&["--set", &format!("data.columns.ignored=[\"{name}\"]")]);
    let told = without("bill").succeeds();
    assert!(!told.stderr.contains("tells the label"), "{}", told.stderr);
    assert!(told.stdout.contains("ignored = [\"bill\"]"), "{}", told.stdout);
    without("bil").fails(2, &["data.columns.ignored", "no column `bil` among `c`, `bill`, `y`"]);
}

/// Rows of another length, values that are none, another separator: what `train` takes, so does the
/// look at the file.
#[test]
fn what_is_said_of_the_data_holds_for_the_look_at_it_too() {
    let place = Place::new("train.txt");
    let csv = place.path("odd.csv");
    let row = |row: u64| match row {
        7 => "1~2\n".to_owned(),
        8 => "maybe~3.5~a~7~1,5~1,234\n".to_owned(),
        9 => "1~cheap~a~7~1,5~1,234\n".to_owned(),
        10 => "~2.5~a~7~1,5~1,234\n".to_owned(),
        row => format!(
            "{}~{}.5~k{}~{}~1,{}~1,{:03}\n",
            row % 2,
            row % 100,
            row % 5,
            row,
            row % 9,
            row % 9
        ),
    };
    let text = (0..900).map(row).collect::<String>();
    std::fs::write(&csv, format!("y~price~c~row~comma~sum\n{text}")).unwrap();
    let train = Run::new("train").with(&["--auto"]).path("--data", &csv);
    let train = train.path("--output-dir", &place.path("auto"));
    let train = train.with(&["--set", "data.columns.separator=\"~\"", "--epochs", "1"]);
    train.clone().fails(1, &["line 9", "expected 6 fields"]);
    let skips = train.clone().with(&["--on-bad-row", "skip"]).succeeds();
    assert!(skips.stderr.contains("4 bad rows were skipped"), "{}", skips.stderr);
    for words in [
        "# price  number",
        "separator = \"~\"",
        "numbers with decimal commas, such as `1,0`",
        "numbers with commas between thousands, such as `1,000`",
        "ignored = [\"row\"]",
    ] {
        assert!(skips.stdout.contains(words), "{words}: {}", skips.stdout);
    }
    let by_key = ["--set", "data.on_bad_row=skip", "--set", "data.columns.ignored=[\"sum\"]"];
    let told = train.with(&by_key).succeeds().stdout;
    assert!(told.contains("ignored = [\"sum\", \"row\"]"), "{told}");
}

/// Where there is a folder for them, several models are trained, and said once.
#[test]
fn several_models_are_kept() {
    let place = Place::new("train.txt");
    let csv = place.path("clicks.csv");
    std::fs::write(&csv, table(600)).unwrap();
    let models = place.path("models");
    let train = Run::new("train").with(&["--auto"]).path("--data", &csv);
    let train = train.path("--output-dir", &place.path("auto")).path("--checkpoint-dir", &models);
    let told = train.succeeds().stdout;
    assert!(told.contains("mean of 3 models  AUC"), "{told}");
    assert_eq!(told.matches("# user_number").count(), 1, "{told}");
    assert!(models.join("seed-3").exists());
}

/// What a file sets overrides what is chosen, as flags do.
#[test]
fn a_file_asks_for_what_it_does_not_set_to_be_chosen() {
    let place = Place::new("train.txt");
    let (csv, file) = (place.path("clicks.csv"), place.path("x.toml"));
    std::fs::write(&csv, table(800)).unwrap();
    let text = format!(
        "auto = true\n[data]\ntrain = [{csv:?}]\n[data.columns]\nlabel = \"clicked\"\n\
         ignored = [\"country\"]\n[train]\nbatch_size = 50\n[[column]]\nname = \"age\"\n\
         transform = \"none\"\n"
    );
    std::fs::write(&file, &text).unwrap();
    let output = place.path("out");
    let train = Run::new("train").path("--config", &file).with(&["--threads", "1"]);
    let ended = train.clone().path("--output-dir", &output).succeeds();
    let kept = output.join(text::FILE_NAME);
    let config = Config::from_file(&kept).unwrap();
    assert_eq!(config.train.batch_size, 50);
    assert!(config.data.columns.ignored.starts_with(&["country".to_owned(), "row".to_owned()]));
    assert_eq!(config.data.holdout, 0.1);
    let age = config.column.iter().find(|entry| entry.name == "age").unwrap();
    assert_eq!((age.bins, age.mean), (None, None));
    assert_eq!(config.column.len(), 3, "{:?}", config.column);
    let again = Run::new("train").path("--config", &kept).path("--output-dir", &place.path("2"));
    assert_eq!(again.succeeds().digest(), ended.digest());
    std::fs::write(&file, text.replace("auto = true", "auto = 1")).unwrap();
    train.fails(2, &["x.toml:1", "`auto`: expected true or false"]);
}

#[test]
fn auto_takes_the_place_of_a_configuration() {
    let place = Place::new("train.txt");
    for more in [&["--config", "x.toml"][..], &["--preset", "tiny"]] {
        let train = Run::new("train").path("--data", &place.train).with(&["--auto"]).with(more);
        train.fails(2, &["--auto", "cannot be used with"]);
    }
    Run::new("train").with(&["--auto"]).fails(2, &["--data"]);
    let labelled = Run::new("train").path("--data", &place.train).with(&["--label", "x"]);
    labelled.fails(2, &["--auto"]);
}
