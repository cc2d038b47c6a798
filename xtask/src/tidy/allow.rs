//! Everything `tidy` lets pass: the table of crates, and each exception to a rule with its reason.

/// One exception: what it covers and why.
pub struct Exception {
    /// A path below the workspace's root with `*` and `**`; for functions `path::name`.
    pub pattern: &'static str,
    /// Why the rule makes the code worse here.
    pub reason: &'static str,
    /// Part of the plan of the workspace: may stand before anything needs it.
    pub standing: bool,
}

/// An exception that must be needed today.
const fn only(pattern: &'static str, reason: &'static str) -> Exception {
    Exception { pattern, reason, standing: false }
}

/// An exception that belongs to the plan of the workspace.
const fn always(pattern: &'static str, reason: &'static str) -> Exception {
    Exception { pattern, reason, standing: true }
}

/// One line of the table of crates: a package and the packages of this workspace it may import.
pub struct Crate {
    /// The package's name.
    pub package: &'static str,
    /// What it may import, of this workspace.
    pub may_use: &'static [&'static str],
}

/// The star of ARCHITECTURE.md: siblings never import each other, all stand on `headlong-device`.
pub const CRATES: &[Crate] = &[
    Crate { package: "headlong-device", may_use: &[] },
    Crate { package: "headlong-reader", may_use: &["headlong-device"] },
    Crate { package: "headlong-embedding", may_use: &["headlong-device"] },
    Crate { package: "headlong-mlp", may_use: &["headlong-device"] },
    // Only its tests import `headlong-verbs`, for a fabric of NICs: Cargo refuses a circle of
    // libraries.
    Crate { package: "headlong-comm", may_use: &["headlong-device", "nccl-rs", "headlong-verbs"] },
    Crate { package: "headlong-verbs", may_use: &["headlong-device", "headlong-comm"] },
    Crate { package: "nccl-rs", may_use: &[] },
    Crate {
        package: "headlong",
        may_use: &[
            "headlong-device",
            "headlong-reader",
            "headlong-embedding",
            "headlong-mlp",
            "headlong-comm",
            "headlong-verbs",
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
            "headlong",
        ],
    },
    Crate {
        package: "headlong-mutation",
        may_use: &["headlong-reader", "headlong-comm", "headlong"],
    },
    Crate { package: "xtask", may_use: &[] },
];

/// Crates from outside that only these packages may use.
pub const RESTRICTED_CRATES: &[(&str, &[&str])] = &[
    ("anyhow", &["headlong", "headlong-benches", "headlong-mutation", "xtask"]),
    ("cudarc", &["headlong-device"]),
    ("clap", &["headlong", "headlong-benches", "headlong-mutation"]),
];

/// Names of the sibling crates, of which most trainer files may see at most one.
pub const SIBLINGS: &[&str] =
    &["headlong_reader", "headlong_embedding", "headlong_mlp", "headlong_comm"];

/// The trainer's files that may see more than one sibling.
pub const SEES_TWO_CRATES: &[Exception] = &[
    always("trainer/src/plan/**", "turns config, schema and machine into every size and placement"),
    always("trainer/src/iteration/model.rs", "allocates what the plan says, in every crate"),
    always("trainer/src/iteration/model/**", "allocates what the plan says, in every crate"),
    only(
        "trainer/src/iteration/ranks.rs",
        "the ranks of a process: models, batches and the links between them",
    ),
    only(
        "trainer/src/config/validate.rs",
        "holds a configuration against the limits of every crate",
    ),
    only("trainer/src/run/drift.rs", "counts the rows of batches and places them again"),
    only("trainer/src/commands/kernels.rs", "lists the kernels of every crate"),
    only(
        "trainer/src/run/prepare.rs",
        "finds data, statistics and places of rows before the first step",
    ),
    only("trainer/src/run/statistics.rs", "counts the rows of the first batches: part of the plan"),
    always(
        "trainer/src/run/session.rs",
        "the host's part around the iteration: batches, drain, checkpoints",
    ),
    always(
        "trainer/src/run/session/**",
        "the host's part around the iteration: batches, drain, checkpoints",
    ),
    always(
        "trainer/src/iteration/schedule.rs",
        "the iteration: the line that joins the crates is written here",
    ),
    always(
        "trainer/src/iteration/schedule/**",
        "the iteration: the line that joins the crates is written here",
    ),
    always(
        "trainer/src/commands/bench/**",
        "`headlong bench iteration` builds a whole session on synthetic batches",
    ),
];

/// Functions that may be longer than the limit.
pub const LONG_FUNCTIONS: &[Exception] = &[];

/// Files that may be longer than 600 lines.
pub const LONG_FILES: &[Exception] = &[];

