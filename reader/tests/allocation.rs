//! Once warm, the reader allocates nothing: neither the consumer nor any of its threads.

#[cfg(test)]
mod tests {
    use headlong_device::testing::{CountingAllocator, allocations};
    use headlong_reader::{
        Batch, BlockOptions, CriteoTextReader, IdMapper, IdPolicy, Position, Reader, TextOptions,
    };

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    /// Rows with integers and categories of equal lengths, so that no later block is larger than
    /// the first ones.
    fn rows(count: usize) -> String {
        let row = |index: usize| {
            let integers = vec![(1000 + index % 9000).to_string(); 13].join("\t");
            let categories = vec![format!("{:08x}", index % 77); 26].join("\t");
            format!("{}\t{integers}\t{categories}\n", index % 2)
        };
        (0..count).map(row).collect()
    }

    #[test]
    fn a_warm_reader_allocates_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let text = rows(40_000);
        let plain = folder.path().join("a");
        std::fs::write(&plain, &text).unwrap();
        let packed = folder.path().join("b.zst");
        std::fs::write(&packed, zstd::encode_all(text.as_bytes(), 1).unwrap()).unwrap();
        for (file, policy) in [
            (plain.clone(), IdPolicy::Hash { function: Default::default() }),
            (plain, IdPolicy::Admitted { min_count: 3 }),
            (packed, IdPolicy::Hash { function: Default::default() }),
        ] {
            let ids = IdMapper::new(policy, &[1000; 26]).unwrap();
            let blocks =
                BlockOptions { block_bytes: 10_000, num_threads: 2, ..BlockOptions::default() };
            let options =
                TextOptions { blocks, batch_size: 100, prefetch: 2, ..TextOptions::default() };
            let mut reader =
                CriteoTextReader::open(&[file.into()], ids, &options, &Position::default())
                    .unwrap();
            let mut batch = Batch::default();
            let mut read = |batches: usize| {
                for _ in 0..batches {
                    assert!(reader.next(&mut batch).unwrap());
                }
            };
            read(100);
            // One more buffer may enter the round whenever the threads happen to be further apart
            // than ever before, a few times at most; and a buffer may meet its longest content
            // late, once. What is allocated per batch or per block comes to 60 at least in every
            // window, so the quietest window tells the two apart.
            let window = |_| {
                let before = allocations();
                read(60);
                allocations() - before
            };
            let windows: Vec<u64> = (0..4).map(window).collect();
            assert!(
                windows.iter().any(|&allocated| allocated <= 8),
                "{policy}: {windows:?} allocations"
            );
        }
    }
}
