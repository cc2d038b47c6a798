//! The built program on small made-up data: for tests of whole runs.

#![allow(dead_code, reason = "each test binary uses its own part")]

use headlong_device::rng::CounterRng;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A model that trains a thousand steps a second, with tables that fill a few megabytes.
const SMALL: [&str; 12] = [
    "--set",
    "model.dim=8",
    "--set",
    "model.bottom=[16,8]",
    "--set",
    "model.top=[16,1]",
    "--set",
    "tables.rows=1000",
    "--set",
    "train.batch_size=64",
    "--set",
    "train.log_every=1",
];

/// Rows in Criteo's format whose label follows the first integer and the first id.
pub fn rows(count: u64, seed: u64) -> String {
    let random = CounterRng::new(seed, 1);
    let mut text = String::new();
    for row in 0..count {
        let draw = |column: u64| random.uniform(row * 64 + column);
        let counted = (draw(1) * 50.0) as u64;
        let id = |column: u64| (draw(column).powi(3) * 400.0) as u32;
        let truth = 0.08 + 0.5 * f32::from(counted > 25) + 0.3 * f32::from(id(14) % 2 == 1);
        write!(text, "{}\t{counted}", u8::from(draw(0) < truth)).unwrap();
        for column in 2..14 {
            match draw(column) {
                missing if missing < 0.2 => text.push('\t'),
                value => write!(text, "\t{}", (value * 300.0) as u64).unwrap(),
            }
        }
        for column in 14..40 {
            match draw(column) {
                missing if missing > 0.95 => text.push('\t'),
                _ => write!(text, "\t{:08x}", id(column).wrapping_mul(0x9e37_79b1)).unwrap(),
            }
        }
        text.push('\n');
    }
    text
}

/// Writes `text`, compressed where the name ends in `.gz`.
pub fn write(path: &Path, text: &str) {
    if path.extension().is_some_and(|extension| extension == "gz") {
        std::fs::write(path, gzip(text)).unwrap();
    } else {
        std::fs::write(path, text).unwrap();
    }
}

/// `text` as one gzip member.
pub fn gzip(text: &str) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(text.as_bytes()).unwrap();
    out.finish().unwrap()
}

/// A folder with training and validation data, and room for what runs write.
pub struct Place {
    folder: TempDir,
    /// Training rows.
    pub train: PathBuf,
    /// Validation rows.
    pub valid: PathBuf,
}

