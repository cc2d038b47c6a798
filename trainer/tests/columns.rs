//! `[[column]]`: dense columns with functions and tables of bins of their own.

#![cfg(test)]

use crate::run_support::{Place, Run, rows, write};
use headlong::config::{CacheData, FormatChoice};
use headlong::{Config, Session};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const SMALL: &str = "[model]\ndim = 4\nbottom = [8, 4]\ntop = [8, 1]\n\
                     [train]\nbatch_size = 64\n[tables]\nrows = 500\n";

/// An integer with gaps, a number, a few binned columns of Criteo's.
const BINNED: &str = "[[column]]\nname = \"I1\"\nbins = \"ln2\"\n\
                      [[column]]\nname = \"I2\"\nbins = \"edges\"\nedges = [1, 10.5, 100]\n\
                      [[column]]\nname = \"I13\"\ntransform = \"none\"\nmean = 90\nscale = 80\n";

/// A small model on `data`, with further sections.
fn config(data: &Path, sections: &str) -> Config {
    let mut config = Config::from_toml(&format!("{SMALL}{sections}"), "test").unwrap();
    config.data.train = vec![data.into()];
    let folder = data.parent().unwrap();
    config.run.threads = Some(1);
    config.run.output_dir = folder.to_owned();
    config.checkpoint.dir = Some(folder.join("checkpoints"));
    config
}

/// The weights that a whole run of `config` ends with; it saves nothing.
fn trained(config: &Config) -> String {
    let mut config = config.clone();
    config.checkpoint.dir = None;
    let mut session = Session::open(&config).unwrap();
    session.train().unwrap();
    session.weights_digest().unwrap()
}

/// An error of opening a session, with its causes.
fn refused(config: &Config) -> String {
    let error = Session::open(config).err().expect("it should be refused");
    let first: &dyn std::error::Error = &error;
    let causes = std::iter::successors(Some(first), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Criteo's text as text with a header, the same ids as numbers.
fn with_header(text: &str) -> String {
    let names = |prefix: &'static str, count: usize| {
        (1..=count).map(move |number| format!("\t{prefix}{number}"))
    };
    let mut table = format!("label{}\n", names("I", 13).chain(names("C", 26)).collect::<String>());
    for line in text.lines() {
        for (column, field) in line.split('\t').enumerate() {
            let gap = if column > 0 { "\t" } else { "" };
            match u32::from_str_radix(field, 16) {
                Ok(id) if column > 13 => write!(table, "{gap}{id}").unwrap(),
                _ => write!(table, "{gap}{field}").unwrap(),
            }
        }
        table.push('\n');
    }
    table
}

/// Criteo's text in a folder of its own.
fn criteo() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("train.txt");
    write(&text, &rows(1000, 1));
    (folder, text)
}

/// A table whose numbers have gaps, with the bins of `x` written out: 0 for a gap, then one more
/// than the edges, 2 and 5, at or below it.
#[test]
fn bins_are_those_of_a_column_that_was_made_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = "y,x,c,b\n".to_owned();
    for row in 0..600_u64 {
        let (x, bin) = match row * 7 % 11 {
            10 => (String::new(), 0),
            value => (format!("{value}.5"), 1 + u64::from(value >= 2) + u64::from(value >= 5)),
        };
        writeln!(text, "{},{x},{},{bin}", u8::from(bin % 2 == 1), row % 13).unwrap();
    }
    let data = folder.path().join("a.csv");
    write(&data, &text);
    let columns = "[data.columns]\nlabel = \"y\"\ndense = [\"x\"]\n";
    let by_hand = format!("{columns}categorical = [\"c\", \"b\"]\n");
    let binned = format!(
        "{columns}categorical = [\"c\"]\nignored = [\"b\"]\n\
         [[column]]\nname = \"x\"\nbins = \"edges\"\nedges = [2, 5]\n"
    );
    let rows_of_ids = |config: &mut Config| config.set_all(&["data.ids=rows"]).unwrap();
    let dictionary = |config: &mut Config| {
        config.set_all(&["data.ids=dictionary", "tables.rows=dictionary"]).unwrap();
    };
    let hash = |_: &mut Config| ();
    for policy in [&hash as &dyn Fn(&mut Config), &rows_of_ids, &dictionary] {
        let [by_hand, binned] = [&by_hand, &binned].map(|sections| {
            let mut config = config(&data, sections);
            policy(&mut config);
            config
        });
        assert_eq!(trained(&binned), trained(&by_hand), "{:?}", binned.data.ids);
    }
}

