//! Everything `tidy` lets pass: the table of crates, and each exception to a rule with its reason.

/// One exception: what it covers and why.
pub struct Exception {
    /// A path below the workspace's root with `*` and `**`; for functions `path::name`.
    pub pattern: &'static str,
    pub reason: &'static str,
}

const fn only(pattern: &'static str, reason: &'static str) -> Exception {
    Exception { pattern, reason }
}

/// One line of the table of crates: a package and the packages of this workspace it may import.
pub struct Crate {
    pub package: &'static str,
    /// What it may import, of this workspace.
    pub may_use: &'static [&'static str],
}

/// The star of ARCHITECTURE.md: siblings never import each other, all stand on `headlong-device`.
pub const CRATES: &[Crate] = &[
    // Only tests import `headlong-models`, here and below.
    Crate { package: "headlong-device", may_use: &["headlong-models"] },
    Crate { package: "headlong-reader", may_use: &["headlong-device"] },
    Crate { package: "headlong-embedding", may_use: &["headlong-device"] },
    Crate { package: "headlong-mlp", may_use: &["headlong-device"] },
    // Only its tests import `headlong-verbs`, for a fabric of NICs, and `headlong-ucx`: Cargo
    // refuses a circle of libraries.
    Crate {
        package: "headlong-comm",
        may_use: &[
            "headlong-device",
            "nccl-rs",
            "headlong-verbs",
            "headlong-ucx",
            "headlong-models",
        ],
    },
    // Its tests of whole jobs are those of `headlong-comm`, which also know UCX.
    Crate {
        package: "headlong-verbs",
        may_use: &["headlong-device", "headlong-comm", "headlong-ucx"],
    },
    Crate { package: "headlong-ucx", may_use: &["headlong-comm"] },
    Crate { package: "nccl-rs", may_use: &[] },
    Crate { package: "headlong-planner", may_use: &["headlong-device", "headlong-embedding"] },
    Crate { package: "headlong-metrics", may_use: &["headlong-device", "headlong-reader"] },
    Crate {
        package: "headlong",
        may_use: &[
            "headlong-device",
            "headlong-reader",
            "headlong-embedding",
            "headlong-mlp",
            "headlong-comm",
            "headlong-verbs",
            "headlong-ucx",
            "headlong-metrics",
            "headlong-planner",
            // Of its tests.
            "headlong-comm-simulated",
        ],
    },
    Crate {
        package: "headlong-benches",
        may_use: &[
            "headlong-device",
            "headlong-reader",
            "headlong-embedding",
            "headlong-mlp",
            "headlong-comm",
            "headlong-planner",
            "headlong",
        ],
    },
    Crate {
        package: "headlong-mutation",
        may_use: &[
            "headlong-reader",
            "headlong-embedding",
            "headlong-comm",
            "headlong-verbs",
            "headlong-ucx",
            "headlong",
        ],
    },
    // The files of `headlong-comm` once more.
    Crate { package: "headlong-comm-simulated", may_use: &["headlong-device", "nccl-rs"] },
    Crate { package: "headlong-models", may_use: &[] },
    Crate { package: "headlong-python", may_use: &["headlong-reader", "headlong"] },
    Crate { package: "xtask", may_use: &[] },
];

/// Packages that are made of another's files, too: theirs and the others'.
pub const COPIES: &[(&str, &str)] = &[("comm/simulated/", "comm/src/")];

/// Crates from outside that only these packages may use.
pub const RESTRICTED_CRATES: &[(&str, &[&str])] = &[
    ("anyhow", &["headlong-benches", "headlong-mutation", "xtask"]),
    ("cudarc", &["headlong-device"]),
    ("loom", &["headlong-models"]),
    ("clap", &["headlong", "headlong-benches", "headlong-mutation"]),
];

/// Names of the sibling crates, of which most trainer files may see at most one.
pub const SIBLINGS: &[&str] =
    &["headlong_reader", "headlong_embedding", "headlong_mlp", "headlong_comm"];

/// The exceptions of each rule. No function and no file is longer than its limit.
pub const EXCEPTIONS: &[(&str, &[Exception])] = &[
    ("two crates", SEES_TWO_CRATES),
    ("unsafe", UNSAFE_FILES),
    ("environment", ENVIRONMENT_READERS),
    ("waits", ENDLESS_WAITS),
];

/// The trainer's files that may see more than one sibling.
const SEES_TWO_CRATES: &[Exception] = &[
    only("trainer/src/plan/**", "turns config, schema and machine into every size and placement"),
    only("trainer/src/iteration/model.rs", "allocates what the plan says, in every crate"),
    only("trainer/src/iteration/model/**", "allocates what the plan says, in every crate"),
    only("trainer/src/iteration/ranks.rs", "the ranks of a process and their links"),
    only("trainer/src/config/validate.rs", "holds a config against every crate's limits"),
    only("trainer/src/run/drift.rs", "counts the rows of batches and places them again"),
    only("trainer/src/commands/kernels.rs", "lists the kernels of every crate"),
    only("trainer/src/run/prepare.rs", "data and places of rows for the first step"),
    only("trainer/src/run/statistics.rs", "counts the rows of the first batches: part of the plan"),
    only("trainer/src/run/session.rs", "the host's part around the iteration"),
    only("trainer/src/run/session/**", "the host's part around the iteration"),
    only("trainer/src/iteration/schedule/**", "the iteration, which joins the crates"),
    only("trainer/src/commands/bench/**", "builds a whole session on synthetic batches"),
];

