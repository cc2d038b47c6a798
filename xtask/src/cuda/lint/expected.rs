//! What the machine code of each kernel must keep. A kernel that moves rows has a line in
//! [`EXPECTED`]; where today's code does not hold what it should, a line in [`KNOWN`] says so, and
//! goes when it is mended: a line that covers nothing is a fault, too.

use super::sass::Width;

/// In place of a number of blocks: as many as are resident.
pub const RESIDENT: u32 = 0;

/// How a kernel's grid is chosen: this many blocks for each multiprocessor, or [`RESIDENT`], where
/// there is work for as many.
pub struct Grid {
    pub per_multiprocessor: u32,
    /// Whose launch says so.
    pub file: &'static str,
}

/// What must hold of a kernel, besides what must hold of all.
pub struct Expected {
    /// `source:kernel`.
    pub kernel: &'static str,
    /// Of instances that have this constant; of all where it is empty.
    pub only: &'static str,
    /// Not of instances that have one of these.
    pub except: &'static [&'static str],
    /// Of a lane's accesses to rows: what `loads_in_flight` and `wide_stores` count.
    pub width: Width,
    /// Loads that are on their way at a time in some place, at least.
    pub loads_in_flight: u32,
    /// Of all writes to global memory, per cent, at least.
    pub wide_stores: u32,
    /// Products by tensor cores, at least.
    pub tensor: u32,
    /// Blocks that a multiprocessor holds at a time, at least.
    pub blocks: u32,
    pub grid: Option<Grid>,
}

pub const NOTHING: Expected = Expected {
    kernel: "",
    only: "",
    except: &[],
    width: Width::Sixteen,
    loads_in_flight: 0,
    wide_stores: 0,
    tensor: 0,
    blocks: 0,
    grid: None,
};

/// Of a kernel that copies rows, 16 bytes a lane.
const COPIES_ROWS: Expected = Expected { loads_in_flight: 4, wide_stores: 100, ..NOTHING };

/// The same where a lane has 8 bytes of one side.
const COPIES_HALVES: Expected = Expected { width: Width::Eight, ..COPIES_ROWS };

/// As many blocks as a multiprocessor holds: what is launched by `CudaStream::run_resident`.
const fn resident(file: &'static str) -> Option<Grid> {
    grid(RESIDENT, file)
}

const fn grid(per_multiprocessor: u32, file: &'static str) -> Option<Grid> {
    Some(Grid { per_multiprocessor, file })
}

const LOOKUP: &str = "embedding/src/lookup/cuda.rs";
const EXCHANGE: &str = "embedding/src/hybrid/cuda/launch.rs";
const UPDATE: &str = "embedding/src/update/cuda.rs";
const ROUTE: &str = "embedding/src/route/cuda.rs";
const DENSE: &str = "mlp/src/cuda.rs";

/// What takes single elements, of rows of any dim; what is sent in 16 bits, of which a lane has
/// eight bytes.
const ANY_DIM: &str = "DIM=0";
const NARROW: &str = "SLOT_TYPE=2";
/// Vectors in 16 bits, of which a lane that holds four elements writes eight bytes.
const BF16_VECTORS: &str = "VECTOR_TYPE=2";

