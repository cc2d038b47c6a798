//! Tables as people have them: with the index of a DataFrame, with words for labels, without a
//! header, and without the labels that are to be predicted.

#![cfg(test)]

use crate::run_support::{Place, Run};

/// Rows as text, behind a header; `yes` and `no` are the labels.
fn table(header: &str, [no, yes]: [&str; 2]) -> String {
    let line = |row: u64| {
        let user = row * row % 97;
        let label = if (user + row % 5).is_multiple_of(3) { yes } else { no };
        format!("{row},{},{}.5,{label}\n", user % 50, row * 7 % 31)
    };
    header.to_owned() + &(0..3000).map(line).collect::<String>()
}

#[test]
fn an_index_without_a_name_and_words_for_labels_are_read() {
    let place = Place::new("rows.txt");
    let train = |name: &str, text: &str| {
        let path = place.path(name);
        std::fs::write(&path, text).unwrap();
        let run = Run::new("train").with(&["--auto", "--label", "bought", "--threads", "1"]);
        let run =
            run.path("--data", &path).path("--output-dir", &place.path(&format!("{name}-out")));
        run.path("--checkpoint-dir", &place.path(&format!("{name}-kept")))
    };
    let header = ",user,price,bought\n";
    let words = train("words.csv", &table(header, ["no", "Yes"])).succeeds();
    assert!(words.stdout.contains("Unnamed: 0"), "{}", words.stdout);
    let numbers = train("numbers.csv", &table(header, ["0", "1"])).succeeds();
    assert_eq!(words.digest(), numbers.digest());

    // Rows to predict have no label yet.
    let new = place.path("new.csv");
    std::fs::write(&new, ",user,price,bought\n1,7,2.5,\n2,8,,?\n").unwrap();
    let predict = Run::new("predict").path("--checkpoint", &place.path("words.csv-kept"));
    let predicted = predict.path("--data", &new).with(&["--output", "-"]).succeeds();
    assert_eq!(predicted.stdout.lines().count(), 3, "{}", predicted.stdout);
}

#[test]
fn a_file_that_is_trained_on_and_validated_on_is_named() {
    let place = Place::new("rows.txt");
    let path = place.path("clicks.csv");
    std::fs::write(&path, table("row,user,price,bought\n", ["0", "1"])).unwrap();
    let run = Run::new("train").with(&["--auto", "--label", "bought", "--steps", "2"]);
    let run = run.path("--data", &path).path("--output-dir", &place.path("out"));
    let said = "clicks.csv is trained on and validated on";
    assert!(!run.clone().succeeds().stderr.contains(said), "a part is held out");
    let both = run.path("--valid", &path).succeeds();
    assert!(both.stderr.contains(said), "{}", both.stderr);
}

#[test]
fn a_row_is_not_taken_for_a_header() {
    let place = Place::new("rows.txt");
    let path = place.path("bare.csv");
    std::fs::write(&path, table("", ["0", "1"])).unwrap();
    let run = Run::new("train").with(&["--auto"]).path("--data", &path);
    run.fails(1, &["line 1 looks like a row", "write their names above it"]);
}
