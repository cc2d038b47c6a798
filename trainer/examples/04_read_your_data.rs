//! Reads rows in Criteo's format as batches of labels, numbers and row indices: what training does
//! before the first weight is touched. The reader runs ahead in threads of its own and tells after
//! each batch where it stands.
//!
//! ```text
//! cargo run --release -p headlong --example 04_read_your_data
//! ```

use headlong_reader::hashing::HashFunction;
use headlong_reader::io::DataFile;
use headlong_reader::{
    BadRowPolicy, Batch, BlockOptions, CriteoTextReader, DenseTransform, IdMapper, IdPolicy,
    Position, Reader, Schema, TextOptions,
};
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("clicks.txt");
    write_rows(&file)?;
    // A file, or a pipe: what is looked at before it is read is not lost.
    let files = [DataFile::from(file)];

    // Two integers and three categories instead of Criteo's 13 and 26. Lines that are no rows are
    // left out and counted.
    let schema = Schema { labelled: true, num_dense: 2, num_sparse: 3 };
    let blocks = BlockOptions { schema, on_bad_row: BadRowPolicy::Skip, ..BlockOptions::default() };
    let options = TextOptions {
        blocks,
        batch_size: 4,
        prefetch: 2,
        dense_transform: DenseTransform::LnPlus1,
        epochs: Some(1),
    };
    // Raw ids become rows of tables of 100, 100 and 10 rows.
    let ids = IdMapper::new(IdPolicy::Hash { function: HashFunction::default() }, &[100, 100, 10])?;

    let mut reader = CriteoTextReader::open(&files, ids.clone(), &options, &Position::default())?;
    // The reader takes the old buffers of a batch and gives full ones: nothing is copied.
    let mut batch = Batch::default();
    let mut after_first = None;
    while reader.next(&mut batch)? {
        println!("{} samples, labels {:?}", batch.num_samples, batch.labels);
        println!("  first row: numbers {:.3?}", &batch.dense[..schema.num_dense]);
        for (table, rows) in batch.sparse.iter().enumerate() {
            println!("  table {table}: rows {:?}", rows.values);
        }
        after_first.get_or_insert(batch.position);
    }
    let skipped = reader.skip_report();
    println!("{} bad line: {}", skipped.total, skipped.first[0]);

    // A position is all that is needed to go on from: this reader starts with the second batch.
    let position = after_first.ok_or("there was no batch")?;
    let mut second = CriteoTextReader::open(&files, ids, &options, &position)?;
    second.next(&mut batch)?;
    println!("again from {position:?}: labels {:?}", batch.labels);
    Ok(())
}

/// Ten rows: label, two integers, three hexadecimal categories, tab separated; an empty field is a
/// missing value. The fourth line is no row.
fn write_rows(file: &Path) -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    for row in 0..10_u32 {
        if row == 3 {
            text.push_str("this is no row\n");
        }
        let missing_or = |value: String| if row % 4 == 2 { String::new() } else { value };
        let price = missing_or((row * row).to_string());
        let shop = missing_or(format!("{:08x}", row.wrapping_mul(0x9e37_79b9)));
        writeln!(text, "{}\t{row}\t{price}\t{shop}\t68fd1e64\t{:x}", row % 2, row % 3)?;
    }
    std::fs::write(file, text)?;
    Ok(())
}
