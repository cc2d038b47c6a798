//! The sort and the search for chunks against sorts of the host, and what tiles learn from others.

use super::*;
use crate::cuda::tables::describe;
use crate::route::bits_below;
use crate::table::TableSpec;
use headlong_device::JaggedRef;
use headlong_device::cuda::Define;
use headlong_device::cuda::testing::{bytes_of, device, layout_test, stream};
use headlong_device::pool::Pool;
use headlong_device::rng::CounterRng;

#[test]
fn arguments_lie_as_kernels_read_them() {
    layout_test!(SortArgs, &ROUTE, &[]);
    layout_test!(UniqueArgs, &ROUTE, &[]);
    layout_test!(KeysArgs, &ROUTE, &[]);
    layout_test!(ChunksArgs, &ROUTE, &[]);
    layout_test!(LookBackArgs, &LOOK_BACK, &[]);
}

/// Tables whose keys have so many values, on a device.
struct Tables {
    specs: Arc<[TableSpec]>,
    tables: DeviceTables,
    staging: Staging,
    flags: FlagsMemory,
    sorted: Sorted,
}

impl Tables {
    fn new(device: &CudaDevice, rows: &[u64], max_ids: &[usize]) -> Self {
        let specs: Arc<[_]> = rows.iter().map(|&rows| TableSpec::new("table", rows, 4)).collect();
        let layout = Arc::new(Layout::new(&specs, 1, max_ids));
        let described = specs.iter().enumerate();
        let described: Vec<_> = described
            .map(|(index, spec)| describe(spec, index, &layout, None, DevicePtr::NULL))
            .collect();
        let bits = rows.iter().map(|&rows| bits_below(rows)).max().unwrap();
        Self {
            tables: DeviceTables::new(device, &described, &layout).unwrap(),
            staging: Staging::new(device, &specs, &layout, true).unwrap(),
            flags: FlagsMemory::new(device).unwrap(),
            sorted: Sorted::new(device, &layout, bits, false).unwrap(),
            specs,
        }
    }

    fn words(&self, at: DevicePtr, count: usize) -> Vec<u32> {
        let mut bytes = vec![0; 4 * count];
        let memory = &self.sorted._memory;
        memory.read((at.0 - memory.ptr().0) as usize, &mut bytes).unwrap();
        bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    /// Routes one bag for each table, and compares all that is found.
    fn check(&mut self, stream: &CudaStream, ids: &[Vec<u64>]) {
        let offsets: Vec<_> = ids.iter().map(|ids| [0, ids.len() as u32]).collect();
        let bags = ids.iter().zip(&offsets);
        let bags: Vec<_> =
            bags.map(|(values, offsets)| JaggedRef { values, offsets: &offsets[..] }).collect();
        self.staging.stage(&Pool::new(1), &bags, 0..1).unwrap();
        self.staging.copy(stream);
        self.sorted.route(stream, &self.tables, &self.staging, &self.flags);
        stream.synchronize().unwrap();
        self.flags.check(&self.specs).unwrap();
        let mut expected = Chunks::default();
        for (table, ids) in ids.iter().enumerate() {
            let mut pairs: Vec<_> = ids.iter().map(|&id| id as u32).zip(0_u32..).collect();
            pairs.sort();
            let (keys, values): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let first = self.sorted.layout.tables[table].first_entry();
            let found = |list: DevicePtr| self.words(list.offset(4 * first), ids.len());
            assert!(found(self.sorted.at.keys) == keys, "keys of table {table}");
            assert!(found(self.sorted.at.values) == values, "positions of table {table}");
            expected.add(&keys, first as u32);
        }
        let Chunks { starts, ends, longs, rows } = expected;
        let at = &self.sorted.at;
        let counts = [starts.len(), longs.len(), rows].map(|count| count as u32);
        assert_eq!(self.words(at.num_found, 3), counts);
        assert!(self.words(at.chunk_starts, starts.len()) == starts, "starts of chunks");
        assert!(self.words(at.chunk_ends, ends.len()) == ends, "ends of chunks");
        let [firsts, ends] =
            [at.long_firsts, at.long_ends].map(|list| self.words(list, longs.len()));
        assert!(firsts.into_iter().zip(ends).eq(longs), "long rows");
    }
}

/// What the search for chunks finds.
#[derive(Default)]
struct Chunks {
    starts: Vec<u32>,
    ends: Vec<u32>,
    longs: Vec<(u32, u32)>,
    rows: usize,
}

impl Chunks {
    fn add(&mut self, keys: &[u32], first: u32) {
        let mut begin = first;
        for row in keys.chunk_by(|a, b| a == b) {
            let end = begin + row.len() as u32;
            let (is_long, first_chunk) = (row.len() > CHUNK, self.starts.len() as u32);
            for start in (begin..end).step_by(CHUNK) {
                let marks = u32::from(is_long) << 31 | u32::from(start == begin) << 30;
                self.starts.push(start | marks);
                self.ends.push(end.min(start + CHUNK as u32));
            }
            if is_long {
                self.longs.push((first_chunk, self.starts.len() as u32));
            }
            self.rows += 1;
            begin = end;
        }
    }
}

/// Ids of a table of `rows` rows: all equal, few that are frequent, or any.
fn ids(seed: u64, rows: u64, count: usize) -> Vec<u64> {
    let rng = CounterRng::new(seed, rows);
    let id = |index: u64| {
        let random = u64::from(rng.bits(index)[0]);
        match seed % 3 {
            0 => rows - 1,
            1 if random % 4 > 0 => random % 5 * 77 % rows,
            _ => (random << 20 ^ random) % rows,
        }
    };
    (0..count as u64).map(id).collect()
}

/// One to four digits in one launch, and sets of which no table has as many.
#[test]
fn tables_of_any_length_and_number_of_digits_are_sorted() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let sizes: [(&[u64], &[usize]); 4] = [
        (&[1 << 30, 256, 257, 70_000, 1, 20_000_000], &[4_097, 4_096, 300, 9_000, 40, 8_191]),
        (&[3, 256, 1], &[40_000, 1, 4_096]),
        (&[1 << 16, 2], &[4_095, 1]),
        (&[100_000, 300], &[50, 4_097]),
    ];
    for (rows, max_ids) in sizes {
        let mut tables = Tables::new(stream.device(), rows, max_ids);
        for seed in 0..4 {
            let each = rows.iter().zip(max_ids).enumerate().map(|(table, (&rows, &most))| {
                // The last batch has no ids in some tables, and one in others.
                let count = if seed == 3 { table % 2 } else { most };
                ids(seed + table as u64, rows, count)
            });
            tables.check(stream, &each.collect::<Vec<_>>());
        }
    }
}

