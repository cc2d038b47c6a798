//! Skips, and `REQUIRE`, which turns them into failures.
//!
//! A check that cannot run here says `skipped, because …` and passes. Where it ought to run, name
//! it: `REQUIRE=data,python cargo xtask ci`. Only xtask reads the variable: a test says why it
//! skipped, xtask reads the reason and judges it.

use anyhow::{Result, bail};

/// A name that `REQUIRE` knows, and the words by which a skip's reason shows that it is meant.
struct Requirement {
    name: &'static str,
    words: &'static [&'static str],
}

const REQUIREMENTS: &[Requirement] = &[
    Requirement { name: "nextest", words: &["nextest"] },
    Requirement { name: "cargo-deny", words: &["cargo-deny"] },
    Requirement { name: "advisories", words: &["advisor"] },
    Requirement { name: "data", words: &["data/criteo", "criteo data"] },
    Requirement { name: "python", words: &["python", "torch", "numpy"] },
    Requirement { name: "numpy", words: &["numpy"] },
    // What builds the Python package, and the packages that its tests import.
    Requirement { name: "wheel", words: &["the wheel needs"] },
    // mdBook, which builds the documentation's site.
    Requirement { name: "book", words: &["mdbook"] },
    // PyTorch for its modules: Debian's, since PyPI's has gigabytes.
    Requirement { name: "torch", words: &["the modules need"] },
    // What shows a page, and what reads event files.
    Requirement { name: "chromium", words: &["chromium"] },
    Requirement { name: "tensorboard", words: &["tensorboard"] },
    // The schemas of manifests.
    Requirement { name: "kubernetes", words: &["kubernetes"] },
    Requirement { name: "mpirun", words: &["mpirun"] },
    // Two machines that are namespaces, and what starts jobs on them.
    Requirement { name: "namespaces", words: &["namespaces"] },
    Requirement { name: "slurm", words: &["slurm"] },
    // UCX, which is opened at run time.
    Requirement { name: "ucx", words: &["libucp"] },
    Requirement { name: "fuzz", words: &["fuzz"] },
    Requirement { name: "aarch64", words: &["aarch64"] },
    Requirement { name: "musl", words: &["musl"] },
    // A GPU. What the software device lacks is not asked of it, and not the other way round: see
    // `forbids`.
    Requirement { name: "cuda", words: &["cuda", "gpu"] },
    // Any CUDA device: where there is no GPU, the software device, which g++ builds.
    Requirement { name: "hostcuda", words: &["hostcuda", "softcuda", "cuda", "g++", "sanitize"] },
    // The compiler of kernels, and the disassembler that reads what it makes.
    Requirement { name: "nvrtc", words: &["nvrtc", "nvdisasm"] },
    // Wheels of 480 and 350 MB, which are fetched only where they are required.
    Requirement { name: "libraries", words: &["real libraries"] },
    Requirement { name: "nccl", words: &["nvidia-nccl"] },
    Requirement { name: "rxe", words: &["rxe"] },
    // What the crate is built with that our verbs are checked against.
    Requirement { name: "ibverbs", words: &["crate ibverbs"] },
    Requirement { name: "valgrind", words: &["valgrind"] },
];

/// What `REQUIRE` asks for.
pub struct Required {
    names: Vec<String>,
}

impl Required {
    /// Reads `REQUIRE`; an unknown name is an error, so that a misspelt one does not pass silently.
    pub fn from_environment() -> Result<Self> {
        Self::parse(&std::env::var("REQUIRE").unwrap_or_default())
    }

    pub fn parse(text: &str) -> Result<Self> {
        let names: Vec<String> =
            text.split([',', ' ']).filter(|name| !name.is_empty()).map(str::to_string).collect();
        for name in &names {
            if !REQUIREMENTS.iter().any(|requirement| requirement.name == name) {
                let known: Vec<&str> =
                    REQUIREMENTS.iter().map(|requirement| requirement.name).collect();
                bail!("REQUIRE names `{name}`; known are {}", known.join(", "));
            }
        }
        Ok(Self { names })
    }

    /// Whether `name` is required.
    pub fn wants(&self, name: &str) -> bool {
        self.names.iter().any(|wanted| wanted == name)
    }

    /// The required name that a skip with this reason belongs to, where there is one.
    pub fn forbids(&self, reason: &str) -> Option<&str> {
        let reason = reason.to_lowercase();
        let of_a_gpu = reason.replace("softcuda", "").replace("hostcuda", "");
        let is_meant = |requirement: &&Requirement| {
            let reason = if requirement.name == "cuda" { &of_a_gpu } else { &reason };
            requirement.words.iter().any(|word| reason.contains(word))
        };
        REQUIREMENTS
            .iter()
            .filter(is_meant)
            .map(|requirement| requirement.name)
            .find(|name| self.wants(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_required_skip_is_named() {
        let required = Required::parse("data,cuda").unwrap();
        assert_eq!(required.forbids("../shared/data/criteo is absent"), Some("data"));
        assert_eq!(required.forbids("no CUDA device was found"), Some("cuda"));
        assert_eq!(required.forbids("python has no torch"), None);
        let site = Required::parse("book").unwrap();
        assert_eq!(site.forbids("mdbook is not installed: cargo install"), Some("book"));
        let installed = Required::parse("mpirun,numpy").unwrap();
        assert_eq!(installed.forbids("mpirun is absent"), Some("mpirun"));
        assert_eq!(installed.forbids("no python with numpy, pyarrow was found"), Some("numpy"));
        assert_eq!(installed.forbids("no python with torch was found"), None);
        let ucx = Required::parse("ucx").unwrap();
        assert_eq!(ucx.forbids("libucp.so.0 was not found (...)"), Some("ucx"));
        let modules = Required::parse("torch").unwrap();
        assert_eq!(modules.forbids("the modules need a Python with torch"), Some("torch"));
        assert_eq!(modules.forbids("no python with torch was found"), None);
        let shown = Required::parse("chromium,tensorboard").unwrap();
        assert_eq!(shown.forbids("no chromium was found"), Some("chromium"));
        let reason = "no python with tensorboard was found";
        assert_eq!((shown.forbids(reason), installed.forbids(reason)), (Some("tensorboard"), None));
        assert_eq!(Required::parse("").unwrap().forbids("no CUDA device"), None);
    }

    #[test]
    fn a_gpu_and_the_software_device_are_asked_for_apart() {
        let (gpu, software) =
            (Required::parse("cuda").unwrap(), Required::parse("hostcuda").unwrap());
        let on_a_gpu = "it needs 4 devices of softcuda";
        assert_eq!((gpu.forbids(on_a_gpu), software.forbids(on_a_gpu)), (None, Some("hostcuda")));
        let without = "it needs a GPU, and this is the software device";
        assert_eq!((gpu.forbids(without), software.forbids(without)), (Some("cuda"), None));
        assert_eq!(software.forbids("this machine has no CUDA device"), Some("hostcuda"));
    }

    #[test]
    fn a_misspelt_requirement_is_an_error() {
        let error = Required::parse("cudda").err().unwrap();
        assert!(error.to_string().contains("`cudda`"), "{error}");
    }
}
