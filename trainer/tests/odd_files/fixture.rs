//! Good files of every kind, in a folder where every user may read and write.

use crate::run_support::{Run, gzip, rows};
use headlong_device::rng::CounterRng;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The formats of data, each with a good file. Both kinds of compressed text are formats here, too.
pub const FORMATS: [(&str, &str); 7] = [
    ("criteo", "good.txt.gz"),
    ("csv", "good.csv"),
    ("parquet", "good.parquet"),
    ("headlong", "good.hld"),
    ("mlperf", "good.bin"),
    ("raw", "good.raw"),
    ("criteo", "good.txt.zst"),
];

/// Smaller than any preset.
const SMALL: &str = "\
[model]\ndim = 8\nbottom = [16, 8]\ntop = [16, 1]\n
[tables]\nrows = 1000\n
[train]\nbatch_size = 64\nlog_every = 1\n";

/// A folder that everybody may write to, with good files of every kind.
pub struct Fixture {
    folder: TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        let fixture = Self { folder: TempDir::new().unwrap() };
        open_to_all(fixture.folder.path());
        // Where everybody may run it.
        fs::copy(env!("CARGO_BIN_EXE_headlong"), fixture.program()).unwrap();
        fixture.write_data();
        fixture.write_the_rest();
        open_all_below(fixture.folder.path());
        fixture
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn program(&self) -> PathBuf {
        self.path("headlong")
    }

    fn write_data(&self) {
        let text = rows(300, 7);
        fs::write(self.path("good.txt"), &text).unwrap();
        fs::write(self.path("good.txt.gz"), gzip(&text)).unwrap();
        fs::write(self.path("good.txt.zst"), zstd::encode_all(text.as_bytes(), 1).unwrap())
            .unwrap();
        for (format, name) in &FORMATS[1..6] {
            let run = Run::new("data").with(&["convert"]).path("--data", &self.path("good.txt"));
            let run = run.with(&["--to", format]).path("--output", &self.path(name));
            let more: &[&str] = match *format {
                "headlong" | "mlperf" => &["--rows", "1000"],
                "raw" => &["--rows", "1000", "--dense-transform", "ln(x+1)"],
                _ => &[],
            };
            run.with(more).succeeds();
        }
    }

    fn write_the_rest(&self) {
        fs::write(self.path("small.toml"), SMALL).unwrap();
        let train =
            Run::new("train").path("--config", &self.path("small.toml")).with(&["--steps", "2"]);
        let train =
            train.path("--data", &self.path("good.txt")).path("--output-dir", &self.path("output"));
        train.path("--checkpoint-dir", &self.path("checkpoints")).succeeds();
        let make = Run::new("data").with(&["make"]).path("--data", &self.path("good.txt"));
        make.path("--output", &self.path("dictionary")).succeeds();
        let cluster = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/clusters/laptop.toml");
        fs::copy(cluster, self.path("cluster.toml")).unwrap();
        let sums = Command::new("md5sum").arg(self.path("good.txt")).output().unwrap();
        fs::write(self.path("good.md5"), sums.stdout).unwrap();
        let bench = |words: &[&str]| Run::new("bench").with(words).with(&["--ranks", "2"]);
        for output in ["tuning.toml", "tuning.json"] {
            let tune =
                ["tune", "--backend", "local", "--seconds-per-size", "0.001", "--max-bytes", "4K"];
            bench(&tune).path("--output", &self.path(output)).succeeds();
        }
        let barrier =
            bench(&["barrier", "-n", "2"]).path("--json-file", &self.path("baseline.json"));
        barrier.succeeds();
    }
}

/// Bytes without meaning.
pub fn noise(count: u64) -> Vec<u8> {
    let random = CounterRng::new(1, 1);
    (0..count).map(|at| (random.uniform(at) * 256.0) as u8).collect()
}

/// A FIFO that no process reads or writes.
pub fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").args(["-m", "666"]).arg(path).status().unwrap().success());
}

/// A file or folder that may not be read.
pub fn deny(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
}

/// A folder where everybody may do everything.
pub fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

/// The same with all that is in it.
pub fn open_all_below(path: &Path) {
    open_to_all(path);
    for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => open_all_below(&entry.path()),
            kind if kind.is_file() => open_to_all(&entry.path()),
            _ => {}
        }
    }
}

/// A folder with all its files.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &to),
            false => fs::copy(entry.path(), to).map(drop).unwrap(),
        }
    }
}
