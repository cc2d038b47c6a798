//! What the software device's meter counts (device/softcuda/meter.h), on kernels whose accesses are
//! known to the byte. Two mistakes that a GPU answers only with time must show, and their correct
//! twins must not.

use super::{args, child, is_child, rig, sanitizer};
use headlong_device::cuda::{Launch, Source};

static KERNELS: Source = Source { name: "device/metered", text: include_str!("metered.cu") };

const ENTRIES: [&str; 6] = [
    "rows_by_warp",
    "rows_by_lane",
    "padded_tile",
    "tile_in_one_bank",
    "wide_accesses",
    "uneven_groups",
];

/// The meter's line of a kernel.
struct Metered(String);

impl Metered {
    fn sum(&self, field: &str) -> u64 {
        let field = format!("\"{field}\":");
        let numbers = self.0.split(&field).skip(1).map(|rest| {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
            digits.and_then(|digits| digits.parse::<u64>().ok()).expect("a number")
        });
        numbers.sum()
    }

    /// Part of the sectors' bytes that lanes asked for.
    fn efficiency(&self) -> f64 {
        self.sum("used_bytes") as f64 / (32 * self.sum("sectors")) as f64
    }

    /// Instructions of a kind and width.
    fn instructions(&self, kind: &str, bytes: u32) -> usize {
        self.0.matches(&format!("\"kind\":\"{kind}\",\"bytes\":{bytes},")).count()
    }
}

#[test]
fn mistakes_that_only_cost_time_show_in_the_meter() {
    const NAME: &str = "metered::mistakes_that_only_cost_time_show_in_the_meter";
    if is_child() {
        let rig = rig().expect("the parent has found it");
        let (from, to) = (rig.words(&[3; 1024]), rig.zeros(1024));
        for entry in ENTRIES {
            rig.first.run(&KERNELS, &[], entry, Launch::new(1, 32), &args(&to, &from, 0));
        }
        return rig.finish();
    }
    let Some(rig) = rig() else { return };
    if !rig.device.is_software() || sanitizer().is_some() {
        return eprintln!("skipped, because only the plain software device has a meter");
    }
    drop(rig);
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = child(NAME, &[("SOFTCUDA_METER", file.path().to_str().unwrap())]);
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(file.path()).unwrap();
    let of = |name: &str| {
        let start = format!("{{\"kernel\":\"{name}\",");
        let line = text.lines().find(|line| line.starts_with(&start));
        Metered(line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned())
    };
    check(of);
}

fn check(of: impl Fn(&str) -> Metered) {
    let (right, wrong) = (of("rows_by_warp"), of("rows_by_lane"));
    assert_eq!((right.sum("requests"), right.sum("sectors")), (64, 2 * 128));
    assert_eq!((wrong.sum("requests"), wrong.sum("sectors")), (64, 2 * 1024));
    assert_eq!((right.efficiency(), wrong.efficiency()), (1.0, 0.125));
    let line =
        KERNELS.text.lines().position(|line| line.contains("from[threadIdx.x * 32 + column]"));
    let place = format!("\"rows_by_lane:{}\"", line.expect("the mistake") + 1);
    assert!(wrong.0.contains(&place), "{place} is not in {}", wrong.0);
    for metered in [&right, &wrong] {
        assert_eq!((metered.sum("read_bytes"), metered.sum("written_bytes")), (4096, 4096));
        assert_eq!((metered.sum("read_sectors"), metered.sum("written_sectors")), (128, 128));
    }
    let (right, wrong) = (of("padded_tile"), of("tile_in_one_bank"));
    assert_eq!((right.sum("shared_requests"), right.sum("wavefronts")), (64, 64));
    assert_eq!((wrong.sum("shared_requests"), wrong.sum("wavefronts")), (64, 32 + 32 * 32));
    let wide = of("wide_accesses");
    assert_eq!((wide.instructions("read", 16), wide.instructions("write", 16)), (3, 2));
    assert_eq!(wide.instructions("write", 8), 1);
    assert_eq!((wide.sum("requests"), wide.sum("sectors")), (4, 16 + 16 + 16 + 8));
    assert_eq!(
        wide.sum("wavefronts"),
        wide.sum("least_wavefronts"),
        "a quarter warp has all banks"
    );
    // Groups that are still in their loops go on together; all atomics meet in one word.
    let uneven = of("uneven_groups");
    assert_eq!((uneven.sum("requests"), uneven.sum("sectors")), (4 + 1, 4 + 3 + 2 + 1 + 1));
}
