use super::*;

use crate::IdPolicy;
use crate::formats::records::RecordLayout;
use crate::formats::{About, Ranges, Sink};

/// A file of MLPerf records whose first integer is the sample's number.
fn source(folder: &std::path::Path, count: u64) -> Arc<dyn Source> {
    let layout = RecordLayout::mlperf();
    let mut samples = Samples::default();
    samples.clear(&layout.schema);
    samples.num_samples = count as usize;
    samples.labels.extend((0..count).map(|index| (index % 2) as f32));
    if let DenseValues::Integers(values) = &mut samples.dense {
        values
            .extend((0..count).flat_map(|index| {
                (0..13).map(move |column| (index * (column == 0) as u64) as i32)
            }));
    }
    for (column, bags) in samples.sparse.iter_mut().enumerate() {
        bags.ids.extend((0..count).map(|index| index * 7 + column as u64));
    }
    let path = folder.join("train.bin");
    let mut sink = Box::new(layout.create(&path).unwrap());
    sink.write(&samples).unwrap();
    sink.finish().unwrap();
    Arc::new(layout.open(&[path]).unwrap())
}

fn options(order: Order, batch_size: usize) -> FormatOptions {
    FormatOptions {
        batch_size,
        slice: Slice::WHOLE,
        prefetch: 2,
        order,
        epochs: Some(2),
        dense_transform: DenseTransform::Identity,
        ids: IdMapper::new(IdPolicy::Modulo, &[1000; 26]).unwrap(),
        disk: DiskOptions { block_bytes: 8192, depth: 2, ..DiskOptions::default() },
    }
}

/// Numbers of the samples of every batch, with the position after it; checks that all columns
/// belong together.
fn read(
    source: &Arc<dyn Source>,
    options: FormatOptions,
    start: &Position,
) -> Vec<(Vec<u64>, Position)> {
    let mut reader = FormatReader::open(Arc::clone(source), options, start).unwrap();
    let (mut batch, mut all) = (Batch::default(), Vec::new());
    while reader.next(&mut batch).unwrap() {
        let numbers: Vec<u64> = batch.dense.chunks(13).map(|dense| dense[0] as u64).collect();
        assert_eq!(batch.num_samples, numbers.len());
        for (index, number) in numbers.iter().enumerate() {
            assert_eq!(batch.labels[index], (number % 2) as f32);
            assert_eq!(batch.sparse[25].values[index], (number * 7 + 25) % 1000);
            assert_eq!(batch.sparse[25].offsets[index + 1], index as u32 + 1);
        }
        all.push((numbers, batch.position));
    }
    all
}

const ORDERS: [Order; 3] =
    [Order::Sequential, Order::Batches { seed: 3 }, Order::Samples { seed: 3, window: 300 }];

#[test]
fn every_order_visits_every_sample_once_an_epoch_and_resumes_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path(), 1003);
    for order in ORDERS {
        let all = read(&source, options(order, 100), &Position::default());
        assert_eq!(all.len(), 22, "{order:?}");
        for epoch in [&all[..11], &all[11..]] {
            let mut numbers: Vec<u64> =
                epoch.iter().flat_map(|(numbers, _)| numbers.clone()).collect();
            assert_eq!(numbers == (0..1003).collect::<Vec<_>>(), order == Order::Sequential);
            numbers.sort_unstable();
            assert_eq!(numbers, (0..1003).collect::<Vec<_>>());
        }
        if order != Order::Sequential {
            let numbers = |epoch: &[(Vec<u64>, Position)]| -> Vec<u64> {
                epoch.iter().flat_map(|(numbers, _)| numbers.clone()).collect()
            };
            assert_ne!(numbers(&all[..11]), numbers(&all[11..]), "epochs have orders of their own");
        }
        for resumed_after in [0, 3, 10, 15, 21] {
            let rest = read(&source, options(order, 100), &all[resumed_after].1);
            assert_eq!(rest, all[resumed_after + 1..], "{order:?} after {resumed_after}");
        }
    }
}