/// The test of waiting, with the kernels' own text.
static LOOK_BACK: Source = Source {
    name: "embedding/look-back-test",
    text: concat!(
        include_str!("../../cuda/tables.cuh"),
        include_str!("../../cuda/scan.cuh"),
        include_str!("../digits.cuh"),
        "#ifdef NO_WAIT\n#define await_word load_relaxed\n#endif\n",
        include_str!("../sort.cu"),
        include_str!("../route.cu"),
        include_str!("look_back.cu")
    ),
};

kernel_args! {
    struct LookBackArgs { states, tiles, found: DevicePtr; }
}

fn look_back(stream: &CudaStream, defines: &[Define]) -> Vec<u32> {
    let (tiles, found) = (70, 35);
    let mut places = Places::default();
    let offsets = [tiles * DIGITS, 2 * tiles, found].map(|words| places.words(words));
    let memory = DeviceMemory::new(stream.device(), "states", places.bytes()).unwrap();
    memory.write(0, bytes_of(&vec![0_u32; places.bytes() / 4])).unwrap();
    let [states, tiles, to] = offsets.map(|offset| memory.ptr().offset(offset));
    let args = LookBackArgs { states, tiles, found: to };
    stream.run(&LOOK_BACK, defines, "look_back", Launch::new(1, BLOCK), &args);
    stream.synchronize().unwrap();
    let mut bytes = vec![0; 4 * found];
    memory.read(offsets[2], &mut bytes).unwrap();
    bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

/// And a look that does not wait shows.
#[test]
fn tiles_wait_for_what_those_before_publish() {
    let Some(device) = device() else { return };
    let stream = CudaStream::new(&device).unwrap();
    let sum: u32 = (0..69).sum();
    let mut expected: Vec<_> = (0..32).map(|lane| sum + 69 * lane).collect();
    expected.extend([sum, 69, 2 * sum]);
    assert_eq!(look_back(&stream, &[]), expected);
    let hasty = look_back(&stream, &[Define::new("NO_WAIT", 1)]);
    assert!(!device.is_software() || hasty != expected, "nothing had to be waited for");
}
