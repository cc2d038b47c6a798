//! Compiled kernels as `headlong kernels build` writes them: the machine code of each kernel and
//! the block it is compiled for.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use object::{Object as _, ObjectSection as _};

use crate::process::At as _;

/// Bytes before the ELF image, and with what they begin: `device/src/cuda/cache.rs` writes them.
const HEAD_BYTES: usize = 32;
const MAGIC: &[u8] = b"HLKERN01";

/// One kernel's machine code.
pub struct Code {
    pub name: String,
    /// Threads of the largest block it may be launched with, where `__launch_bounds__` says so.
    pub threads: Option<u32>,
    pub bytes: Vec<u8>,
}

/// All kernels of a file.
pub fn read(file: &Path) -> Result<Vec<Code>> {
    let bytes = fs::read(file).at(file)?;
    let image = image(&bytes).with_context(|| file.display().to_string())?;
    codes(image).with_context(|| file.display().to_string())
}

/// The ELF image behind the head.
fn image(bytes: &[u8]) -> Result<&[u8]> {
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES).context("it is cut short")?;
    ensure!(head.starts_with(MAGIC), "it does not begin as compiled kernels do");
    let len = u64::from_le_bytes(head[16..24].try_into().expect("eight bytes"));
    rest.get(..usize::try_from(len)?).context("it is cut short")
}

/// The kernels of a bare ELF image.
pub fn codes(image: &[u8]) -> Result<Vec<Code>> {
    let elf = object::read::elf::ElfFile64::<object::Endianness>::parse(image)?;
    let mut codes = Vec::new();
    for section in elf.sections() {
        let Some(name) = section.name()?.strip_prefix(".text.") else { continue };
        let info = elf.section_by_name(&format!(".nv.info.{name}"));
        let info = info.map(|info| info.data()).transpose()?.unwrap_or_default();
        let bytes = section.data()?.to_vec();
        codes.push(Code { name: name.to_owned(), threads: max_threads(info), bytes });
    }
    Ok(codes)
}

/// The attribute `EIATTR_MAX_THREADS` of a kernel: three sizes of a block, multiplied.
///
/// Attributes come one after another: a byte for the form, one for the kind, and a 16-bit value,
/// which for the fourth form is the number of bytes that follow.
fn max_threads(mut info: &[u8]) -> Option<u32> {
    const SIZED: u8 = 4;
    const MAX_THREADS: u8 = 5;
    while let [form, kind, low, high, rest @ ..] = info {
        let len = if *form == SIZED { usize::from(u16::from_le_bytes([*low, *high])) } else { 0 };
        let (value, after) = rest.split_at_checked(len)?;
        if (*form, *kind) == (SIZED, MAX_THREADS) {
            let (sizes, _) = value.as_chunks::<4>();
            return Some(sizes.iter().map(|size| u32::from_le_bytes(*size)).product());
        }
        info = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_is_found_among_other_attributes() {
        let mut info = vec![4, 0x37, 4, 0, 130, 0, 0, 0, 3, 0x50, 0, 0];
        assert_eq!(max_threads(&info), None);
        info.extend([4, 5, 12, 0, 0, 1, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(max_threads(&info), Some(512));
        assert_eq!(max_threads(&info[..info.len() - 1]), None);
    }

    #[test]
    fn what_is_no_compiled_kernel_is_refused() {
        assert!(image(b"HLKERN01").is_err());
        let mut file = [MAGIC, &[0; 24], b"abc"].concat();
        file[16] = 3;
        assert_eq!(image(&file).unwrap(), b"abc");
        file[16] = 4;
        assert!(image(&file).is_err());
        file[0] = b'X';
        assert!(image(&file).is_err());
    }
}
