//! The real rows next to the project, where they are: counts, click rates, missing shares and
//! ranges as their README states them. The rows themselves are never part of the project.

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use headlong_reader::criteo::parse::MISSING_DENSE;
    use headlong_reader::criteo::{BlockStream, Event};
    use headlong_reader::{
        Batch, BlockOptions, CriteoTextReader, IdMapper, IdPolicy, Position, Reader, Schema,
        TextOptions,
    };

    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/criteo");

    /// The file of that name, or a word about skipping.
    fn real_file(name: &str) -> Option<PathBuf> {
        let path = Path::new(FOLDER).join(name);
        if !path.exists() {
            println!("skipped, because {} is absent", path.display());
            return None;
        }
        Some(path)
    }

    #[derive(Default)]
    struct Counts {
        samples: usize,
        clicks: usize,
        missing_dense: [usize; 13],
        missing_sparse: [usize; 26],
        least: i32,
        most: i32,
    }

    fn count(file: PathBuf, schema: Schema) -> Counts {
        let options = BlockOptions { schema, num_threads: 2, ..BlockOptions::default() };
        let mut stream =
            BlockStream::open(vec![file.into()], &options, &Position::default(), Some(1)).unwrap();
        let mut counts = Counts::default();
        while let Some(event) = stream.next().unwrap() {
            let Event::Block(block) = event else { continue };
            counts.samples += block.raw.num_samples;
            counts.clicks += block.raw.labels.iter().filter(|&&label| label == 1).count();
            for row in block.raw.dense.chunks_exact(13) {
                for (missing, &value) in counts.missing_dense.iter_mut().zip(row) {
                    *missing += (value == MISSING_DENSE) as usize;
                    if value != MISSING_DENSE {
                        counts.least = counts.least.min(value);
                        counts.most = counts.most.max(value);
                    }
                }
            }
            for bits in &block.raw.sparse_missing {
                for (column, missing) in counts.missing_sparse.iter_mut().enumerate() {
                    *missing += (bits >> column & 1) as usize;
                }
            }
            stream.recycle(block);
        }
        counts
    }

    #[test]
    fn row_counts_and_click_rates_are_those_of_the_readme() {
        let files = [
            ("train.txt.gz", 95_997, Some(0.25608)),
            ("valid.txt.gz", 13_714, Some(0.26119)),
            ("unlabelled.txt.gz", 18_181, None),
            ("kaggle_head10k.txt.gz", 10_000, Some(0.21820)),
            ("terabyte_day0_head8k.txt.gz", 8_000, Some(0.02625)),
        ];
        for (name, samples, click_rate) in files {
            let Some(file) = real_file(name) else { return };
            let counts = count(file, Schema::criteo().with_label(click_rate.is_some()));
            assert_eq!(counts.samples, samples, "{name}");
            let found = counts.clicks as f64 / samples as f64;
            // The README has five decimals.
            assert!((found - click_rate.unwrap_or(0.0)).abs() <= 0.5e-5, "{name}: {found}");
        }
    }

    #[test]
    fn missing_shares_and_ranges_are_those_of_the_readme() {
        let Some(file) = real_file("train.txt.gz") else { return };
        let counts = count(file, Schema::criteo());
        let percent =
            |missing: usize| (missing as f64 / counts.samples as f64 * 1000.0).round() / 10.0;
        let dense = [45.5, 0.0, 21.1, 21.2, 2.6, 22.4, 4.3, 0.1, 4.3, 45.5, 4.3, 76.9, 21.2];
        assert_eq!(counts.missing_dense.map(percent), dense);
        let sparse = [
            0.0, 0.0, 3.5, 3.5, 0.0, 12.5, 0.0, 0.0, 0.0, 0.0, 0.0, 3.5, 0.0, 0.0, 0.0, 3.5, 0.0,
            0.0, 43.8, 43.8, 3.5, 76.2, 0.0, 3.5, 43.8, 43.8,
        ];
        assert_eq!(counts.missing_sparse.map(percent), sparse);
        assert_eq!((counts.least, counts.most), (-2, 2_071_071));
    }

    #[test]
    fn a_real_file_resumes_where_it_was_left() {
        let Some(file) = real_file("valid.txt.gz") else { return };
        let files = [file.into()];
        let options = TextOptions { batch_size: 1000, ..TextOptions::default() };
        let mapper = || IdMapper::new(IdPolicy::Admitted { min_count: 3 }, &[2000; 26]).unwrap();
        let mut reader =
            CriteoTextReader::open(&files, mapper(), &options, &Position::default()).unwrap();
        let mut batch = Batch::default();
        for _ in 0..7 {
            assert!(reader.next(&mut batch).unwrap());
        }
        let position = reader.position();
        assert_eq!((position.sample, position.line), (7000, 7000));
        let mut restored = mapper();
        restored.restore_state(&reader.mapper_at(&position).unwrap().state_bytes()).unwrap();
        let mut resumed = CriteoTextReader::open(&files, restored, &options, &position).unwrap();
        let mut other = Batch::default();
        let mut batches = 0;
        while reader.next(&mut batch).unwrap() {
            assert!(resumed.next(&mut other).unwrap() && other == batch);
            batches += 1;
        }
        assert!(!resumed.next(&mut other).unwrap() && batches == 7);
        assert!(resumed.skip_time() > std::time::Duration::ZERO);
    }
}