/// Times in several spellings, with hours and weekdays written out, and what is wrong in them.
#[test]
fn parts_of_times_are_those_of_columns_that_were_made_by_hand() {
    let place = Place::new("train.txt");
    let table = |bad: &str| {
        let mut text = "y,x,c,when,hour,weekday\n".to_owned();
        for row in 0..600_u64 {
            let (day, hour) = (row % 28, row * 7 % 24);
            // 1 November 2026 is a Sunday.
            let (when, ids) = match row % 4 {
                0 => (format!("2026-11-{:02} {hour:02}:30:00", day + 1), (hour + 1, (day + 6) % 7)),
                1 => (
                    format!("2026-11-{:02}T{hour:02}:30+09:00", day + 1),
                    (hour + 1, (day + 6) % 7),
                ),
                2 => (
                    (1_793_491_200 + day * 86_400 + hour * 3600).to_string(),
                    (hour + 1, (day + 6) % 7),
                ),
                _ => (String::new(), (0, 6)),
            };
            let weekday = if when.is_empty() { 0 } else { ids.1 + 1 };
            let when = if row == 300 && !bad.is_empty() { bad } else { &when };
            writeln!(
                text,
                "{},{row},{},{when},{},{weekday}",
                u8::from(ids.0 > 12),
                row % 13,
                ids.0
            )
            .unwrap();
        }
        text
    };
    let data = place.path("a.csv");
    write(&data, &table(""));
    let columns = "[data.columns]\nlabel = \"y\"\ndense = [\"x\"]\n";
    let binned = "[[column]]\nname = \"x\"\nbins = \"ln2\"\n";
    let by_hand = format!(
        "{columns}categorical = [\"c\", \"weekday\", \"hour\"]\nignored = [\"when\"]\n\
         {binned}"
    );
    let by_parts = format!(
        "{columns}categorical = [\"c\"]\nignored = [\"hour\", \"weekday\"]\n{binned}\
         [[column]]\nname = \"when\"\nparts = [\"weekday\", \"hour\"]\n"
    );
    for policy in ["data.ids=hash", "data.ids=rows"] {
        let [by_hand, by_parts] = [&by_hand, &by_parts].map(|sections| {
            let mut config = config(&data, sections);
            config.set_all(&[policy]).unwrap();
            trained(&config)
        });
        assert_eq!(by_parts, by_hand, "{policy}");
    }

    let (file, checkpoints) = (place.path("run.toml"), place.path("checkpoints"));
    write(&file, &format!("{SMALL}{by_parts}"));
    let train = Run::new("train").path("--config", &file).with(&["--threads", "1"]);
    let train = train.path("--output-dir", &place.path("out"));
    let kept = train.clone().path("--data", &data).path("--checkpoint-dir", &checkpoints);
    kept.succeeds();
    let bad = place.path("bad.csv");
    write(&bad, &table("yesterday"));
    let words = "bad.csv: line 302, column `when` (time): expected a time such as 2024-03-07 \
                 13:05:22, or whole seconds since 1970, found \"yesterday\"";
    train.clone().path("--data", &bad).fails(1, &[words]);
    let told = train.path("--data", &bad).with(&["--on-bad-row", "skip"]).succeeds().stderr;
    assert!(told.contains("line 302: column `when`"), "{told}");

    // Predictions are of the same parts, whatever stands in the columns that have none.
    let predictions = |data: &Path| {
        let csv = place.path("p.csv");
        let predict = Run::new("predict").path("--checkpoint", &checkpoints).path("--data", data);
        predict.path("--output", &csv).succeeds();
        std::fs::read_to_string(csv).unwrap()
    };
    let other = place.path("other.csv");
    write(&other, &table("").replace(" 08:30:00", " 09:30:00"));
    assert!(predictions(&data) != predictions(&other), "the hour counts");
}