impl Place {
    /// 1,500 rows in a file of this name, which decides the compression, and 300 to validate on.
    pub fn new(name: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let (train, valid) = (folder.path().join(name), folder.path().join("valid.txt"));
        write(&train, &rows(1500, 7));
        write(&valid, &rows(300, 8));
        Self { folder, train, valid }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `headlong train` of the small model on the training rows, everything written inside the
    /// folder.
    pub fn train(&self) -> Run {
        self.train_on(1)
    }

    /// The same on some threads.
    pub fn train_on(&self, threads: usize) -> Run {
        self.train_without_data()
            .path("--data", &self.train)
            .with(&["--threads", &threads.to_string()])
    }

    /// The same with data still to be named.
    pub fn train_without_data(&self) -> Run {
        self.train_into(&self.path("output"))
    }

    /// Training on one table of 10 rows, whose validation data asks for row 10.
    pub fn train_on_a_bad_row(&self) -> Run {
        let csv = |last: u32| {
            (0..600).fold("label,id\n".to_owned(), |text, row| {
                format!("{text}{},{}\n", row % 2, if row == 500 { last } else { row % 7 })
            })
        };
        let (data, valid) = (self.path("data.csv"), self.path("bad.csv"));
        std::fs::write(&data, csv(1)).unwrap();
        std::fs::write(&valid, csv(10)).unwrap();
        let train = self.train_without_data().path("--data", &data).path("--valid", &valid);
        let train = train.with(&["--set", "data.ids=rows", "--set", "tables.rows=[10]"]);
        let train = train.with(&["--set", "data.columns.label=\"label\""]);
        train.with(&["--set", "data.columns.categorical=[\"id\"]"])
    }

    /// The same with another output folder.
    pub fn train_into(&self, output: &Path) -> Run {
        Run::new("train").with(&SMALL).path("--output-dir", output)
    }
}

/// A command line of the program.
#[derive(Clone, Debug)]
pub struct Run {
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Run {
    /// `headlong COMMAND`.
    pub fn new(command: &str) -> Self {
        // The bundle for a GPU carries program and tests to another place.
        let built = env!("CARGO_BIN_EXE_headlong");
        let program = std::env::var_os("HEADLONG_PROGRAM").map_or(built.into(), PathBuf::from);
        Self { program, arguments: vec![command.to_owned()], environment: Vec::new() }
    }

    /// By an example of the library instead, where that is a program with kinds of tables of its
    /// own.
    pub fn by_example(mut self, name: &str) -> Self {
        // Cargo builds examples with tests, in a folder next to the program.
        self.program =
            Path::new(env!("CARGO_BIN_EXE_headlong")).with_file_name("examples").join(name);
        self
    }

    /// With more arguments. A key that was set already is set again: the program takes one value of
    /// a key.
    pub fn with(mut self, arguments: &[&str]) -> Self {
        let key = |setting: &str| setting.split_once('=').map(|(key, _)| key.to_owned());
        for &argument in arguments {
            let is_setting = self.arguments.last().is_some_and(|last| last == "--set");
            if let Some(set) = key(argument).filter(|_| is_setting) {
                let former = self
                    .arguments
                    .windows(2)
                    .position(|pair| pair[0] == "--set" && key(&pair[1]).as_ref() == Some(&set));
                former.map(|at| self.arguments.drain(at..at + 2).count());
            }
            self.arguments.push(argument.to_owned());
        }
        self
    }

    /// The same arguments of another command.
    pub fn of_command(mut self, command: &str) -> Self {
        self.arguments[0] = command.to_owned();
        self
    }

    /// With a flag that takes a path.
    pub fn path(self, flag: &str, path: &Path) -> Self {
        self.with(&[flag, path.to_str().unwrap()])
    }

    /// With a variable of the environment: for the software device, whose faults and sizes it sets.
    pub fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// The same, started by `headlong launch` as `ranks` processes.
    pub fn launched(self, ranks: usize) -> Self {
        let mut arguments =
            vec!["launch".to_owned(), "-n".to_owned(), ranks.to_string(), "--".to_owned()];
        arguments.extend(self.arguments);
        Self { arguments, ..self }
    }

    /// The arguments, for a shell that sets something up first.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// The command, ready to be started.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null());
        // What a run leaves in its default output folder is no part of the tree.
        // (A test program may have been carried to a machine without it.)
        if Path::new(env!("CARGO_TARGET_TMPDIR")).is_dir() {
            command.current_dir(env!("CARGO_TARGET_TMPDIR"));
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts it; what it prints is dropped.
    pub fn start(&self) -> Child {
        self.command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Runs it to its end.
    pub fn end(&self) -> Ended {
        Ended::of(self.command().output().unwrap())
    }

    /// Runs it to an end that must be a success.
    pub fn succeeds(&self) -> Ended {
        let ended = self.end();
        assert_eq!(ended.code, Some(0), "{:?}: {}", self.arguments, ended.stderr);
        ended
    }

    /// Calls of the driver by name, as the software device counts them into the file `counted`.
    pub fn driver_calls(self, counted: &Path) -> BTreeMap<String, i64> {
        self.variable("SOFTCUDA_CALLS", counted.to_str().unwrap()).succeeds();
        let text = std::fs::read_to_string(counted).unwrap();
        let line = |line: &str| {
            let (name, count) = line.split_once(' ').unwrap();
            (name.to_owned(), count.trim().parse().unwrap())
        };
        text.lines().map(line).collect()
    }

    /// Runs it to an end with this exit code and all of these words in its last line of error.
    pub fn fails(&self, code: i32, words: &[&str]) -> Ended {
        let ended = self.end();
        assert_eq!(ended.code, Some(code), "{:?}: {}", self.arguments, ended.stderr);
        for word in words {
            assert!(
                ended.stderr.contains(word),
                "{:?}: \"{word}\" is not in: {}",
                self.arguments,
                ended.stderr
            );
        }
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        ended
    }
}

/// What a run left on its streams.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; none after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ended {
    /// What a command left.
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The weights' digest of the last words.
    pub fn digest(&self) -> String {
        let digest =
            self.stdout.lines().filter_map(|line| line.strip_prefix("weights ")).next_back();
        digest
            .unwrap_or_else(|| panic!("no digest in: {}{}", self.stdout, self.stderr))
            .trim()
            .to_owned()
    }
}

/// The events of a JSON log.
pub fn events(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    // Note: the last line may be in the middle of being written.
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// The last event of this name.
pub fn last_event(log: &Path, name: &str) -> Value {
    let events = events(log);
    let found = events.into_iter().rfind(|event| event["event"] == name);
    found.unwrap_or_else(|| panic!("no event {name} in {}", log.display()))
}

/// The weights' digest of the last `done` event.
pub fn digest(log: &Path) -> String {
    last_event(log, "done")["weights_digest"].as_str().unwrap().to_owned()
}

/// Names in a folder, sorted; empty where there is none.
pub fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The steps of the checkpoints in a folder.
pub fn steps(folder: &Path) -> Vec<u64> {
    names(folder).iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect()
}

/// Waits until `met`, for a minute at most.
pub fn wait_until(what: &str, mut met: impl FnMut() -> bool) {
    let started = Instant::now();
    while !met() {
        assert!(started.elapsed() < Duration::from_secs(60), "waited a minute for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The processes of the launcher's ranks that have not ended, rank 0 first.
pub fn ranks_of(launcher: &Child) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").expect("Linux");
    let numbers =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut words = rest.split_whitespace();
        words.next() != Some("Z") && words.next() == Some(&launcher.id().to_string())
    };
    let mut ranks: Vec<i32> = numbers.filter(is_child).collect();
    ranks.sort_unstable();
    ranks
}

pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Sends a signal by its short name: `INT`, `TERM`.
pub fn signal(child: &Child, name: &str) {
    let sent =
        Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status().unwrap();
    assert!(sent.success(), "kill -{name} failed");
}
