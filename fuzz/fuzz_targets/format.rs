//! Any format of `headlong_mutation::subjects::SUBJECTS`, guided by what its bytes reach. The
//! format's name comes after libFuzzer's own options: `-ignore_remaining_args=1 npz`.

#![no_main]

use headlong_mutation::allocator::PeakAllocator;
use headlong_mutation::guided::Guided;
use std::sync::{LazyLock, Mutex, PoisonError};

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

static GUIDED: LazyLock<Mutex<Guided>> = LazyLock::new(|| {
    let name = std::env::args().next_back().unwrap_or_default();
    Mutex::new(Guided::new(&name).expect("the last argument names a format"))
});

libfuzzer_sys::fuzz_target!(
    init: {
        LazyLock::force(&GUIDED);
    },
    |data: &[u8]| {
        GUIDED.lock().unwrap_or_else(PoisonError::into_inner).try_bytes(data);
    }
);
