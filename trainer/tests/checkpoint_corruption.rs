//! No wrong byte is believed: every damage to every file is refused, and the file named.

#[cfg(test)]
mod tests {
    use crate::checkpoint_support::{Toy, options, snapshot};
    use headlong::state::checkpoint::{
        Blob, Checkpoint, CheckpointDirectory, CheckpointError, MANIFEST_FILE, Manifest, Select,
        Snapshot, newest,
    };
    use std::fs;
    use std::path::{Path, PathBuf};
    use xxhash_rust::xxh3::xxh3_128;

    /// A checkpoint of a few files; returns its directory.
    fn saved(folder: &Path) -> PathBuf {
        let directory = CheckpointDirectory::open(folder, options(400, 2)).unwrap();
        directory.save(&snapshot(&Toy::new(1), 10)).unwrap();
        let ids = Blob {
            file: "ids.bin".into(),
            estimated_bytes: 9,
            write: Box::new(|output| output.write_all(b"ids' state")),
        };
        directory.save(&Snapshot { blobs: vec![ids], ..snapshot(&Toy::new(2), 20) }).unwrap().path
    }

    /// Opens and verifies, as `--resume` and `checkpoint verify` do.
    fn verify(path: &Path) -> Result<(), CheckpointError> {
        Checkpoint::open(path)?.verify()
    }

