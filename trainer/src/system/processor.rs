//! What the system says of the processor: its name, caches and instructions.

use headlong_device::simd::{Bf16Products, Isa};
use serde::Serialize;
use std::path::Path;

/// A cache of the first core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cache {
    pub level: u32,
    /// `data`, `instruction` or `unified`.
    pub kind: String,
    pub bytes: u64,
}

/// Instructions that kernels of training could use, as the system names them.
const INSTRUCTIONS: [&str; 20] = [
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_fp16",
    "amx_int8",
    "asimd",
    "asimddp",
    "bf16",
    "sve",
    "i8mm",
];

/// Name of the processor, such as `Intel(R) Xeon(R) Processor (family 6, model 207)`.
pub fn name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    name_in(&text)
}

fn name_in(text: &str) -> String {
    let name = field(text, "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    // Note: virtual machines often hide the model's name; family and model number tell processors
    // apart.
    match (field(text, "cpu family"), field(text, "model\t")) {
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name,
    }
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The instructions of `isa` in use, and how products of bf16 are taken where there are any.
pub fn in_use(isa: Isa, products: Bf16Products) -> String {
    match products {
        Bf16Products::None => isa.name().to_owned(),
        products => format!("{}, products of bf16 in {}", isa.name(), products.name()),
    }
}

/// Which instructions for vectors, matrices and 16 bits the processor has, of those known here.
pub fn instructions() -> Vec<&'static str> {
    instructions_in(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn instructions_in(text: &str) -> Vec<&'static str> {
    let all = field(text, "flags").or_else(|| field(text, "Features")).unwrap_or_default();
    let all: Vec<&str> = all.split_whitespace().collect();
    INSTRUCTIONS.into_iter().filter(|name| all.contains(name)).collect()
}

/// The caches of the first core, nearest first; empty where the system does not say.
pub fn caches() -> Vec<Cache> {
    caches_at(Path::new("/sys/devices/system/cpu/cpu0/cache"))
}

fn caches_at(folder: &Path) -> Vec<Cache> {
    let cache = |index: usize| {
        let read = |name: &str| {
            let text = std::fs::read_to_string(folder.join(format!("index{index}/{name}")));
            Some(text.ok()?.trim().to_owned())
        };
        let (level, kind, size) = (read("level")?, read("type")?, read("size")?);
        Some(Cache {
            level: level.parse().ok()?,
            kind: kind.to_lowercase(),
            bytes: size.strip_suffix('K')?.parse::<u64>().ok()? * 1024,
        })
    };
    (0..).map_while(cache).collect()
}

/// For which memory the system uses huge pages: `always`, `madvise` or `never`.
pub fn huge_pages() -> Option<String> {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    chosen.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_bf16_are_named_where_there_are_any() {
        assert_eq!(in_use(Isa::Avx2, Bf16Products::None), "avx2");
        let tiles = "avx512, products of bf16 in tiles";
        assert_eq!(in_use(Isa::Avx512, Bf16Products::Tiles), tiles);
    }

    const INFO: &str = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: A Xeon\n\
                        flags\t\t: fpu avx2 fma avx512f avx512_bf16 amx_tile\n";

    #[test]
    fn names_and_instructions_of_a_processor() {
        assert_eq!(name_in(INFO), "A Xeon (family 6, model 207)");
        assert_eq!(name_in(""), std::env::consts::ARCH);
        let found = instructions_in(INFO);
        assert_eq!(found, ["avx2", "fma", "avx512f", "avx512_bf16", "amx_tile"]);
        assert_eq!(instructions_in("Features\t: asimd bf16\n"), ["asimd", "bf16"]);
    }

    #[test]
    fn caches_from_the_nearest_on() {
        let folder = tempfile::tempdir().unwrap();
        for (index, level, kind, size) in [(0, 1, "Data", "48K"), (1, 3, "Unified", "2048K")] {
            let index = folder.path().join(format!("index{index}"));
            std::fs::create_dir(&index).unwrap();
            for (name, text) in [("level", format!("{level}")), ("type", kind.to_owned())] {
                std::fs::write(index.join(name), text + "\n").unwrap();
            }
            std::fs::write(index.join("size"), format!("{size}\n")).unwrap();
        }
        let found = caches_at(folder.path());
        let kinds: Vec<_> = found.iter().map(|cache| (cache.level, cache.kind.as_str())).collect();
        assert_eq!(kinds, [(1, "data"), (3, "unified")]);
        assert_eq!(found[1].bytes, 2 << 20);
        assert!(caches_at(Path::new("/nowhere")).is_empty());
    }
}