/// Files in which `unsafe` may stand.
pub const UNSAFE_FILES: &[Exception] = &[
    always("device/src/**", "memory, streams, SIMD dispatch, foreign calls: the base crate"),
    always("**/cuda.rs", "an op's CUDA launcher"),
    only("reader/src/disk/uring.rs", "the kernel writes into the buffers of reads in flight"),
    only(
        "device/tests/conformance.rs",
        "calls of the driver that the crate's surface does not let through",
    ),
    always(
        "device/tests/conformance/**",
        "calls of the driver that the crate's surface does not let through",
    ),
    always("embedding/src/**/simd.rs", "an op's SIMD kernel"),
    always("mlp/src/**/simd.rs", "an op's SIMD kernel"),
    always("mlp/src/**/simd/**", "an op's SIMD kernels"),
    only(
        "reader/src/criteo/parse/avx512.rs",
        "vector kernel of the parser: 64 bytes at a time, by intrinsics",
    ),
    always("comm/src/transport/**", "foreign transports"),
    always("comm/src/testing/sim/**", "the buffers of exchanges, which other threads fill"),
    only(
        "comm/verbs/tests/rxe/cable.rs",
        "memory that a NIC writes, registered and read behind completions",
    ),
    only(
        "comm/verbs/tests/rxe/linked.rs",
        "the crate `ibverbs` asks its callers to keep memory until completions",
    ),
    always("comm/nccl-rs/**", "a foreign library's functions"),
    always("comm/verbs/src/**", "a foreign library's functions, and memory that NICs write"),
    always("comm/src/device/**", "foreign calls: collectives between devices"),
    only("mutation/src/allocator.rs", "an allocator that knows the peak, over the system's"),
    only(
        "trainer/src/system/peak/simd.rs",
        "the loops that measure the machine's peak, by intrinsics",
    ),
];

/// Files that may read the environment.
pub const ENVIRONMENT_READERS: &[Exception] = &[
    only("device/src/cuda/libraries.rs", "where CUDA's libraries are; no result depends on it"),
    only("device/src/cuda/cache.rs", "where compiled kernels are kept; no result depends on it"),
    only(
        "device/tests/conformance.rs",
        "tests that run themselves again in a process of their own",
    ),
    only(
        "device/src/cuda/nvtx.rs",
        "a profiler says there which library listens; no result depends on it",
    ),
    only(
        "device/src/cuda/testing.rs",
        "REQUIRE turns skipped checks into failures; no result depends on it",
    ),
    only(
        "xtask/src/require.rs",
        "REQUIRE turns skipped checks into failures; no result depends on it",
    ),
    only("comm/verbs/src/sys/library.rs", "where libibverbs is; no result depends on it"),
    only(
        "comm/nccl-rs/src/demand.rs",
        "what NCCL itself reads there, to refuse what it would not do",
    ),
    always(
        "comm/src/launcher_env.rs",
        "torchrun, mpirun, srun and Kubernetes say rank and address there",
    ),
];

/// Functions of `comm` with a wait that ends for a reason that `waits` cannot read.
pub const ENDLESS_WAITS: &[Exception] = &[
    only(
        "comm/src/rendezvous/listener.rs::accept",
        "the listener does not block: no one there is an answer",
    ),
    only(
        "comm/src/transport/shm/meet.rs::hand_out",
        "the listener does not block, and the loop has its patience",
    ),
    only(
        "comm/src/transport/shm/meet.rs::serve",
        "`prepare` has given the connection a time to read and to write",
    ),
    only(
        "comm/src/transport/shm/meet.rs::take",
        "`prepare` has given the connection a time to read and to write",
    ),
    only(
        "comm/src/transport/tcp.rs::drop",
        "the control thread looks every 250 ms whether to stop, then has 400 ms for its last words",
    ),
    only(
        "comm/src/transport/paths/watch.rs::drop",
        "the thread was told to stop and woken; one look ends",
    ),
    only(
        "comm/src/transport/local/link.rs::withdraw",
        "a peer's thread copies out of this rank's memory: no deadline may give that memory back \
         under it, and a copy ends",
    ),
    only(
        "comm/src/device/peer/flags.rs::give_up",
        "waits for no one: it opens barriers until its owner, who has a deadline, is done",
    ),
    only(
        "comm/verbs/src/rails.rs::end",
        "the proxy was told to stop, and looks at that between any two looks at its NIC",
    ),
    only(
        "comm/verbs/src/rails/proxy.rs::run",
        "waits for no one: the device has the deadline, and the owner stops the proxy",
    ),
    only(
        "comm/src/device/peer/flags.rs::drop",
        "the thread was told to stop, and looks every millisecond",
    ),
    only(
        "comm/src/testing.rs::run_communicators",
        "for tests: a rank ends at the deadline of its operations",
    ),
    only(
        "comm/src/testing/sim.rs::run",
        "for tests: the simulated network panics when a rank never comes",
    ),
    only(
        "comm/nccl-rs/src/state.rs::drop",
        "the thread has said as its last act that it has ended",
    ),
];
