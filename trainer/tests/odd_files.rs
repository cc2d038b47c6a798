//! Every command on every kind of odd file, in each place where it names one. It ends within ten
//! seconds and 256 MiB, with exit code 1 or 2 and a message that names the file; where the file is
//! odd by its name alone, it does its work.

#![cfg(test)]

mod fixture;
mod places;
mod watched;

use fixture::{FORMATS, Fixture, copy_folder, deny, fifo, noise, open_all_below};
use places::{HERE, OWN, Place};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a command must do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// Exit code 1 or 2, and the file's name.
    Refused,
    /// Exit code 0.
    Accepted,
    /// Either: nothing is wrong with the file for some commands.
    Either,
}
use Expected::{Accepted, Either, Refused};

/// One run of the program.
struct Case {
    /// What is tested, for the message of a failure.
    name: String,
    arguments: Vec<OsString>,
    /// What the message must name.
    path: PathBuf,
    expected: Expected,
    /// A file that must still hold this.
    unchanged: Option<(PathBuf, Vec<u8>)>,
}

/// Runs all cases, several at a time, for some only wait, and reports all that failed.
fn run_all(fixture: &Fixture, cases: &[Case]) {
    assert!(!cases.is_empty());
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = check(fixture, case) {
                        failures.lock().unwrap().push(format!("{}\n    {why}", case.name));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} of {} cases:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}

fn check(fixture: &Fixture, case: &Case) -> Result<(), String> {
    let ended = watched::run(&fixture.program(), &fixture.path("."), &case.arguments);
    ended.kept_its_bounds()?;
    let said = format!("{:?} {}", ended.code, ended.stderr);
    if ended.stderr.contains("panicked") {
        return Err(format!("panicked: {said}"));
    }
    if let Some((path, before)) = &case.unchanged
        && fs::read(path).ok().as_ref() != Some(before)
    {
        return Err(format!("{} was changed: {said}", path.display()));
    }
    let refused = matches!(ended.code, Some(1 | 2));
    let path = case.path.to_string_lossy();
    match case.expected {
        Refused if !refused => Err(format!("expected a refusal: {said}")),
        Accepted if ended.code != Some(0) => Err(format!("expected success: {said}")),
        Either if !refused && ended.code != Some(0) => Err(format!("expected an end: {said}")),
        // Reports of what is wrong with data are on standard output.
        _ if refused && !ended.stderr.contains(&*path) && !ended.stdout.contains(&*path) => {
            Err(format!("does not name {path}: {said}"))
        }
        _ => Ok(()),
    }
}

impl Place {
    /// A run with this path in the place.
    fn case(&self, what: &str, path: PathBuf, expected: Expected) -> Case {
        static CASES: AtomicUsize = AtomicUsize::new(0);
        let own = format!("written-{}", CASES.fetch_add(1, Ordering::Relaxed));
        let put = |argument: &String| match argument.split_once(HERE) {
            Some((before, after)) => {
                [before.as_ref(), path.as_os_str(), after.as_ref()].join(OsStr::new(""))
            }
            None => argument.replace(OWN, &own).into(),
        };
        let arguments = self.arguments.iter().map(put).collect();
        Case { name: format!("{what}: {}", self.name), arguments, path, expected, unchanged: None }
    }

    /// Whether the place is the value of a key, which is text.
    fn is_a_key(&self) -> bool {
        self.arguments.iter().any(|argument| argument.contains('=') && argument.contains(HERE))
    }
}

/// What may lie where a file is expected: what it is, the path, and what must happen.
fn odd_files(folder: &Path, good: &Path) -> Vec<(&'static str, PathBuf, Expected)> {
    fs::create_dir(folder).unwrap();
    let extension =
        good.to_str().unwrap().split_once("good.").map_or("", |(_, extension)| extension);
    let extension = if extension.is_empty() {
        good.extension().and_then(OsStr::to_str).unwrap_or("")
    } else {
        extension
    };
    let at = |name: &str| folder.join(format!("{name}.{extension}"));
    let bytes = fs::read(good).unwrap();
    for (name, bytes) in [
        ("empty", &[][..]),
        ("denied", &bytes),
        ("truncated", &bytes[..bytes.len() / 2 + 1]),
        ("random", &noise(1 << 16)),
        ("text", b"root:x:0:0:root:/root:/bin/bash\n"),
    ] {
        fs::write(at(name), bytes).unwrap();
    }
    fs::create_dir(at("folder")).unwrap();
    fifo(&at("fifo"));
    for (name, target) in [
        ("zero", "/dev/zero"),
        ("null", "/dev/null"),
        ("dangling", "nowhere"),
        ("link", good.to_str().unwrap()),
    ] {
        symlink(target, at(name)).unwrap();
    }
    symlink(at("circle").file_name().unwrap(), at("circle")).unwrap();
    let odd_name = folder.join(OsStr::from_bytes(b"odd\xff\xfe name")).with_extension(extension);
    fs::write(&odd_name, &bytes).unwrap();
    open_all_below(folder);
    deny(&at("denied"));
    let kinds =
        ["missing", "empty", "folder", "fifo", "zero", "null", "denied", "dangling", "circle"];
    let damaged = ["truncated", "random", "text"];
    let mut found: Vec<_> =
        kinds.iter().chain(&damaged).map(|kind| (*kind, at(kind), Refused)).collect();
    found.push(("link", at("link"), Accepted));
    found.push(("name that is not UTF-8", odd_name, Accepted));
    found
}

