//! Whether this process may use the tiles of AMX.

use std::arch::x86_64::__cpuid_count;
use std::sync::LazyLock;

/// Whether the processor multiplies tiles of bf16, and the system lets this process.
///
/// Linux keeps room for a thread's tiles (8 KiB) only in processes that ask for it; what is asked
/// for once holds for all threads.
pub fn are_permitted() -> bool {
    static ARE_PERMITTED: LazyLock<bool> = LazyLock::new(|| has_instructions() && asks_system());
    *ARE_PERMITTED
}

fn has_instructions() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    // Leaf 0 says how many leaves there are.
    if __cpuid_count(0, 0).eax < 7 {
        return false;
    }
    let wanted = AMX_BF16 | AMX_TILE;
    __cpuid_count(7, 0).edx & wanted == wanted
}

#[cfg(target_os = "linux")]
fn asks_system() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: a system call of two numbers; a system that does not know it refuses it.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn asks_system() -> bool {
    false
}
