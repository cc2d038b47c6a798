use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn many_read_or_one_writes() {
    let folder = tempfile::tempdir().unwrap();
    let open = || FolderLock::open(folder.path()).unwrap();
    let (one, other) = (open(), open());
    assert!(one.try_shared() && other.try_shared());
    assert!(!one.try_exclusive(), "another reads");
    other.release();
    assert!(one.try_exclusive());
    assert!(!other.try_shared() && !other.exclusive_within(PAUSE * 2));
    assert!(one.try_shared(), "a lock to write becomes one to read");
    other.wait_for_writer();
    assert!(!other.try_exclusive());
    drop(one);
    assert!(other.try_exclusive());
    assert!(other.is_in_place());
    fs::remove_file(folder.path().join(FOLDER_LOCK)).unwrap();
    assert!(!other.is_in_place());
}

#[test]
fn a_name_given_up_while_another_waits_for_it_is_taken_by_that_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(".out.lock");
    let taken = AtomicUsize::new(0);
    let work = || {
        while taken.load(Ordering::Relaxed) < 3000 {
            if let Ok(lock) = NameLock::take(&path, OsStr::new("none")) {
                let lock = lock.expect("this file system has locks");
                assert!(is_at(&lock.file, &path), "two hold the name");
                taken.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(work))));
    assert!(!path.exists());
}

#[test]
fn a_file_of_that_name_that_is_no_lock_of_ours_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join(".out.lock"), folder.path().join("rows.txt"));
    let take = || NameLock::take(&path, OsStr::new(".tmp-out-"));
    fs::write(&other, ".tmp-out-1").unwrap();
    fs::write(folder.path().join(".tmp-out-1"), "").unwrap();
    fs::hard_link(&other, &path).unwrap();
    assert!(take().unwrap_err().to_string().contains("no lock of ours"));
    fs::remove_file(&path).unwrap();
    for content in ["important", ".tmp-other-1", ".tmp-out-/../rows.txt"] {
        fs::write(&path, content).unwrap();
        assert!(take().is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
    assert_eq!(fs::read_to_string(&other).unwrap(), ".tmp-out-1");
    fs::write(&path, ".tmp-out-1").unwrap();
    assert!(take().unwrap().is_some(), "what a crash has left");
    assert!(!path.exists() && !folder.path().join(".tmp-out-1").exists());
}