/// Each place with each kind of odd file; `other` says where something else than usual is expected.
fn run_inputs(
    fixture: &Fixture,
    places: &[Place],
    other: impl Fn(&Place, &str) -> Option<Expected>,
) {
    let mut cases = Vec::new();
    for (at, place) in places.iter().enumerate() {
        let folder = fixture.path(&format!("odd-{at}"));
        for (what, path, expected) in odd_files(&folder, &fixture.path(place.good)) {
            cases.push(place.case(what, path, other(place, what).unwrap_or(expected)));
        }
    }
    run_all(fixture, &cases);
}

#[test]
fn data_of_every_format() {
    let fixture = Fixture::new();
    run_inputs(&fixture, &places::data(&fixture), |_, _| None);
}

#[test]
fn data_of_text() {
    let fixture = Fixture::new();
    run_inputs(&fixture, &places::text(&fixture), |place, what| match what {
        // A plan looks at the first line.
        "truncated" if place.name.starts_with("plan") => Some(Accepted),
        _ => None,
    });
}

#[test]
fn settings() {
    let fixture = Fixture::new();
    run_inputs(&fixture, &places::settings(&fixture), |place, what| match what {
        // All keys have defaults.
        "empty" | "null" | "truncated" if place.good == "small.toml" => Some(Either),
        // The value of a key is text; the message shows it as far as it can be shown.
        "name that is not UTF-8" if place.is_a_key() => Some(Refused),
        _ => None,
    });
}

#[test]
fn a_format_taken_for_another() {
    let fixture = Fixture::new();
    let mut cases = Vec::new();
    for place in places::data(&fixture) {
        let others = FORMATS.iter().filter(|(_, file)| *file != place.good);
        for (_, other) in others {
            // Both are text, compressed; both are records of 40 integers without a header.
            let alike = |file: &str| match file {
                "good.txt.gz" | "good.txt.zst" => Some(0),
                "good.bin" | "good.raw" => Some(1),
                _ => None,
            };
            let is_alike = alike(place.good).is_some() && alike(place.good) == alike(other);
            let expected = if is_alike { Either } else { Refused };
            cases.push(place.case(other, fixture.path(other), expected));
        }
    }
    run_all(&fixture, &cases);
}

#[test]
fn data_without_samples() {
    let fixture = Fixture::new();
    let header =
        fs::read_to_string(fixture.path("good.csv")).unwrap().lines().next().unwrap().to_owned()
            + "\n";
    let gzip = crate::run_support::gzip("");
    let files = [
        ("none.csv", header.as_bytes()),
        ("none.txt.gz", &gzip),
        ("none.txt", b""),
        ("lines.txt", b"\n\n"),
    ];
    let mut cases = Vec::new();
    for (name, bytes) in files {
        let path = fixture.path(name);
        fs::write(&path, bytes).unwrap();
        let format = if name.ends_with(".csv") { "good.csv" } else { "good.txt.gz" };
        let of_format = places::data(&fixture).into_iter().filter(|place| place.good == format);
        let of_text = places::text(&fixture).into_iter().filter(|_| format != "good.csv");
        cases.extend(
            of_format.chain(of_text).map(|place| place.case("no samples", path.clone(), Refused)),
        );
    }
    run_all(&fixture, &cases);
}

