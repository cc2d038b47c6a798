//! Copies whose addresses the host leaves in page-locked memory: one captured launch copies what
//! the list names when it runs.

use super::{Build, CudaDevice, CudaStream, DevicePtr, Launch, Pinned, Source};
use crate::error::Result;
use crate::kernel_args;

static PIECES: Source =
    Source { name: "device/pieces", text: include_str!("../../cuda/pieces.cu") };
const BLOCK: u32 = 256;
/// Blocks for each piece.
const BLOCKS: u32 = 16;

/// Words to be copied, to one place or to two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Piece {
    /// Their first byte.
    pub from: DevicePtr,
    /// Where they go.
    pub to: DevicePtr,
    /// Where they go besides; may be no memory.
    pub also: DevicePtr,
    /// Their number, of four bytes each.
    pub words: u64,
}

kernel_args! {
    struct PiecesArgs { pieces: DevicePtr; }
}

impl Piece {
    /// As the kernel reads it.
    fn numbers(&self) -> [u64; 4] {
        [self.from.0, self.to.0, self.also.0, self.words]
    }
}

/// The kernel, for builds ahead of time.
pub fn kernels() -> Vec<Build> {
    vec![Build { source: &PIECES, defines: Vec::new() }]
}

/// A list of pieces, none of which overlaps another. Places are multiples of four bytes, of this
/// device or in page-locked memory.
#[derive(Debug)]
pub struct Pieces {
    pinned: Pinned,
    most: usize,
    len: usize,
}

impl Pieces {
    /// Room for `most` pieces.
    pub fn new(device: &CudaDevice, most: usize) -> Result<Self> {
        let pinned = Pinned::new(device, most * size_of::<Piece>())?;
        Ok(Self { pinned, most, len: 0 })
    }

    /// Forgets all pieces. The copy of those before must be done.
    pub fn clear(&mut self) {
        self.len = 0;
        self.pinned.as_mut_slice::<u64>().fill(0);
    }

    /// Adds one.
    ///
    /// # Panics
    /// When there is no room.
    pub fn push(&mut self, piece: &Piece) {
        assert!(self.len < self.most, "at most {} pieces", self.most);
        self.pinned.put(self.len * size_of::<Piece>(), &piece.numbers());
        self.len += 1;
    }

    /// Enqueues the copies of what the list holds when they run.
    pub fn copy(&self, stream: &CudaStream) {
        let args = PiecesArgs { pieces: self.pinned.device_visible() };
        let shape = Launch::new((BLOCKS, self.most as u32), BLOCK);
        stream.run(&PIECES, &[], "copy_pieces", shape, &args);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::DeviceMemory;
    use crate::cuda::testing::{download, layout_test, stream, upload};

    #[test]
    fn the_structs_of_both_languages_are_the_same() {
        layout_test!(Piece, &PIECES, &[]; from, to, also, words);
        layout_test!(PiecesArgs, &PIECES, &[]);
    }

    /// One graph copies other pieces at each launch: of page-locked and of device memory, at places
    /// that are multiples of 16 bytes and others.
    #[test]
    fn a_captured_copy_takes_what_the_list_names_then() {
        let Some(stream) = stream() else { return };
        let stream = stream.cuda_body();
        let device = stream.device();
        let mut host = Pinned::new(device, 4000).unwrap();
        host.as_mut_slice::<u32>().iter_mut().zip(0..).for_each(|(word, value)| *word = value);
        let kept = upload(device, &(5000..6000).collect::<Vec<u32>>()).unwrap();
        let [to, also] = [(); 2].map(|()| DeviceMemory::new(device, "test", 4000).unwrap());
        let mut list = Pieces::new(device, 3).unwrap();
        list.copy(stream);
        let graph = stream.capture(|| {
            list.copy(stream);
            Ok(())
        });
        let graph = graph.unwrap();
        let (from, at) = (host.device_visible(), |memory: &DeviceMemory, word: usize| {
            memory.ptr().offset(4 * word)
        });
        list.push(&Piece { from, to: to.ptr(), also: at(&also, 4), words: 401 });
        list.push(&Piece {
            from: at(&kept, 3),
            to: at(&to, 501),
            also: DevicePtr::NULL,
            words: 77,
        });
        graph.launch(stream);
        stream.synchronize().unwrap();
        let words = download::<u32>(&to).unwrap();
        assert_eq!(words[..401], (0..401).collect::<Vec<u32>>());
        assert_eq!(words[501..578], (5003..5080).collect::<Vec<u32>>());
        assert!(words[401..501].iter().chain(&words[578..]).all(|&word| word == 0));
        let words = download::<u32>(&also).unwrap();
        assert_eq!(words[4..405], (0..401).collect::<Vec<u32>>());
        assert!(words[..4].iter().chain(&words[405..]).all(|&word| word == 0));

        list.clear();
        list.push(&Piece { from: kept.ptr(), to: to.ptr(), also: DevicePtr::NULL, words: 8 });
        graph.launch(stream);
        stream.synchronize().unwrap();
        let words = download::<u32>(&to).unwrap();
        assert_eq!(words[..10], [5000, 5001, 5002, 5003, 5004, 5005, 5006, 5007, 8, 9]);
    }
}
