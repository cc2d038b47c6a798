//! Bytes that libFuzzer makes up, tried as an input of one format.

use crate::allocator;
use crate::subjects::{Files, Subject, find};
use crate::worker::{good_inputs, write_files};
use anyhow::{Context, Result};
use tempfile::TempDir;

/// A format whose first file is replaced, again and again.
pub struct Guided {
    subject: &'static Subject,
    /// A good input.
    files: Files,
    place: TempDir,
}

impl Guided {
    /// The format of this name.
    ///
    /// # Errors
    /// There is none; its good input cannot be made.
    pub fn new(name: &str) -> Result<Self> {
        let subject = find(name).with_context(|| format!("there is no format \"{name}\""))?;
        // In memory, where there is such a folder.
        let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
        let good = good_inputs(subject, place.path())?;
        let files = good.into_iter().next().context("a format has a good input")?;
        if subject.on_disk {
            write_files(&files, place.path())?;
        }
        Ok(Self { subject, files, place })
    }

    /// Tries `bytes` in place of the first file, with checksums that fit.
    ///
    /// # Panics
    /// Where something is wrong: memory beyond the bound, what was read cannot be read again, and
    /// whatever else the format checks.
    pub fn try_bytes(&mut self, bytes: &[u8]) {
        let first = &mut self.files[0].1;
        bytes.clone_into(first);
        (self.subject.seal)(first);
        if self.subject.on_disk {
            let path = self.place.path().join(&self.files[0].0);
            std::fs::write(&path, &self.files[0].1).expect("a folder of our own");
        }
        let held = allocator::watch();
        let _ = (self.subject.read)(self.place.path(), &self.files);
        let taken = allocator::peak() - held;
        let bound = self.subject.bound_mib;
        assert!(taken <= bound << 20, "it took {taken} bytes of memory, the bound is {bound} MiB");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subjects::SUBJECTS;

    #[test]
    fn any_bytes_can_be_tried_as_any_format() {
        for subject in SUBJECTS {
            let mut guided = Guided::new(subject.name).unwrap();
            let good = guided.files[0].1.clone();
            let mut half = good[..good.len() / 2].to_vec();
            for bytes in [&[][..], b"0", &[0xff; 5000], &half] {
                guided.try_bytes(bytes);
            }
            half.extend_from_slice(&good);
            guided.try_bytes(&half);
            // What is sound stays so when it is sealed.
            guided.try_bytes(&good);
            let read = (subject.read)(guided.place.path(), &guided.files);
            assert_eq!(read, Ok(()), "{}", subject.name);
        }
        assert!(Guided::new("nothing").is_err());
    }
}
