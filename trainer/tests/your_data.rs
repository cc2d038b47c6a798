//! The examples of docs/your-data.md, run as they stand there.

#![cfg(test)]

use crate::run_support::{Ended, Run, digest, last_event};
use headlong_device::rng::CounterRng;
use std::path::Path;
use tempfile::TempDir;

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/your-data.md");
    std::fs::read_to_string(page).unwrap()
}

/// The configurations of the page, in order.
fn configurations() -> Vec<String> {
    let text = page();
    let blocks = text.split("```toml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

fn clicks(count: u64, seed: u64) -> String {
    let random = CounterRng::new(seed, 2);
    let mut text = "session,clicked,user,page,country\n".to_owned();
    for row in 0..count {
        let draw = |column: u64, most: f32| (random.uniform(row * 8 + column) * most) as u64;
        let (user, page, country) = (draw(0, 300.0), draw(1, 40.0), draw(2, 5.0));
        let clicked = u8::from(draw(3, 100.0) < 15 + 60 * (page % 2));
        let session = 18_446_744_073_709_551_999_u128 + u128::from(row);
        text += &format!(
            "{session},{clicked},{},\"/shoes/{page},blue\",{}\n",
            user * 1_000_003,
            ["NO", "SE", "DK", "FI", ""][country as usize]
        );
    }
    text
}

fn films(count: u64, seed: u64) -> String {
    let random = CounterRng::new(seed, 3);
    let mut text = "film\tage\tprice\tgenres\twatched\n".to_owned();
    let genres = ["drama", "war", "comedy", "horror"];
    for row in 0..count {
        let draw = |column: u64, most: f32| (random.uniform(row * 16 + column) * most) as u64;
        let chosen: Vec<&str> = (0..4)
            .filter(|&genre| draw(genre, 3.0) == 0)
            .map(|genre| genres[genre as usize])
            .collect();
        let price = if draw(5, 4.0) == 0 {
            String::new()
        } else {
            format!("{:.1}", draw(6, 90.0) as f32 / 10.0)
        };
        let watched = u8::from(draw(7, 100.0) < if chosen.contains(&"war") { 70 } else { 20 });
        text += &format!(
            "{}\t{}\t{price}\t{}\t{watched}\n",
            100_007 + draw(8, 400.0) * 7919,
            draw(9, 90.0),
            chosen.join("|")
        );
    }
    text
}

/// A folder with the two examples.
fn place() -> TempDir {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let configurations = configurations();
    assert_eq!(configurations.len(), 2, "the page has two examples");
    for (name, text) in ["clicks.toml", "films.toml"].iter().zip(&configurations) {
        assert!(text.lines().count() < 30, "{name} has {} lines", text.lines().count());
        write(name, text);
    }
    write("clicks.csv", &clicks(6000, 1));
    write("clicks-valid.csv", &clicks(2000, 2));
    write("films.tsv", &films(6000, 1));
    write("films-valid.tsv", &films(2000, 2));
    folder
}

/// Every command of the page runs as it stands there, one after the other; `tune` is given few
/// trials in the place of minutes.
#[test]
fn the_commands_of_the_page_run() {
    let folder = place();
    let unlabelled = clicks(50, 3).lines().fold(String::new(), |text, line| {
        let fields: Vec<&str> = line.splitn(3, ',').collect();
        text + fields[0] + "," + fields[2] + "\n"
    });
    std::fs::write(folder.path().join("new.csv"), unlabelled).unwrap();
    let page = page();
    let commands: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("headlong ")).collect();
    assert!(commands.len() >= 9, "{commands:?}");
    for line in commands {
        let words = line.replace("--minutes 5", "--trials 3");
        let words: Vec<&str> = words.split(' ').collect();
        let ended = in_folder(&folder, &Run::new(words[0]).with(&words[1..]));
        assert_eq!(ended.code, Some(0), "headlong {line}: {}", ended.stderr);
    }
    for made in ["probabilities.csv", "tuned/best.toml", "ensemble/seed-3", "films.hld"] {
        assert!(folder.path().join(made).exists(), "{made}");
    }
}

/// Runs in the folder, as the page's paths are meant.
fn in_folder(folder: &TempDir, run: &Run) -> Ended {
    let output = run.command().current_dir(folder.path()).output().unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn train(name: &str) -> Run {
    Run::new("train").with(&["--config", name, "--threads", "1", "--log-json", "log.json"])
}

fn succeeds(folder: &TempDir, run: &Run) -> Ended {
    let _ = std::fs::remove_file(folder.path().join("log.json"));
    let ended = in_folder(folder, run);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended
}

#[test]
fn clicks_without_numbers_and_with_a_long_id_to_ignore_are_learned_and_predicted() {
    let folder = place();
    succeeds(&folder, &train("clicks.toml").with(&["--checkpoint-dir", "checkpoints"]));
    let log = folder.path().join("log.json");
    // The page's number decides: 75 % or 15 % are clicked, which is an AUC of 0.8 at best.
    let auc = last_event(&log, "done")["last_eval"]["auc"].as_f64().unwrap();
    assert!(auc > 0.75, "{auc}");
    let expected = digest(&log);

    // A run that stopped continues bit for bit, and new rows without labels are predicted.
    let part = train("clicks.toml").with(&["--checkpoint-dir", "part"]);
    succeeds(&folder, &part.clone().with(&["--steps", "31"]));
    succeeds(&folder, &part.with(&["--resume", "--epochs", "3"]));
    assert_eq!(digest(&log), expected);
    let unlabelled = clicks(50, 3).lines().fold(String::new(), |text, line| {
        let fields: Vec<&str> = line.splitn(3, ',').collect();
        text + fields[0] + "," + fields[2] + "\n"
    });
    std::fs::write(folder.path().join("new.csv"), unlabelled).unwrap();
    let predict = ["--checkpoint", "checkpoints", "--data", "new.csv", "--output", "p.csv"];
    assert_eq!(in_folder(&folder, &Run::new("predict").with(&predict)).code, Some(0));
    let rows = std::fs::read_to_string(folder.path().join("p.csv")).unwrap();
    assert_eq!(rows.lines().count(), 51);
}

#[test]
fn films_with_several_genres_are_learned_and_train_alike_once_converted() {
    let folder = place();
    succeeds(&folder, &train("films.toml"));
    let log = folder.path().join("log.json");
    let auc = last_event(&log, "done")["last_eval"]["auc"].as_f64().unwrap();
    assert!(auc > 0.7, "{auc}");
    let expected = digest(&log);
    for (to, name) in [("headlong", "films.hld"), ("parquet", "films.parquet")] {
        let convert = [
            "convert",
            "--config",
            "films.toml",
            "--data",
            "films.tsv",
            "--to",
            to,
            "--output",
            name,
        ];
        assert_eq!(in_folder(&folder, &Run::new("data").with(&convert)).code, Some(0));
        // Parquet comes from front to back, so it is shuffled in memory. Both files say themselves
        // what their columns are.
        let more = ["--data", name, "--cache-data", "host"];
        succeeds(&folder, &train("films.toml").with(&more));
        assert_eq!(digest(&log), expected, "{to}");
    }
}

#[test]
fn a_mapping_that_is_wrong_is_named_by_column_and_line() {
    let folder = place();
    let refused = |changes: &[&str], code: i32, words: &[&str]| {
        let changes =
            changes.iter().fold(train("films.toml"), |run, change| run.with(&["--set", change]));
        let ended = in_folder(&folder, &changes);
        assert_eq!(ended.code, Some(code), "{changes:?}: {}", ended.stderr);
        for word in words {
            assert!(
                ended.stderr.contains(word),
                "{changes:?}: \"{word}\" is not in: {}",
                ended.stderr
            );
        }
    };
    let label = ["data.columns.label=age", "data.columns.dense=[\"price\",\"watched\"]"];
    refused(&label, 1, &["films-valid.tsv: line 2, column `age` (label): expected 0 or 1, found"]);
    let lists = ["data.columns.categorical=[\"film\"]"];
    refused(&lists, 2, &["data.columns.lists", "`genres`"]);
    let dense = ["data.columns.dense=[\"age\"]"];
    refused(&dense, 1, &["films.tsv: header: column `price` has no place"]);
    let dense = ["data.columns.dense=[\"age\",\"cost\"]"];
    refused(&dense, 1, &["expected a column `cost`, found `film`, `age`"]);
    let dense = ["data.columns.dense=[\"age\",\"film\"]"];
    refused(
        &dense,
        2,
        &["data.columns.categorical", "column `film` is named in data.columns.dense"],
    );
    refused(&["tables.max_ids_per_sample=1"], 1, &["`C2`", "tables.max_ids_per_sample"]);
    let text = std::fs::read_to_string(folder.path().join("films.tsv")).unwrap();
    std::fs::write(folder.path().join("films.tsv"), text.replacen("\t0\n", "\tmaybe\n", 1))
        .unwrap();
    let line = 1 + text.lines().position(|line| line.ends_with("\t0")).unwrap();
    refused(
        &[],
        1,
        &[&format!(
            "films.tsv: line {line}, column `watched` (label): expected 0 or 1, found \"maybe\""
        )],
    );
}
