//! Threads that serve a job in the background must not die unseen: their panics become the job's
//! error.

use crate::readable::readable;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`, which nothing looks at again when it has panicked; what a panic has said, in words
/// that name `thread`.
pub fn catch<T>(thread: &str, work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        format!("its thread {thread} has panicked: {}", readable(text.unwrap_or("no reason given")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_words() {
        assert_eq!(catch("x", || 3), Ok(3));
        type Work = fn();
        let cases: [(Work, &str); 3] = [
            (|| panic!("plain"), "plain"),
            (|| panic!("of {}", 3), "of 3"),
            (|| std::panic::panic_any(3), "no reason given"),
        ];
        for (work, words) in cases {
            assert_eq!(catch("x", work), Err(format!("its thread x has panicked: {words}")));
        }
    }
}
