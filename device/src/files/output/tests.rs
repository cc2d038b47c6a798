use std::os::unix::fs::{MetadataExt as _, symlink};

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_name_holds_the_old_file_until_the_new_one_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.csv");
    fs::write(&path, "old").unwrap();
    let mut file = OutputFile::create(&path).unwrap();
    file.write_all(b"half").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    drop(file);
    assert_eq!(names(folder.path()), ["out.csv"], "nothing is left");
    OutputFile::write(&path, b"new").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(names(folder.path()), ["out.csv"]);
}

#[test]
fn what_cannot_be_a_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    assert!(OutputFile::create(folder.path()).unwrap_err().to_string().contains("a directory"));
    assert!(OutputFile::create(&folder.path().join("absent/out.csv")).is_err());
    assert!(OutputFile::create(Path::new("/")).is_err());
}

#[test]
fn a_second_writer_is_refused_until_the_first_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.csv");
    let first = OutputFile::create(&path).unwrap();
    let refused = OutputFile::create(&path).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
    assert_eq!(refused.to_string(), "it is being written by another process");
    assert!(OutputFile::create(&folder.path().join("other.csv")).is_ok(), "other names are free");
    drop(first);
    let second = OutputFile::create(&path).unwrap();
    second.commit().unwrap();
    // Where all write the same, none is refused.
    let one = OutputFile::create_shared(&path).unwrap();
    let other = OutputFile::create_shared(&path).unwrap();
    one.commit().unwrap();
    other.commit().unwrap();
    assert_eq!(names(folder.path()), ["out.csv"]);
}

#[test]
fn planted_links_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let [victim, path] = ["victim", "out.csv"].map(|name| folder.path().join(name));
    fs::write(&victim, "precious").unwrap();
    // The names that were guessed before, and the link that the user has made.
    for planted in [".tmp-out.csv", "out.csv.partial", "out.csv"] {
        symlink(&victim, folder.path().join(planted)).unwrap();
    }
    OutputFile::write(&path, b"new").unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(fs::symlink_metadata(&path).unwrap().is_file(), "the link is replaced");
    // The one name that can be guessed is not opened through a link.
    symlink(&victim, folder.path().join(".out.csv.lock")).unwrap();
    let refused = OutputFile::create(&path).unwrap_err().to_string();
    assert!(refused.contains(".out.csv.lock is a symbolic link"), "{refused}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn what_a_killed_process_has_left_goes_with_the_next_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let [path, lock] = ["out.csv", ".out.csv.lock"].map(|name| folder.path().join(name));
    let left = folder.path().join(".tmp-out.csv-AbCdEfGh");
    let others = [".tmp-out.csv-mine", ".tmp-step-000000001", "letter"];
    others.iter().for_each(|name| fs::write(folder.path().join(name), "kept").unwrap());
    fs::write(&left, "half").unwrap();
    fs::write(&lock, ".tmp-out.csv-AbCdEfGh").unwrap();
    OutputFile::write(&path, b"new").unwrap();
    assert!(!left.exists() && !lock.exists());
    fs::write(&lock, "").unwrap();
    OutputFile::write(&path, b"new").unwrap();
    for foreign in ["letter", "../letter", ".tmp-out.csv-/../letter", ".tmp-step-000000001"] {
        fs::write(&lock, foreign).unwrap();
        assert!(OutputFile::write(&path, b"newer").is_err());
        assert_eq!(fs::read_to_string(&lock).unwrap(), foreign);
    }
    fs::remove_file(&lock).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(
        names(folder.path()),
        [".tmp-out.csv-mine", ".tmp-step-000000001", "letter", "out.csv"]
    );
}

#[test]
fn modes_are_those_of_a_plain_file_and_of_the_one_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let [plain, path] = ["plain", "out.csv"].map(|name| folder.path().join(name));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    File::create(&plain).unwrap();
    OutputFile::write(&path, b"new").unwrap();
    assert_eq!(mode(&path), mode(&plain));
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    OutputFile::write(&path, b"newer").unwrap();
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn the_longest_name_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x".repeat(255));
    OutputFile::write(&path, b"new").unwrap();
    assert_eq!(names(folder.path()).len(), 1);
}

#[test]
fn devices_pipes_and_open_files_are_written_straight() {
    use std::os::fd::AsRawFd as _;
    let folder = tempfile::tempdir().unwrap();
    OutputFile::write(Path::new("/dev/null"), b"nothing").unwrap();
    assert!(!fs::metadata("/dev/null").unwrap().is_file());

    let log = folder.path().join("log");
    fs::write(&log, "before\n").unwrap();
    let open = File::options().append(true).open(&log).unwrap();
    let inode = fs::metadata(&log).unwrap().ino();
    let link = folder.path().join("link");
    symlink(format!("/proc/self/fd/{}", open.as_raw_fd()), &link).unwrap();
    for path in [PathBuf::from(format!("/dev/fd/{}", open.as_raw_fd())), link] {
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"line\n").unwrap();
        assert!(file.write_at(b"x", 0).unwrap_err().to_string().contains("front to back"));
        file.commit().unwrap();
    }
    assert_eq!(fs::read_to_string(&log).unwrap(), "before\nline\nline\n");
    assert_eq!(fs::metadata(&log).unwrap().ino(), inode, "not replaced");
    assert!(OutputFile::create(Path::new("/dev/fd/999999")).is_err());

    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read_to_string(pipe).unwrap()
    });
    let mut file = OutputFile::create(&pipe).unwrap();
    file.write_all(b"through").unwrap();
    assert!(file.write_at(b"x", 0).unwrap_err().to_string().contains("front to back"));
    file.commit().unwrap();
    assert_eq!(reader.join().unwrap(), "through");
    assert_eq!(names(folder.path()), ["link", "log", "pipe"]);
}