/// Files in which `unsafe` may stand.
const UNSAFE_FILES: &[Exception] = &[
    only("device/src/**", "memory, streams, SIMD dispatch, foreign calls: the base crate"),
    only("reader/src/disk/uring.rs", "the kernel writes into the buffers of reads in flight"),
    only("device/tests/conformance.rs", "calls of the driver that the crate does not offer"),
    only("device/tests/conformance/**", "calls of the driver that the crate does not offer"),
    only("comm/tests/device_cuda_failures.rs", "a stream that waits for the host"),
    only("comm/tests/device_cuda.rs", "NCCL with one rank, as the product never calls it"),
    only("embedding/src/**/simd.rs", "an op's SIMD kernel"),
    only("mlp/src/**/simd.rs", "an op's SIMD kernel"),
    only("mlp/src/**/simd/**", "an op's SIMD kernels"),
    only("reader/src/criteo/parse/avx512.rs", "the parser's kernel, by intrinsics"),
    only("comm/src/transport/**", "foreign transports"),
    only("comm/src/testing/sim/**", "the buffers of exchanges, which other threads fill"),
    only("comm/verbs/tests/rxe/cable.rs", "memory that a NIC writes"),
    only("comm/verbs/tests/rxe/linked.rs", "memory that the crate `ibverbs` borrows"),
    only("comm/nccl-rs/**", "a foreign library's functions"),
    only("comm/verbs/src/**", "a foreign library's functions, and memory that NICs write"),
    only("comm/ucx/src/**", "a foreign library's functions, and memory that they write"),
    only("comm/src/device/**", "foreign calls: collectives between devices"),
    only("models/src/sync.rs", "memory whose users loom watches"),
    only("mutation/src/allocator.rs", "an allocator that knows the peak, over the system's"),
    only("trainer/src/system/peak/simd.rs", "loops that measure the peak, by intrinsics"),
];

/// Files that may read the environment.
const ENVIRONMENT_READERS: &[Exception] = &[
    only("device/src/cuda/libraries.rs", "where CUDA's libraries are; no result depends on it"),
    only("device/src/cuda/cache.rs", "where compiled kernels are kept; no result depends on it"),
    only("comm/simulated/build.rs", "where cargo wants the copy that it makes"),
    only("device/tests/conformance.rs", "tests that run themselves in another process"),
    only("models/src/lib.rs", "tests that run themselves in another process"),
    only("trainer/tests/run_support/mod.rs", "where a bundle has put the program under test"),
    only(
        "trainer/src/iteration/schedule/tests/border.rs",
        "tests that run themselves in another process",
    ),
    only("device/src/cuda/nvtx.rs", "which library of a profiler listens"),
    only("device/src/cuda/testing.rs", "REQUIRE turns skips into failures"),
    only("xtask/src/require.rs", "REQUIRE turns skips into failures"),
    only("comm/verbs/src/sys/library.rs", "where libibverbs is; no result depends on it"),
    only("comm/nccl-rs/src/demand.rs", "what NCCL itself reads there"),
    only("comm/src/launcher_env.rs", "launchers say rank and address there"),
];

/// Functions of `comm` with a wait that ends for a reason that `waits` cannot read.
const ENDLESS_WAITS: &[Exception] = &[
    only("comm/src/rendezvous/listener.rs::accept", "the listener does not block"),
    only("comm/src/transport/shm/meet.rs::hand_out", "does not block, in a loop with patience"),
    only("comm/src/transport/shm/meet.rs::serve", "`prepare` gave the connection its timeouts"),
    only("comm/src/transport/shm/meet.rs::take", "`prepare` gave the connection its timeouts"),
    only("comm/src/transport/tcp.rs::drop", "the thread looks every 250 ms, then has 400 ms"),
    only("comm/src/transport/paths/watch.rs::drop", "the thread was woken to stop"),
    only(
        "comm/src/transport/local/link.rs::withdraw",
        "a peer's thread copies out of this rank's memory: no deadline may give that memory back \
         under it, and a copy ends",
    ),
    only("comm/src/device/peer/flags.rs::give_up", "opens barriers until its owner's deadline"),
    only("comm/verbs/src/rails.rs::end", "the proxy looks whether to stop all the time"),
    only(
        "comm/src/device/peer/flags.rs::drop",
        "the thread looks every millisecond whether to stop",
    ),
    only("comm/src/testing.rs::run_communicators", "for tests: operations have deadlines"),
    only("comm/src/testing/sim.rs::run", "for tests: the network panics in time"),
    only("comm/nccl-rs/src/state.rs::drop", "the thread has said that it has ended"),
];