    fn files(path: &Path) -> Vec<PathBuf> {
        let mut files: Vec<_> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() >= 5, "manifest, dense, two shards or more, ids: {files:?}");
        files
    }

    fn name(file: &Path) -> &str {
        file.file_name().unwrap().to_str().unwrap()
    }

    #[test]
    fn a_flipped_bit_in_any_file_is_found_and_the_file_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = saved(folder.path());
        verify(&path).unwrap();
        for file in files(&path) {
            let good = fs::read(&file).unwrap();
            for position in (0..good.len()).step_by(7) {
                let mut bad = good.clone();
                bad[position] ^= 1 << (position % 8);
                fs::write(&file, &bad).unwrap();
                let error = verify(&path).expect_err("a flipped bit was believed");
                let message = error.to_string();
                assert!(message.contains(name(&file)), "byte {position}: {message}");
            }
            fs::write(&file, &good).unwrap();
        }
        verify(&path).unwrap();
    }

    #[test]
    fn a_flipped_bit_in_any_byte_of_the_manifest_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let file = saved(folder.path()).join(MANIFEST_FILE);
        let mut bytes = fs::read(&file).unwrap();
        Manifest::parse(&file, &bytes).unwrap();
        for position in 0..bytes.len() {
            for bit in 0..8 {
                bytes[position] ^= 1 << bit;
                Manifest::parse(&file, &bytes).expect_err("a flipped bit was believed");
                bytes[position] ^= 1 << bit;
            }
        }
    }

    #[test]
    fn a_corrupted_shard_names_both_checksums_and_stops_the_load() {
        let folder = tempfile::tempdir().unwrap();
        let path = saved(folder.path());
        let file = path.join("tables-00001.safetensors");
        let mut bytes = fs::read(&file).unwrap();
        let expected = format!("{:032x}", xxh3_128(&bytes));
        *bytes.last_mut().unwrap() ^= 0x40;
        fs::write(&file, &bytes).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        for select in [Select::All, Select::WeightsOnly] {
            let message = checkpoint.load(&mut Toy::blank(), select).unwrap_err().to_string();
            assert!(message.contains("tables-00001.safetensors is corrupted"), "{message}");
            assert!(message.contains(&expected), "{message}");
            assert!(message.contains(&format!("{:032x}", xxh3_128(&bytes))), "{message}");
        }
    }

    #[test]
    fn every_truncation_and_every_missing_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = saved(folder.path());
        for file in files(&path) {
            let good = fs::read(&file).unwrap();
            for length in [0, 1, good.len() / 2, good.len() - 1] {
                fs::write(&file, &good[..length]).unwrap();
                let message = verify(&path).unwrap_err().to_string();
                assert!(message.contains(name(&file)), "{message}");
                if name(&file) != MANIFEST_FILE {
                    let sizes =
                        format!("it has {length} bytes and the manifest says {}", good.len());
                    assert!(message.contains("truncated") && message.contains(&sizes), "{message}");
                }
            }
            fs::write(&file, [&good[..], b"x"].concat()).unwrap();
            let message = verify(&path).unwrap_err().to_string();
            assert!(message.contains(name(&file)), "{message}");
            fs::remove_file(&file).unwrap();
            let message = verify(&path).unwrap_err().to_string();
            assert!(message.contains(name(&file)), "{message}");
            fs::write(&file, &good).unwrap();
        }
        verify(&path).unwrap();
    }

    #[test]
    fn a_damaged_newest_checkpoint_is_an_error_never_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = saved(folder.path());
        fs::remove_file(path.join("dense.safetensors")).unwrap();
        let message = newest(folder.path()).unwrap_err().to_string();
        assert!(message.contains("dense.safetensors is missing"), "{message}");
        assert!(
            message.contains("remove this checkpoint's directory to use the one before it"),
            "{message}"
        );
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(newest(folder.path()).unwrap().unwrap().manifest().state.step, 10);
    }

    #[test]
    fn what_is_not_a_checkpoint_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("absent");
        let message = Checkpoint::open(&absent).unwrap_err().to_string();
        assert!(
            message.contains("absent is not a checkpoint: there is no such directory"),
            "{message}"
        );
        let message = Checkpoint::open(folder.path()).unwrap_err().to_string();
        assert!(message.contains("it has no manifest.json"), "{message}");
        let file = folder.path().join("file");
        fs::write(&file, "text").unwrap();
        assert!(matches!(Checkpoint::open(&file), Err(CheckpointError::NotACheckpoint { .. })));
    }

    /// The manifest with `from` replaced by `to`, and the checksum right again.
    fn edited(manifest: &Manifest, from: &str, to: &str) -> Result<Manifest, CheckpointError> {
        let text = String::from_utf8(manifest.to_bytes()).unwrap();
        let (_, body) = text.trim_end_matches('\n').split_once("\",\n").unwrap();
        assert!(body.contains(from), "the manifest has no `{from}`");
        let body = body.replacen(from, to, 1);
        let checksum = xxh3_128(body.as_bytes());
        let text = format!("{{\n  \"manifest_xxh3_128\": \"{checksum:032x}\",\n{body}\n");
        Manifest::parse(Path::new("manifest.json"), text.as_bytes())
    }

    #[test]
    fn a_manifest_that_contradicts_itself_is_refused_even_where_its_checksum_is_right() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::open(&saved(folder.path())).unwrap();
        let manifest = checkpoint.manifest();
        assert_eq!(edited(manifest, "\"step\": 20", "\"step\": 20").unwrap(), *manifest);
        let cases = [
            (
                "\"version\": 1",
                "\"version\": 2",
                "format version 2, and this program reads version 1",
            ),
            ("headlong-checkpoint", "other-checkpoint", "the format is `other-checkpoint`"),
            ("\"step\": 20", "\"stop\": 20", "unknown field `stop`"),
            ("\"step\": 20", "\"step\": -20", "invalid value"),
            (
                "\"file\": \"ids.bin\"",
                "\"file\": \"../ids.bin\"",
                "`../ids.bin` cannot be the name",
            ),
            ("\"file\": \"ids.bin\"", "\"file\": \"dense.safetensors\"", "listed twice"),
            ("\"first_row\": 0", "\"first_row\": 1", "row 0 is in no file"),
            ("\"table\": \"C1\"", "\"table\": \"C9\"", "of the table `C9` do not exist"),
            ("\"rows\": 23", "\"rows\": 24", "rows 23..24 are in no file"),
            ("\"rows\": 23", "\"rows\": 0", "every axis must be at least 1"),
            ("\"rows\": 23", "\"rows\": 18446744073709551615", "every axis must be at least 1"),
            ("\"dim\": 4", "\"dim\": 4.5", "not a manifest"),
        ];
        for (from, to, expected) in cases {
            // The model's fingerprint comes first and has rows and dims of its own; the layout's
            // are meant.
            let error = if to.contains("rows\": ") || to.contains("dim\": ") {
                edited_layout(manifest, from, to)
            } else {
                edited(manifest, from, to).map(|_| ()).unwrap_err()
            };
            let message = error.to_string();
            assert!(
                message.contains(expected) && message.contains("manifest.json"),
                "{to}: {message}"
            );
        }
    }

    /// The same, within the layout alone.
    fn edited_layout(manifest: &Manifest, from: &str, to: &str) -> CheckpointError {
        let text = String::from_utf8(manifest.to_bytes()).unwrap();
        let layout = text.find("\"layout\": {").unwrap();
        let target = layout + text[layout..].find(from).unwrap();
        let context = &text[target - 40..target + from.len()];
        let replaced = context.replacen(from, to, 1);
        edited(manifest, context, &replaced).map(|_| ()).unwrap_err()
    }
}
