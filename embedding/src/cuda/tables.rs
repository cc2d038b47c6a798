//! What kernels are told about tables, and the flag they raise.

use super::layout::{Layout, POOLING_MEAN, ROWS_HIDDEN, Table};
use crate::error::{EmbeddingError, Result};
use crate::route::bits_below;
use crate::slot::TableSlot;
use crate::table::{Pooling, TableSpec};
use headlong_device::Mat;
use headlong_device::cuda::{CudaDevice, DeviceMemory, DevicePtr};

/// Descriptions of tables in device memory, and the table of each tile of entries.
#[derive(Debug)]
pub(crate) struct DeviceTables {
    memory: DeviceMemory,
    tile_tables: usize,
}

impl DeviceTables {
    pub(crate) fn new(device: &CudaDevice, tables: &[Table], layout: &Layout) -> Result<Self> {
        let mut words: Vec<u32> = tables.iter().flat_map(Table::words).collect();
        let tile_tables = 4 * words.len();
        words.extend(layout.tile_tables());
        let memory = DeviceMemory::new(device, "descriptions of tables", 4 * words.len())?;
        write_words(&memory, 0, &words)?;
        Ok(Self { memory, tile_tables })
    }

    pub(crate) fn tables(&self) -> DevicePtr {
        self.memory.ptr()
    }

    /// Says where the rows of table `table` stand in the sums of its bags: see `Table` in
    /// tables.cuh.
    pub(crate) fn set_parts(&self, table: usize, (step, first): (u32, u32)) -> Result<()> {
        let words = table * Table::WORDS + Table::PARTS;
        write_words(&self.memory, 4 * words, &[step, first])
    }

    pub(crate) fn tile_tables(&self) -> DevicePtr {
        self.memory.ptr().offset(self.tile_tables)
    }
}

/// The leaf of each part of a bag's sum, where owners pool bags. Part `o` is one of owner `o`.
pub(crate) struct DeviceLeaves {
    memory: DeviceMemory,
    num_parts: usize,
}

impl DeviceLeaves {
    pub(crate) fn new(device: &CudaDevice, leaf_of: &[u32]) -> Result<Self> {
        let memory = DeviceMemory::new(device, "parts of bags", 4 * leaf_of.len())?;
        write_words(&memory, 0, leaf_of)?;
        Ok(Self { memory, num_parts: leaf_of.len() })
    }

    pub(crate) fn ptr(&self) -> DevicePtr {
        self.memory.ptr()
    }

    pub(crate) fn num_parts(&self) -> usize {
        self.num_parts
    }
}

/// Writes words of four bytes; the host's part.
pub(crate) fn write_words(memory: &DeviceMemory, offset: usize, words: &[u32]) -> Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(memory.write(offset, &bytes)?)
}

/// The description of a table whose rows lie in `slot`; of none where nothing of it lies here.
pub(crate) fn describe(
    spec: &TableSpec,
    index: usize,
    layout: &Layout,
    slot: Option<&TableSlot>,
    home: DevicePtr,
) -> Table {
    let part = &layout.tables[index];
    let plain = slot.and_then(|slot| slot.plain.as_ref());
    let staging = slot.and_then(|slot| slot.staging.as_ref());
    let pooling = if spec.pooling == Pooling::Mean { POOLING_MEAN } else { 0 };
    let at = |mat: Option<&Mat>| mat.map_or(DevicePtr::NULL, Mat::device_ptr);
    Table {
        weights: at(plain.map(|rows| &rows.weights).or(staging)),
        first: at(plain.and_then(|rows| rows.states.first())),
        second: at(plain.and_then(|rows| rows.states.get(1))),
        home,
        rows: spec.rows as u32,
        dim: spec.dim as u32,
        first_column: part.first_column as u32,
        first_entry: part.first_entry() as u32,
        ids: part.ids as u32,
        offsets: part.offsets as u32,
        factors: part.factors as u32,
        first_tile: part.first_tile as u32,
        num_tiles: part.num_tiles as u32,
        flags: pooling | if staging.is_some() { ROWS_HIDDEN } else { 0 },
        key_bits: bits_below(spec.rows),
        ..Table::default()
    }
}

/// Where kernels say what went wrong: the smallest of kind, table and place, and a number about it.
#[derive(Debug)]
pub(crate) struct FlagsMemory(DeviceMemory);

/// No error.
const FINE: [u32; 4] = [u32::MAX; 4];

impl FlagsMemory {
    pub(crate) fn new(device: &CudaDevice) -> Result<Self> {
        let memory = DeviceMemory::new(device, "flags of tables", 16)?;
        write_words(&memory, 0, &FINE)?;
        Ok(Self(memory))
    }

    pub(crate) fn ptr(&self) -> DevicePtr {
        self.0.ptr()
    }

    /// Reads the flag, and lowers it. Waits for the device.
    pub(crate) fn check(&self, specs: &[TableSpec]) -> Result<()> {
        // Read whenever the host waits for steps: nothing is allocated for it.
        let mut bytes = [0; 16];
        self.0.read(0, &mut bytes)?;
        let word = |index: usize| std::array::from_fn(|byte| bytes[4 * index + byte]);
        let words: [u32; 4] = std::array::from_fn(|index| u32::from_ne_bytes(word(index)));
        if words == FINE {
            return Ok(());
        }
        write_words(&self.0, 0, &FINE)?;
        let error = u64::from(words[1]) << 32 | u64::from(words[0]);
        let detail = u64::from(words[3]) << 32 | u64::from(words[2]);
        let (kind, table, place) = (error >> 56, error >> 40 & 0xffff, error & 0xff_ffff_ffff);
        let spec = &specs[(table as usize).min(specs.len().saturating_sub(1))];
        Err(error_of(spec, kind, place, detail))
    }
}

/// The error that a kernel told as a number.
fn error_of(spec: &TableSpec, kind: u64, place: u64, detail: u64) -> EmbeddingError {
    let table = spec.name.clone();
    match kind {
        1 => EmbeddingError::IdOutOfRange {
            table,
            index: detail,
            sample: place as usize,
            rows: spec.rows,
        },
        3 => EmbeddingError::SlotFull { table, what: "rows", found: detail, capacity: place },
        5 => EmbeddingError::SlotFull { table, what: "numbers", found: detail, capacity: place },
        4 => EmbeddingError::RowNotOwned {
            table,
            source_index: place as usize,
            row: detail,
            rows: spec.rows,
        },
        _ => EmbeddingError::Spec {
            table,
            reason: "a batch of bags or weights was replayed in a step captured without them: run \
                     it eagerly"
                .to_owned(),
        },
    }
}