pub const EXPECTED: &[Expected] = &[
    Expected {
        kernel: "embedding/lookup:lookup",
        except: &[ANY_DIM, NARROW, BF16_VECTORS],
        blocks: 4,
        grid: resident(LOOKUP),
        ..COPIES_ROWS
    },
    Expected {
        kernel: "embedding/lookup:lookup",
        only: BF16_VECTORS,
        except: &[ANY_DIM, NARROW],
        blocks: 4,
        grid: resident(LOOKUP),
        ..COPIES_HALVES
    },
    Expected {
        kernel: "embedding/lookup:lookup",
        only: NARROW,
        except: &[ANY_DIM],
        blocks: 3,
        grid: resident(LOOKUP),
        ..COPIES_HALVES
    },
    Expected {
        kernel: "embedding/lookup:lookup_parts",
        blocks: 2,
        grid: resident(LOOKUP),
        ..NOTHING
    },
    Expected {
        kernel: "embedding/exchange:owner_lookup",
        except: &[ANY_DIM, NARROW],
        blocks: 3,
        grid: resident(EXCHANGE),
        ..COPIES_ROWS
    },
    Expected {
        kernel: "embedding/exchange:owner_lookup",
        only: NARROW,
        except: &[ANY_DIM],
        blocks: 3,
        grid: resident(EXCHANGE),
        ..COPIES_HALVES
    },
    Expected {
        kernel: "embedding/exchange:send_to_node",
        except: &[ANY_DIM, NARROW],
        blocks: 3,
        grid: resident(EXCHANGE),
        ..COPIES_ROWS
    },
    Expected {
        kernel: "embedding/exchange:send_to_node",
        only: NARROW,
        except: &[ANY_DIM],
        blocks: 3,
        grid: resident(EXCHANGE),
        ..COPIES_HALVES
    },
    Expected {
        kernel: "embedding/exchange:owner_pool",
        blocks: 3,
        grid: resident(EXCHANGE),
        ..NOTHING
    },
    Expected {
        kernel: "embedding/update:update_chunks",
        except: &[ANY_DIM, BF16_VECTORS],
        loads_in_flight: 4,
        blocks: 4,
        grid: resident(UPDATE),
        ..NOTHING
    },
    Expected {
        kernel: "embedding/update:update_chunks",
        only: BF16_VECTORS,
        except: &[ANY_DIM],
        width: Width::Eight,
        loads_in_flight: 4,
        blocks: 4,
        grid: resident(UPDATE),
        ..NOTHING
    },
    Expected {
        kernel: "embedding/update:update_longs",
        except: &[ANY_DIM],
        loads_in_flight: 4,
        blocks: 4,
        grid: resident(UPDATE),
        ..NOTHING
    },
    Expected {
        kernel: "embedding/update:update_frequent",
        blocks: 4,
        grid: resident(UPDATE),
        ..NOTHING
    },
    Expected { kernel: "embedding/route:sort_pass", blocks: 2, grid: resident(ROUTE), ..NOTHING },
    // Of the interaction, shared memory is asked for at the launch: not counted here.
    Expected {
        kernel: "mlp/dot-tensor:tensor_forward",
        tensor: 1,
        blocks: 1,
        grid: grid(8, DENSE),
        ..NOTHING
    },
    Expected {
        kernel: "mlp/dot-tensor:tensor_backward",
        tensor: 1,
        blocks: 1,
        grid: grid(8, DENSE),
        ..NOTHING
    },
    Expected { kernel: "mlp/optim:optim_step", blocks: 4, grid: grid(8, DENSE), ..NOTHING },
    Expected {
        kernel: "comm/sum:sum_parts",
        except: &["PARTS=1"],
        loads_in_flight: 2,
        blocks: 3,
        grid: grid(4, "comm/src/device/sum.rs"),
        ..NOTHING
    },
];

/// The kernel of `mutants`, and what it must keep.
pub const MUTANT: &str = "lint/tests:copy_rows";
pub const OF_MUTANTS: &[Expected] =
    &[Expected { kernel: MUTANT, loads_in_flight: 4, wide_stores: 100, blocks: 2, ..NOTHING }];

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    Spills,
    LocalMemory,
    LoadsInFlight,
    WideStores,
    Tensor,
    Blocks,
}

impl Rule {
    pub fn name(self) -> &'static str {
        match self {
            Self::Spills => "bytes spilled",
            Self::LocalMemory => "accesses to local memory",
            Self::LoadsInFlight => "loads in flight",
            Self::WideStores => "per cent of wide stores",
            Self::Tensor => "tensor instructions",
            Self::Blocks => "resident blocks",
        }
    }

    /// Whether a value is no worse than another.
    pub fn is_met(self, found: u32, limit: u32) -> bool {
        match self {
            Self::Spills | Self::LocalMemory => found <= limit,
            _ => found >= limit,
        }
    }
}

/// A fault that today's code has.
pub struct Known {
    pub kernel: &'static str,
    /// In instances with this constant; in all where it is empty.
    pub only: &'static str,
    pub architectures: &'static [&'static str],
    pub rule: Rule,
    /// What is found at worst: worse than this is a fault again.
    pub worst: u32,
    pub reason: &'static str,
}

pub const ALL: &[&str] = &["sm_80", "sm_90a", "sm_100"];

pub const KNOWN: &[Known] = &[
    Known {
        kernel: "embedding/lookup:lookup",
        only: NARROW,
        architectures: &["sm_100"],
        rule: Rule::LoadsInFlight,
        worst: 2,
        reason: "rows of two types, f32 and 16 bits: why was not looked into",
    },
    Known {
        kernel: "embedding/lookup:lookup_parts",
        only: "",
        architectures: ALL,
        rule: Rule::LocalMemory,
        worst: 208,
        reason: "the stack of `sum_tree`, whose depth only the device knows",
    },
    Known {
        kernel: "embedding/exchange:owner_pool",
        only: "",
        architectures: ALL,
        rule: Rule::LocalMemory,
        worst: 26,
        reason: "the stack of `sum_tree`, whose depth only the device knows",
    },
    Known {
        kernel: "comm/sum:sum_parts",
        only: "NARROW=1",
        architectures: ALL,
        rule: Rule::Blocks,
        worst: 2,
        reason: "of more than nine parts a lane holds 16 bytes of each: fewer blocks load as much",
    },
];