#[test]
fn slices_of_all_ranks_are_the_batches() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path(), 1003);
    for order in ORDERS {
        let whole = read(&source, options(order, 100), &Position::default());
        let ranks: Vec<_> = (0..3)
            .map(|index| {
                let slice = Slice::one_of(index, 3);
                read(&source, FormatOptions { slice, ..options(order, 100) }, &Position::default())
            })
            .collect();
        for (index, (numbers, position)) in whole.iter().enumerate() {
            let parts: Vec<u64> = ranks.iter().flat_map(|rank| rank[index].0.clone()).collect();
            assert_eq!(parts, *numbers);
            assert!(ranks.iter().all(|rank| rank[index].1 == *position));
        }
    }
}

#[test]
fn a_slice_is_all_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path(), 3000);
    let bytes = |slice: Slice| {
        let options = FormatOptions { slice, ..options(Order::Batches { seed: 3 }, 1000) };
        let mut reader =
            FormatReader::open(Arc::clone(&source), options, &Position::default()).unwrap();
        let mut batch = Batch::default();
        while reader.next(&mut batch).unwrap() {
            assert_eq!(batch.share_of, (slice.of > 1).then_some(1000));
        }
        reader.progress().bytes_read
    };
    let whole = bytes(Slice::WHOLE);
    assert!(
        (960_000..1_010_000).contains(&whole),
        "two epochs of 3,000 records of 160 bytes: {whole}"
    );
    for index in 0..4 {
        // Of each batch, two pages at most are shared.
        let part = bytes(Slice::one_of(index, 4));
        assert!(
            (240_000..whole / 4 + 6 * 2 * 4096).contains(&part),
            "slice {index}: {part} of {whole}"
        );
    }
}

#[test]
fn ids_that_are_no_rows_and_transforms_that_differ_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path(), 300);
    let ids = IdMapper::new(IdPolicy::Rows, &[1000; 26]).unwrap();
    let rows = FormatOptions { ids, ..options(Order::Sequential, 100) };
    let mut reader = FormatReader::open(Arc::clone(&source), rows, &Position::default()).unwrap();
    let mut batch = Batch::default();
    let message = loop {
        match reader.next(&mut batch) {
            Ok(true) => {}
            Ok(false) => panic!("row 1001 of 1000 was accepted"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(message.contains("column C1: expected a row below 1000, found 1001"), "{message}");
    assert!(!reader.next(&mut batch).unwrap(), "the stream has ended");

    let layout = RecordLayout::dcnv2();
    let refused = check(&layout.schema, &options(Order::Sequential, 10)).unwrap_err().to_string();
    assert!(refused.contains("have gone through ln(x+1), the model expects none"), "{refused}");
}

/// Samples whose number no one knows.
struct Uncounted(Arc<dyn Source>, About);

impl Source for Uncounted {
    fn about(&self) -> &About {
        &self.1
    }

    fn read(&self, ranges: Ranges, options: &DiskOptions) -> Result<Box<dyn SampleStream>> {
        let all = self.0.num_samples().unwrap();
        self.0.read(Box::new(ranges.map(move |range| range.start..range.end.min(all))), options)
    }
}

#[test]
fn samples_that_no_one_has_counted_come_in_the_same_batches() {
    let folder = tempfile::tempdir().unwrap();
    let counted = source(folder.path(), 3000);
    let mut about = counted.about().clone();
    (about.num_samples, about.stored_bytes, about.is_random) = (None, 0, false);
    let uncounted: Arc<dyn Source> = Arc::new(Uncounted(Arc::clone(&counted), about));
    for size in [1000, 7, 2999, 3001] {
        let expected = read(&counted, options(Order::Sequential, size), &Position::default());
        assert_eq!(
            read(&uncounted, options(Order::Sequential, size), &Position::default()),
            expected,
            "{size}"
        );
    }
    let refused = |order, start: &Position| {
        let opened = FormatReader::open(Arc::clone(&uncounted), options(order, 100), start);
        opened.err().unwrap().to_string()
    };
    let elsewhere = Position { sample: 100, ..Position::default() };
    for message in [
        refused(Order::Batches { seed: 1 }, &Position::default()),
        refused(Order::Sequential, &elsewhere),
    ] {
        assert!(message.contains("can only be read from front to back"), "{message}");
    }
}
