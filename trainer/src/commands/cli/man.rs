//! `headlong man`: manual pages, made of the help.

use super::Cli;
use crate::error::{Error, Result};
use clap::CommandFactory as _;
use std::path::Path;

/// The page of the program itself.
pub fn page() -> String {
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(Cli::command()).render(&mut page);
    rendered.expect("memory takes what is written");
    String::from_utf8_lossy(&page).into_owned()
}

/// Writes a page for the program and for each of its commands into `folder`.
pub fn write(folder: &Path) -> Result<()> {
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    written.map_err(Error::io("write manual pages into", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_its_manual_page() {
        assert!(page().contains(".TH headlong 1") && page().contains("headlong\\-train(1)"));
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("share/man/man1");
        write(&folder).unwrap();
        for (name, says) in [
            ("headlong.1", "headlong\\-predict(1)"),
            ("headlong-train.1", "\\-\\-learning\\-rate"),
            ("headlong-data-convert.1", "\\-\\-output"),
        ] {
            let text = std::fs::read_to_string(folder.join(name)).unwrap();
            assert!(text.contains(says), "{name}: {text}");
        }
        assert!(!folder.join("headlong-reference.1").exists(), "what is hidden has no page");
        // A file in the place of the folder is named.
        let message = write(&folder.join("headlong.1")).unwrap_err().to_string();
        assert!(message.contains("headlong.1"), "{message}");
    }
}
