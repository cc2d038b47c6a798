//! What a GPU does at most, measured without any of our ops: what measured stages are held against.
//! A line of JSON for each floor. Not a test of anything but that it can be measured, hence left
//! out of usual runs:
//!
//! ```text
//! cargo test --release -p headlong-device --test cuda_floors -- --ignored --nocapture
//! ```

use headlong_device::cuda::testing;
use headlong_device::cuda::{
    CudaDevice, CudaStream, DeviceMemory, DevicePtr, Event, Launch, Pinned, Source,
};

static KERNELS: Source = Source { name: "device/floors", text: include_str!("cuda_floors.cu") };

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    to: DevicePtr,
    from: DevicePtr,
    rows: u64,
    count: u64,
}

const ROW: usize = 512;
const MIB: usize = 1 << 20;

/// Runs of which the fastest counts.
const RUNS: usize = 5;

struct Rig {
    device: CudaDevice,
    stream: CudaStream,
}

impl Rig {
    /// Microseconds that the fastest run of `body` took on the stream, after one that does not
    /// count.
    fn fastest_us(&self, mut body: impl FnMut()) -> f64 {
        let timed = || Event::with_timing(&self.device).expect("an event");
        let (begun, ended) = (timed(), timed());
        let mut run = || {
            self.stream.record(&begun);
            body();
            self.stream.record(&ended);
            self.stream.synchronize().expect("work without an error");
            ended.elapsed_us(&begun).expect("both are recorded")
        };
        run();
        (0..RUNS).map(|_| run()).fold(f64::INFINITY, f64::min)
    }

    fn memory(&self, bytes: usize) -> DeviceMemory {
        DeviceMemory::new(&self.device, "a floor", bytes).expect("an allocation")
    }

    /// `on_gpu`, or a megabyte where an emulated device would take minutes.
    fn size(&self, on_gpu: usize) -> usize {
        if self.device.is_software() { MIB } else { on_gpu }
    }
}

fn print(name: &str, value: f64, unit: &str, bytes: usize) {
    assert!(value > 0.0, "{name}: {value}");
    println!("{{\"floor\":\"{name}\",\"value\":{value:.3},\"unit\":\"{unit}\",\"bytes\":{bytes}}}");
}

fn gb_per_s(bytes: usize, us: f64) -> f64 {
    bytes as f64 / us * 1e-3
}

#[test]
#[ignore = "a measurement: run on a GPU by itself"]
fn floors_of_a_gpu() {
    let Some(device) = testing::device() else { return };
    let stream = CudaStream::new(&device).unwrap();
    let rig = Rig { device, stream };
    println!("{{\"device\":\"{}\"}}", rig.device.name());
    copies(&rig);
    // What fits the caches of address translation, and what does not.
    gather(&rig, 2_000_000_000);
    gather(&rig, rig.device.memory().0 / 10 * 8);
    launches(&rig);
}

fn copies(rig: &Rig) {
    let bytes = rig.size(2048 * MIB);
    let (from, to) = (rig.memory(bytes), rig.memory(bytes));
    let us = rig.fastest_us(|| rig.stream.copy(to.ptr(), from.ptr(), bytes));
    print("copy on the device, read and written", gb_per_s(2 * bytes, us), "GB/s", bytes);
    let bytes = rig.size(256 * MIB);
    let pinned = Pinned::new(&rig.device, bytes).expect("page-locked memory");
    let us = rig.fastest_us(|| rig.stream.copy_to_device(to.ptr(), &pinned, 0..bytes));
    print("page-locked memory to the device", gb_per_s(bytes, us), "GB/s", bytes);
    let us = rig.fastest_us(|| rig.stream.copy_to_host(&pinned, 0..bytes, to.ptr()));
    print("the device to page-locked memory", gb_per_s(bytes, us), "GB/s", bytes);
}

fn gather(rig: &Rig, table_bytes: usize) {
    let bytes = rig.size(table_bytes);
    let (table, to) = (rig.memory(bytes), rig.memory(4096 * ROW));
    let count = if rig.device.is_software() { 4096 } else { 4 << 20 };
    let args = Args { to: to.ptr(), from: table.ptr(), rows: (bytes / ROW) as u64, count };
    let blocks = 8 * rig.device.multiprocessors();
    let us = rig.fastest_us(|| {
        rig.stream.run(&KERNELS, &[], "gather", Launch::new(blocks, 256), &args);
    });
    print("gather of rows of 512 bytes", gb_per_s(count as usize * ROW, us), "GB/s", bytes);
}

fn launches(rig: &Rig) {
    const NODES: usize = 1000;
    let memory = rig.memory(64);
    let args = Args { to: memory.ptr(), from: memory.ptr(), rows: 1, count: 0 };
    let nothing = || rig.stream.run(&KERNELS, &[], "nothing", Launch::new(1, 32), &args);
    nothing();
    let graph = |nodes: usize| {
        let body = || {
            (0..nodes).for_each(|_| nothing());
            Ok(())
        };
        rig.stream.capture(body).expect("a graph")
    };
    let one = graph(1);
    let us = rig.fastest_us(|| (0..100).for_each(|_| one.launch(&rig.stream)));
    print("a graph of one node", us / 100.0, "us", 0);
    let many = graph(NODES);
    let us = rig.fastest_us(|| many.launch(&rig.stream));
    print("from one kernel of a graph to the next", us / NODES as f64, "us", 0);
}
