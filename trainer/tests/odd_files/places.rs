//! Every place of a command line that names a file or a folder.

use super::fixture::{FORMATS, Fixture};

/// Stands for the path under test.
pub const HERE: &str = "{here}";
/// Stands for a path of the run's own: for what it writes.
pub const OWN: &str = "{own}";

/// A command line with one such place.
pub struct Place {
    pub name: String,
    /// The arguments, with [`HERE`] in one of them.
    pub arguments: Vec<String>,
    /// What of the fixture is right there; for an output: what the command reads.
    pub good: &'static str,
}

/// The model that trains in a moment; what it writes goes into a folder of its own.
const SMALL: &str = "--config @small.toml --steps 2 --threads 1 --output-dir {own}";
/// What says how to read records of `raw`.
const ONES: &str = "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1";

/// Places, each with what is good there. Words that begin with `@` name a file of the fixture.
fn places(fixture: &Fixture, list: &[(&'static str, String)]) -> Vec<Place> {
    let argument = |word: &str| match word.strip_prefix('@') {
        Some(name) => fixture.path(name).display().to_string(),
        None => word.to_owned(),
    };
    let place = |(good, words): &(&'static str, String)| Place {
        name: words.clone(),
        arguments: words.replace("SMALL", SMALL).split(' ').map(argument).collect(),
        good,
    };
    list.iter().map(place).collect()
}

/// What a command needs to read a format besides the format's name, by flags and by settings.
fn hints(format: &str) -> (String, String) {
    match format {
        "raw" => (format!(" --hotness {ONES}"), format!(" --set data.hotness=[{ONES}]")),
        _ => Default::default(),
    }
}

/// Every command that reads data, on each format.
pub fn data(fixture: &Fixture) -> Vec<Place> {
    let mut list = Vec::new();
    for (format, good) in FORMATS {
        let (flags, settings) = hints(format);
        let settings = format!("--set data.format={format}{settings}");
        list.push((good, format!("train SMALL {settings} --data {HERE}")));
        list.push((good, format!("data verify {HERE} --from {format}{flags}")));
        list.push((good, format!("data inspect {HERE} --from {format}{flags}")));
        let convert = format!("data convert --data {HERE} --from {format}{flags}");
        list.push((good, format!("{convert} --to parquet --output {OWN}")));
    }
    places(fixture, &list)
}

/// Commands that read data of any format, each on Criteo's text.
pub fn text(fixture: &Fixture) -> Vec<Place> {
    let list = [
        format!("train SMALL --data @good.txt --valid {HERE}"),
        format!("plan SMALL --data {HERE}"),
        format!("data make --data {HERE} --output {OWN}"),
        format!(
            "data multi-hot --data {HERE} --from criteo --sizes {ONES} --to npy --rows 9 \
             --dense-transform none --output {OWN}"
        ),
        format!("bench reader {HERE} --format criteo"),
        format!("eval --checkpoint @checkpoints --data {HERE}"),
        format!("predict --checkpoint @checkpoints --data {HERE} --output {OWN}.csv"),
        format!("launch -n 2 -- train SMALL --data {HERE}"),
    ];
    places(fixture, &list.map(|words| ("good.txt", words)))
}

/// Other files that are read.
pub fn settings(fixture: &Fixture) -> Vec<Place> {
    let ranks = "train SMALL --data @good.txt --ranks 2 --set";
    let list = [
        (
            "small.toml",
            format!(
                "train --config {HERE} --data @good.txt --steps 2 --set tables.rows=9 --output-dir \
                 {OWN}"
            ),
        ),
        ("small.toml", format!("plan --config {HERE}")),
        ("small.toml", format!("config show --config {HERE}")),
        ("small.toml", format!("config check --config {HERE}")),
        ("small.toml", format!("kernels list --config {HERE}")),
        (
            "cluster.toml",
            format!("plan --preset criteo-kaggle --cluster {HERE} --data-rows 1000000"),
        ),
        ("tuning.json", format!("{ranks} comm.tuning={HERE}")),
        ("tuning.toml", format!("{ranks} hybrid.latency_table={HERE}")),
        (
            "baseline.json",
            format!("bench barrier --ranks 2 -n 2 --max-regress 1e9% --baseline {HERE}"),
        ),
        ("good.md5", format!("data verify @good.txt --md5 {HERE}")),
        (
            "dictionary/dictionary.hld",
            format!(
                "train SMALL --data @good.txt --set data.ids=dictionary --set \
                 data.dictionary={HERE}"
            ),
        ),
    ];
    places(fixture, &list)
}

/// Commands that read a checkpoint, or a folder of checkpoints.
pub fn checkpoints(fixture: &Fixture) -> Vec<Place> {
    let list = [
        format!("checkpoint inspect {HERE}"),
        format!("checkpoint verify {HERE}"),
        format!("checkpoint export {HERE} --format safetensors --output {OWN}"),
        format!("eval --checkpoint {HERE} --data @good.txt"),
        format!("predict --checkpoint {HERE} --data @good.txt --output {OWN}.csv"),
        format!("train SMALL --data @good.txt --init-from {HERE}"),
        format!("train SMALL --data @good.txt --resume --checkpoint-dir {HERE}"),
    ];
    places(fixture, &list.map(|words| ("checkpoints", words)))
}

/// Places of files that are written, with what the command reads. The last argument is the place,
/// or the option's value.
pub fn outputs(fixture: &Fixture) -> Vec<Place> {
    let list = [
        ("good.txt", format!("train SMALL --data @good.txt --log-json {HERE}")),
        ("good.txt", format!("train SMALL --data @good.txt --mllog {HERE}")),
        ("good.txt", format!("train SMALL --data @good.txt --trace {HERE}")),
        (
            "good.csv",
            format!("data convert --data @good.csv --to headlong --rows 9 --output {HERE}"),
        ),
        ("good.csv", format!("data convert --data @good.csv --to parquet --output {HERE}")),
        ("good.txt", format!("predict --checkpoint @checkpoints --data @good.txt --output {HERE}")),
        (
            "checkpoints/step-000000002/manifest.json",
            format!("checkpoint export @checkpoints --format safetensors --output {HERE}"),
        ),
        ("good.txt", format!("eval --checkpoint @checkpoints --data @good.txt --json-file {HERE}")),
        ("good.txt", format!("data inspect @good.txt --json-file {HERE}")),
        ("good.txt", format!("data verify @good.txt --json-file {HERE}")),
        ("good.txt", format!("plan SMALL --data @good.txt --json-file {HERE}")),
        ("small.toml", format!("kernels list --config @small.toml --json-file {HERE}")),
        (
            "cluster.toml",
            format!(
                "plan --preset criteo-kaggle --data-rows 1000000 --cluster @cluster.toml --plot \
                 {HERE}"
            ),
        ),
        (
            "baseline.json",
            format!(
                "bench barrier --ranks 2 -n 2 --max-regress 1e9% --baseline @baseline.json \
                 --json-file {HERE}"
            ),
        ),
    ];
    places(fixture, &list)
}