#[test]
fn every_way_to_read_integers_gives_the_same_bins() {
    let (folder, text) = criteo();
    let mut of_text = config(&text, BINNED);
    assert_eq!(of_text.data.num_sparse, 28);
    let expected = trained(&of_text);
    assert_ne!(expected, trained(&config(&text, "")), "they have more tables");
    of_text.data.cache = CacheData::Host;
    assert_eq!(trained(&of_text), expected, "in memory");

    let table = folder.path().join("table.tsv");
    write(&table, &with_header(&rows(1000, 1)));
    let mut of_table = config(&table, BINNED);
    of_table.data.format = FormatChoice::try_from("csv".to_owned()).unwrap();
    assert_eq!(trained(&of_table), expected, "text with a header");
    for to in ["headlong", "parquet", "mlperf"] {
        let converted = folder.path().join(to);
        let convert = Run::new("data").with(&["convert", "--to", to]).path("--data", &text);
        convert.path("--output", &converted).succeeds();
        let mut of_format = config(&converted, BINNED);
        of_format.data.format = FormatChoice::try_from(to.to_owned()).unwrap();
        if to == "mlperf" {
            // What is missing is 0 there, which is another bin.
            trained(&of_format);
        } else {
            assert_eq!(trained(&of_format), expected, "{to}");
        }
    }
    let numbers = folder.path().join("numbers.hld");
    let convert = ["convert", "--to", "headlong", "--dense-transform", "ln(x+1)"];
    let convert = Run::new("data").with(&convert).path("--data", &text);
    convert.path("--output", &numbers).succeeds();
    let message = refused(&config(&numbers, BINNED));
    assert!(message.contains("have gone through ln(x+1)"), "{message}");
    assert!(message.contains("[[column]]"), "{message}");
}

#[test]
fn a_run_with_bins_resumes_in_the_same_bits_and_with_the_same_bins_alone() {
    let (folder, text) = criteo();
    let table = folder.path().join("table.tsv");
    write(&table, &with_header(&rows(1000, 1)));
    let more = ["data.format=csv", "data.order=samples", "data.order_window=100"];
    for (data, settings) in [(&text, &["data.ids=dictionary"][..]), (&table, &more)] {
        let mut whole = config(data, BINNED);
        whole.set_all(settings).unwrap();
        whole.set_all(&["train.epochs=2"]).unwrap();
        let expected = trained(&whole);
        let mut part = whole.clone();
        part.train.steps = Some(21);
        part.checkpoint.dir = Some(folder.path().join(format!("part-{}", settings.len())));
        let mut session = Session::open(&part).unwrap();
        session.train().unwrap();
        session.save().unwrap();
        drop(session);
        part.train.steps = None;
        let mut other = part.clone();
        other.column[1].edges[0] = 2.0;
        let error = Session::builder(&other).resume().open().err().unwrap();
        let error = format!("{error:?}");
        assert!(error.contains("data.columns[1]") || error.contains("dictionary"), "{error}");
        let mut session = Session::builder(&part).resume().open().unwrap();
        session.train().unwrap();
        assert_eq!(session.weights_digest().unwrap(), expected);
        // The program takes the columns from the checkpoint.
        let checkpoint = session.save().unwrap();
        let csv = folder.path().join("predictions.csv");
        let predict = Run::new("predict").path("--checkpoint", &checkpoint).path("--data", data);
        predict.path("--output", &csv).succeeds();
        let csv = std::fs::read_to_string(&csv).unwrap();
        let of_program = csv.lines().skip(1).map(|line| line.split(',').nth(1).unwrap());
        let of_program: Vec<f32> = of_program.map(|text| text.parse().unwrap()).collect();
        assert_eq!(session.predict([data]).unwrap(), of_program);
    }
}

#[test]
fn a_dictionary_is_counted_again_for_other_edges_and_tables_are_called_by_column() {
    let (folder, text) = criteo();
    let file = folder.path().join("run.toml");
    let run = |edges: &str, more: &[&str]| {
        let column = format!("[[column]]\nname = \"I2\"\nbins = \"edges\"\nedges = [{edges}]\n");
        let shared = "[data]\nids = \"dictionary\"\n";
        write(&file, &format!("{SMALL}{shared}{column}"));
        let run = Run::new("train").path("--config", &file).path("--data", &text);
        let run = run.path("--output-dir", folder.path()).with(&["--steps", "2"]);
        run.with(&["--threads", "1"]).with(more)
    };
    assert!(run("1, 10", &[]).succeeds().stderr.contains("building the dictionary"));
    assert!(run("1, 10", &[]).succeeds().stderr.contains("made earlier"));
    let again = run("1, 20", &[]).succeeds().stderr;
    assert!(again.contains("`data.bins[0].bins.edges[1]` was 10.0, is 20.0"), "{again}");
    let rows = format!("tables.rows=[{}2]", "500,".repeat(26));
    run("1, 20", &["--set", &rows]).fails(2, &["table C27 (`I2` bins)", "the dictionary has"]);
    run("1, 20", &["--set", "data.num_sparse=26"])
        .fails(1, &["lines of 25 categories", "data.num_sparse = 26", "1 are tables of bins"]);
}
