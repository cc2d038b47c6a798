//! Calls into the Parquet crate, whose assertions on damaged files panic: they become errors.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use ::parquet::errors::{ParquetError, Result};

thread_local! {
    /// Whether a panic of this thread is about to become an error.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

static QUIET: Once = Once::new();

/// Runs `body`, calls of the Parquet crate and no more: a panic in it is an error, and prints
/// nothing.
///
/// What `body` was working on must not be used again after an error.
pub(super) fn contained<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    QUIET.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !CONTAINED.get() {
                hook(info);
            }
        }));
    });
    let before = CONTAINED.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(body));
    CONTAINED.set(before);
    outcome.unwrap_or_else(|panic| {
        Err(ParquetError::General(format!(
            "damaged: the Parquet reader gave up: {}",
            words(&*panic)
        )))
    })
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason was given")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let panics = || contained(|| -> Result<()> { panic!("index {} of {}", 5, 3) });
        let error = panics().unwrap_err().to_string();
        assert!(error.ends_with("damaged: the Parquet reader gave up: index 5 of 3"), "{error}");
        assert_eq!(contained(|| Ok(7)).unwrap(), 7);
        assert!(!CONTAINED.get());
    }
}
