//! The guest's file system, as the kernel takes it: a cpio archive of the kind "newc".

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::packages;
use crate::process::At as _;

const SCRIPTS: [(&str, &str); 10] = [
    ("init", include_str!("guest/init.sh")),
    ("test/lib.sh", include_str!("guest/lib.sh")),
    ("test/bench.sh", include_str!("guest/bench.sh")),
    ("test/cable.sh", include_str!("guest/cable.sh")),
    ("test/cuda.sh", include_str!("guest/cuda.sh")),
    ("test/linked.sh", include_str!("guest/linked.sh")),
    ("test/timings.sh", include_str!("guest/timings.sh")),
    ("test/train.sh", include_str!("guest/train.sh")),
    ("test/two-devices.sh", include_str!("guest/two-devices.sh")),
    ("test/two-guests.sh", include_str!("guest/two-guests.sh")),
];

/// Writes the base of the guest, the scripts, and `programs` with their libraries.
pub fn write(base: &Path, programs: &[PathBuf], to: &Path) -> Result<()> {
    let guest = base.join("guest");
    for program in programs {
        packages::copy_libraries_of(&base.join("root"), program, &guest)?;
        let name = program.file_name().context("a program has a name")?;
        fs::copy(program, guest.join("test").join(name)).at(program)?;
    }
    let file = File::create(to).at(to)?;
    let mut archive = Archive { out: BufWriter::new(file), written: 0, entries: 0 };
    archive.folder(&guest, "")?;
    for (name, text) in SCRIPTS {
        archive.entry(name, FILE | 0o755, text.as_bytes())?;
    }
    archive.end().with_context(|| to.display().to_string())
}

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

struct Archive<Out> {
    out: Out,
    written: usize,
    entries: u32,
}

impl<Out: Write> Archive<Out> {
    /// Everything in `folder`, in the order of the alphabet, below `name`.
    fn folder(&mut self, folder: &Path, name: &str) -> Result<()> {
        let mut entries: Vec<_> =
            fs::read_dir(folder).at(folder)?.collect::<std::io::Result<_>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let below = entry.file_name().to_string_lossy().into_owned();
            let below = if name.is_empty() { below } else { format!("{name}/{below}") };
            let about = fs::symlink_metadata(&path).at(&path)?;
            let mode = about.permissions().mode() & 0o777;
            if about.is_dir() {
                self.entry(&below, FOLDER | 0o755, b"")?;
                self.folder(&path, &below)?;
            } else if about.is_symlink() {
                let leads = fs::read_link(&path)?;
                self.entry(&below, LINK | 0o777, leads.to_string_lossy().as_bytes())?;
            } else {
                self.entry(&below, FILE | mode, &fs::read(&path).at(&path)?)?;
            }
        }
        Ok(())
    }

    /// One entry: thirteen numbers in eight digits each, the name, the content, each filled up to a
    /// multiple of four.
    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.entries += 1;
        let number = self.entries;
        let size = u32::try_from(content.len()).context("a file of less than 4 GiB")?;
        let fields = [number, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        let digits: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        self.put(format!("070701{digits}{name}\0").as_bytes())?;
        self.put(content)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes)?;
        self.written += bytes.len();
        let missing = self.written.next_multiple_of(4) - self.written;
        self.out.write_all(&[0; 3][..missing])?;
        self.written += missing;
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.entry("TRAILER!!!", 0, b"")?;
        Ok(self.out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_headed_and_filled_up() {
        let mut out = Vec::new();
        let mut archive = Archive { out: &mut out, written: 0, entries: 0 };
        archive.entry("ab", FILE | 0o644, b"hello").unwrap();
        archive.end().unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("07070100000001000081a4"), "{text}");
        assert_eq!(&text[94..102], "00000003", "bytes of the name with its zero: {text}");
        assert_eq!(&text[110..121], "ab\0\0\0\0hello", "the name ends at a multiple of 4: {text}");
        assert_eq!(text.len() % 4, 0);
        assert!(text.contains("TRAILER!!!"));
    }
}