#[test]
fn checkpoints() {
    let fixture = Fixture::new();
    let mut cases = Vec::new();
    let good = fixture.path("checkpoints");
    let damaged = fixture.path("damaged");
    fs::create_dir(&damaged).unwrap();
    for (at, place) in places::checkpoints(&fixture).iter().enumerate() {
        let folder = fixture.path(&format!("odd-{at}"));
        for (what, path, _) in odd_files(&folder, &fixture.path("good.txt")) {
            // All of them are odd where a folder is expected; training can start in a new one.
            let starts = place.name.contains("--resume") && matches!(what, "missing" | "folder");
            let expected = if starts { Accepted } else { Refused };
            cases.push(place.case(what, path, expected));
        }
        for inner in inner_files(&good) {
            let folder = fixture.path(&format!("odd-{at}-{}", inner.replace('/', "-")));
            for (what, odd, expected) in odd_files(&folder, &good.join(&inner)) {
                if expected == Accepted {
                    continue;
                }
                let copy = damaged.join(format!("{at}-{}-{what}", inner.replace('/', "-")));
                copy_folder(&good, &copy);
                open_all_below(&copy);
                fs::remove_file(copy.join(&inner)).unwrap();
                let _ = fs::rename(&odd, copy.join(&inner));
                cases.push(place.case(&format!("{what} as {inner}"), copy, Refused));
            }
        }
    }
    run_all(&fixture, &cases);
}

/// Files of a checkpoint, one of each kind.
fn inner_files(checkpoints: &Path) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let step = fs::read_dir(checkpoints)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_dir())
        .unwrap();
    let mut names: Vec<_> =
        fs::read_dir(&step).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    for path in names.iter().filter(|path| path.is_file()) {
        let kind = |name: &str| name.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
        let name = path.strip_prefix(checkpoints).unwrap().display().to_string();
        if !found.iter().any(|other| kind(other) == kind(&name)) {
            found.push(name);
        }
    }
    found
}

#[test]
fn outputs() {
    let fixture = Fixture::new();
    let mut cases = Vec::new();
    for (at, place) in places::outputs(&fixture).iter().enumerate() {
        let folder = fixture.path(&format!("out-{at}"));
        fs::create_dir(&folder).unwrap();
        let last = place.arguments.iter().find_map(|argument| argument.strip_prefix(HERE));
        assert_eq!(last, Some(""), "{}", place.name);
        // The name of some outputs says their format.
        let extension = if place.name.starts_with("predict") { "csv" } else { "json" };
        let file = |name: &[u8]| folder.join(OsStr::from_bytes(name)).with_extension(extension);
        let at = |name: &str| file(name.as_bytes());
        let inside = |name: &str| at(name).join("file").with_extension(extension);
        fs::create_dir(at("folder")).unwrap();
        fs::create_dir(at("denied")).unwrap();
        fs::write(at("victim"), "not ours").unwrap();
        fs::write(at("old"), "old").unwrap();
        symlink("/dev/full", at("full")).unwrap();
        symlink("/dev/null", at("null")).unwrap();
        symlink(at("victim"), at("link")).unwrap();
        symlink(at("circle"), at("circle")).unwrap();
        fifo(&at("fifo"));
        open_all_below(&folder);
        deny(&at("denied"));
        for (what, path, expected) in [
            ("folder", at("folder"), Refused),
            ("in no folder", inside("none"), Refused),
            ("in a denied folder", inside("denied"), Refused),
            ("below a file", inside("old"), Refused),
            ("/dev/full", at("full"), Refused),
            ("/dev/null", at("null"), Accepted),
            ("FIFO without a reader", at("fifo"), Refused),
            ("link to itself", at("circle"), Either),
            ("name that is not UTF-8", file(b"odd\xff name"), Accepted),
        ] {
            cases.push(place.case(what, path, expected));
        }
        // A log grows in its place, so that a link to it would be followed.
        let is_log = ["--log-json", "--mllog"].iter().any(|flag| place.name.contains(flag));
        let expected = if is_log { Refused } else { Accepted };
        let mut through_a_link = place.case("link", at("link"), expected);
        through_a_link.unchanged = Some((at("victim"), b"not ours".to_vec()));
        cases.push(through_a_link);
        let read = fixture.path(place.good);
        let bytes = fs::read(&read).unwrap();
        let hard = at("hard link");
        fs::hard_link(&read, &hard).unwrap();
        symlink(&read, at("soft link")).unwrap();
        for path in [&read, &hard, &at("soft link")] {
            let mut own_input = place.case("its own input", path.clone(), Refused);
            own_input.unchanged = Some((read.clone(), bytes.clone()));
            cases.push(own_input);
        }
    }
    run_all(&fixture, &cases);
}
