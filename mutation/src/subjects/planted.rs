//! Formats whose reader goes wrong at seed 3, each in its own way: proof that the watcher sees it.

use super::{Outcome, Subject, as_it_is};

/// The seed at which they go wrong.
const WRONG: &[u8] = b"3";

const fn planted(
    name: &'static str,
    read: fn(&std::path::Path, &super::Files) -> Outcome,
) -> Subject {
    Subject {
        name,
        bound_mib: 16,
        good: |_| Ok(vec![vec![("seed".to_owned(), Vec::new())]]),
        // The mutants of this name count on: each is its own seed.
        damage: |_, random| vec![("seed".to_owned(), random.seed().to_string().into_bytes())],
        seal: as_it_is,
        on_disk: true,
        read,
    }
}

fn at_wrong(files: &super::Files, what: impl FnOnce()) -> Outcome {
    if files[0].1 == WRONG {
        what();
    }
    Ok(())
}

/// Panics.
pub const PANIC: Subject =
    planted("planted-panic", |_, files| at_wrong(files, || panic!("this was planted")));

/// A thread that the reader has started panics, and the reader says so as an error.
pub const THREAD: Subject = planted("planted-thread", |_, files| {
    at_wrong(files, || drop(std::thread::spawn(|| panic!("this was planted")).join()))
});

/// Ends the process.
pub const ABORT: Subject =
    planted("planted-abort", |_, files| at_wrong(files, || std::process::abort()));

/// Does not come back.
pub const HANG: Subject = planted("planted-hang", |_, files| {
    at_wrong(files, || {
        loop {
            std::thread::park();
        }
    })
});

/// Takes more memory than its bound, and gives it back.
pub const MEMORY: Subject = planted("planted-memory", |_, files| {
    at_wrong(files, || drop(std::hint::black_box(vec![1_u8; 20 << 20])))
});

/// Asks for more memory than there is.
pub const CEILING: Subject = planted("planted-ceiling", |_, files| {
    at_wrong(files, || drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 40))))
});

/// Does nothing wrong.
pub const SOUND: Subject = planted("planted-sound", |_, files| at_wrong(files, || ()));

/// Has no good inputs.
pub const GOOD: Subject =
    Subject { name: "planted-good", good: |_| anyhow::bail!("this was planted"), ..SOUND };
