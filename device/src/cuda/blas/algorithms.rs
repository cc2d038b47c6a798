//! Which algorithm for which product: timed once, kept in a file.

use super::library::library_version;
use super::plan::{Algorithm, Matmul, check_spec};
use super::trial::Trial;
use super::{Epilogue, MatmulSpec};
use crate::cuda::CudaStream;
use crate::cuda::cache::{algorithm_file, write_shared};
use crate::error::{DeviceError, Result};
use crate::files::open_to_lock;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_128;

/// One search at a time per process: two would time each other.
static SEARCH: Mutex<()> = Mutex::new(());

/// What was found for a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The library's words for the algorithm.
    pub words: [u64; 8],
    /// Time of a run.
    pub nanoseconds: u64,
}

/// Chosen algorithms by product, device and version of the library: one line each,
/// `key nanoseconds word word …`, all hexadecimal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Algorithms(BTreeMap<String, Kept>);

impl Algorithms {
    /// Reads a file; one that is not there is empty.
    ///
    /// # Errors
    /// One that cannot be read, or has a line that is none: it may be another file, named by
    /// mistake, and is not to be replaced.
    pub fn read(file: &Path) -> Result<Self> {
        let refused = |found: String| {
            let reason = format!("{found}: name another file, or remove this one");
            DeviceError::Misuse { what: format!("file of algorithms {}", file.display()), reason }
        };
        let text = match std::fs::read_to_string(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            text => text.map_err(|error| refused(format!("it cannot be read ({error})")))?,
        };
        let mut algorithms = Self::default();
        for (index, line) in text.lines().enumerate() {
            let none = || {
                let number = index + 1;
                refused(format!("line {number} is not a key and nine numbers, all hexadecimal"))
            };
            let (key, kept) = parsed(line).ok_or_else(none)?;
            algorithms.insert(key, kept);
        }
        Ok(algorithms)
    }

    /// Writes the file, which appears when it is complete.
    pub fn write(&self, file: &Path) -> Result<()> {
        let line = |(key, kept): (&String, &Kept)| {
            let words: Vec<String> = kept.words.iter().map(|word| format!("{word:x}")).collect();
            format!("{key} {:x} {}\n", kept.nanoseconds, words.join(" "))
        };
        let text: String = self.0.iter().map(line).collect();
        write_shared(file, text.as_bytes())
    }

    /// What is kept for a key.
    pub fn get(&self, key: &str) -> Option<Kept> {
        self.0.get(key).copied()
    }

    /// Keeps what was found.
    pub fn insert(&mut self, key: String, kept: Kept) {
        self.0.insert(key, kept);
    }
}

/// A line's key, and what is kept for it.
fn parsed(line: &str) -> Option<(String, Kept)> {
    let mut words = line.split_whitespace();
    let key = words.next().filter(|key| key.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    let mut words = words.map(|word| u64::from_str_radix(word, 16).ok());
    let nanoseconds = words.next()??;
    let words: Vec<u64> = words.collect::<Option<_>>()?;
    Some((key.to_owned(), Kept { words: words.try_into().ok()?, nanoseconds }))
}

/// Everything that decides which algorithm is fastest, and whether it exists.
fn key(stream: &CudaStream, what: &str) -> Result<String> {
    let text = format!("{what} {} {}", stream.device().name(), library_version()?);
    Ok(format!("{:032x}", xxh3_128(text.as_bytes())))
}

/// What there is to do with a product, of which the library does a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Alternative {
    /// What the product does.
    pub epilogue: Epilogue,
    /// Bytes that a kernel then has to read and write to do the rest.
    pub bytes_left: usize,
}

impl Matmul {
    /// Plans a product for the stream's device, and makes the stream's workspace if it has none
    /// yet.
    ///
    /// The algorithm is the one kept in the file of algorithms; else the fastest of the library's
    /// first proposals that are done and come to the same bits each time, timed now and kept. The
    /// software device searches only where a file is named; else it takes the first proposal.
    pub fn new(stream: &CudaStream, spec: MatmulSpec) -> Result<Self> {
        check_spec(&spec)?;
        let proposals = Self::proposals(stream, &spec)?;
        match search_file(stream) {
            Some(file) => Self::searched(&file, stream, spec, proposals),
            None => Self::with_algorithms(stream, spec, proposals),
        }
    }

    /// Plans the same product with one of several epilogues: with that which is done first, its
    /// rest included, where that is measured; else the first that the library has an algorithm for.
    ///
    /// # Errors
    /// Where it has none for any.
    pub fn fastest_of(
        stream: &CudaStream,
        spec: MatmulSpec,
        alternatives: &[Alternative],
    ) -> Result<Self> {
        let (mut best, mut reason) = (None, None);
        for Alternative { epilogue, bytes_left } in alternatives {
            let plan = match Self::new(stream, MatmulSpec { epilogue: *epilogue, ..spec }) {
                Ok(plan) => plan,
                Err(error) => {
                    reason = Some(error);
                    continue;
                }
            };
            let Some(nanoseconds) = plan.nanoseconds else { return Ok(best.map_or(plan, second)) };
            let left = nanoseconds_of_pass(stream, &spec, *bytes_left)?;
            let nanoseconds = nanoseconds + left;
            if best.as_ref().is_none_or(|(least, _)| nanoseconds < *least) {
                best = Some((nanoseconds, plan));
            }
        }
        best.map(second).ok_or_else(|| reason.unwrap_or_else(|| none_of(&spec)))
    }

    /// With the algorithm that the file names, or the fastest, which the file then names. Where
    /// there is no memory to search, with all proposals, in the library's order.
    fn searched(
        file: &Path,
        stream: &CudaStream,
        spec: MatmulSpec,
        proposals: Vec<Algorithm>,
    ) -> Result<Self> {
        let _turn = SEARCH.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key(stream, &format!("{spec:?}"))?;
        let kept = Algorithms::read(file)?.get(&key);
        let named = |kept: Kept| {
            let algorithm = proposals.iter().find(|algorithm| algorithm.data == kept.words)?;
            Some((*algorithm, kept.nanoseconds))
        };
        let (chosen, nanoseconds) = match kept.and_then(named) {
            Some(found) => found,
            None => {
                if stream.is_capturing()? {
                    let reason = "its algorithm is searched before it is captured".to_owned();
                    return Err(DeviceError::Misuse { what: format!("{spec:?}"), reason });
                }
                let Ok(trial) = Trial::new(stream, &spec) else {
                    return Self::with_algorithms(stream, spec, proposals);
                };
                let (algorithm, nanoseconds) = fastest(&trial, stream, spec, &proposals)?;
                let found = Kept { words: algorithm.data, nanoseconds };
                named(keep(file, key, kept, found)?).unwrap_or((algorithm, nanoseconds))
            }
        };
        // What may be refused all the same is replaced by what the library would take next.
        let mut algorithms = vec![chosen];
        algorithms.extend(proposals.into_iter().filter(|other| other.data != chosen.data));
        let mut plan = Self::with_algorithms(stream, spec, algorithms)?;
        plan.nanoseconds = Some(nanoseconds);
        Ok(plan)
    }
}

fn second<A, B>((_, second): (A, B)) -> B {
    second
}

fn none_of(spec: &MatmulSpec) -> DeviceError {
    let reason = "cuBLASLt has no algorithm for it that comes to the same bits each time";
    DeviceError::Misuse { what: format!("{spec:?}"), reason: reason.to_owned() }
}

/// Where what is found is kept, and whether there is a search at all.
fn search_file(stream: &CudaStream) -> Option<PathBuf> {
    let device = stream.device();
    let named = device.files().algorithms.clone();
    named.or_else(|| if device.is_software() { None } else { algorithm_file() })
}

/// Keeps what was found, and returns what the file has for the key from now on: what another
/// process has found since the file was `read` counts, so that all that run from this file compute
/// the same bits.
fn keep(file: &Path, key: String, read: Option<Kept>, found: Kept) -> Result<Kept> {
    let _lock = lock_of(file);
    let mut algorithms = Algorithms::read(file)?;
    if let Some(other) = algorithms.get(&key).filter(|other| Some(*other) != read) {
        return Ok(other);
    }
    algorithms.insert(key, found);
    // A full or read-only disk costs the next start a search, not this run.
    algorithms.write(file).ok();
    Ok(found)
}

/// Held, as long as it is open, by the process that adds to a file of algorithms: one that read it
/// before another has written would take away what that one has added. A file next to it, because
/// the file itself is replaced; none where the folder takes none.
fn lock_of(file: &Path) -> Option<File> {
    let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    let opened = folder.and_then(|()| open_to_lock(&file.with_extension("lock"))).ok()?;
    opened.lock().ok().map(|()| opened)
}

/// The fastest of these, and its time.
fn fastest(
    trial: &Trial<'_>,
    stream: &CudaStream,
    spec: MatmulSpec,
    proposals: &[Algorithm],
) -> Result<(Algorithm, u64)> {
    let mut best = None;
    for algorithm in proposals {
        let plan = Matmul::with_algorithms(stream, spec, vec![*algorithm])?;
        let Some(nanoseconds) = trial.nanoseconds(&plan)? else { continue };
        if best.is_none_or(|(_, least)| nanoseconds < least) {
            best = Some((*algorithm, nanoseconds));
        }
    }
    best.ok_or_else(|| none_of(&spec))
}

/// Nanoseconds of a kernel that reads and writes so many bytes, as a copy takes them.
fn nanoseconds_of_pass(stream: &CudaStream, spec: &MatmulSpec, bytes: usize) -> Result<u64> {
    let Some(file) = search_file(stream).filter(|_| bytes > 0) else { return Ok(0) };
    let _turn = SEARCH.lock().unwrap_or_else(PoisonError::into_inner);
    let key = key(stream, &format!("{bytes} bytes"))?;
    if let Some(kept) = Algorithms::read(&file)?.get(&key) {
        return Ok(kept.nanoseconds);
    }
    let Ok(trial) = Trial::new(stream, spec) else { return Ok(0) };
    let nanoseconds = trial.nanoseconds_of_pass(bytes)?;
    Ok(keep(&file, key, None, Kept { words: [0; 8], nanoseconds })?.nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::super::{Math, MatmulArgs, Operand};
    use super::*;
    use crate::DType;
    use crate::cuda::testing::{ProductFaults, device, download, set_product_faults, upload};
    use crate::cuda::{CudaFiles, CudaStream};

    const EPILOGUE_RELU_BIAS: u32 = 6;

    fn spec(epilogue: Epilogue) -> MatmulSpec {
        let [a, b, d] = [Operand::plain(DType::F32, 8); 3];
        let (math, bias_dtype) = (Math::Full, DType::F32);
        MatmulSpec { m: 16, n: 8, k: 8, a, b, d, math, epilogue, bias_dtype }
    }

    /// A stream that keeps what it finds in a file of its own, where libraries misbehave as told.
    fn stream_of(name: &str, faults: ProductFaults) -> Option<(CudaStream, PathBuf)> {
        let device = device()?;
        let file = format!("headlong-{name}-{}.txt", std::process::id());
        let file = std::env::temp_dir().join(file);
        let files = CudaFiles { algorithms: Some(file.clone()), ..CudaFiles::default() };
        let stream = CudaStream::new(&device.with_files(files)).unwrap();
        set_product_faults(faults).then_some((stream, file))
    }

    fn words_of(plan: &Matmul) -> [u64; 8] {
        plan.algorithm().unwrap().data
    }

    /// Who can write into the folder may have planted a link to a file of this user.
    #[test]
    fn the_file_that_a_link_at_the_lock_leads_to_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let [file, theirs] = ["algorithms.txt", "theirs"].map(|name| folder.path().join(name));
        std::fs::write(&theirs, "weeks of work").unwrap();
        std::os::unix::fs::symlink(&theirs, file.with_extension("lock")).unwrap();
        assert!(lock_of(&file).is_none(), "no lock is better than that file");
        assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "weeks of work");
        std::fs::remove_file(file.with_extension("lock")).unwrap();
        let held = lock_of(&file).expect("there is nothing in its way");
        let other = File::open(file.with_extension("lock")).unwrap();
        assert!(other.try_lock().is_err());
        drop(held);
        other.try_lock().unwrap();
    }

    #[test]
    fn of_what_is_done_and_repeatable_the_fastest_is_taken_and_kept() {
        let faults = ProductFaults { refused: 1, varying: 2, slow: 4, ..ProductFaults::default() };
        let Some((stream, file)) = stream_of("search", faults) else { return };
        let spec = spec(Epilogue::ReluAuxBias);
        let proposals = Matmul::proposals(&stream, &spec).unwrap();
        let plan = Matmul::new(&stream, spec).unwrap();
        assert_eq!(words_of(&plan), proposals[3].data);
        let found =
            Algorithms::read(&file).unwrap().get(&key(&stream, &format!("{spec:?}")).unwrap());
        assert_eq!(found.map(|kept| kept.words), Some(proposals[3].data));
        // What the file names is taken, and not looked for again.
        set_product_faults(ProductFaults { slow: 8, ..ProductFaults::default() });
        let again = Matmul::new(&stream, spec).unwrap();
        assert_eq!((words_of(&again), again.nanoseconds), (words_of(&plan), plan.nanoseconds));
        set_product_faults(ProductFaults { varying: 15, ..ProductFaults::default() });
        let other = MatmulSpec { m: 8, ..spec };
        let message = Matmul::new(&stream, other).unwrap_err().to_string();
        assert!(message.contains("the same bits each time"), "{message}");
        set_product_faults(ProductFaults::default());
        std::fs::remove_file(&file).unwrap();
    }

    /// A product with all that is wanted, or one without and a kernel after it.
    #[test]
    fn what_is_done_first_with_its_rest_is_taken() {
        let faults =
            ProductFaults { slow_epilogue: EPILOGUE_RELU_BIAS, ..ProductFaults::default() };
        let Some((stream, file)) = stream_of("epilogues", faults) else { return };
        for (bytes_left, expected) in [(1024, Epilogue::None), (1 << 40, Epilogue::ReluBias)] {
            let alternatives = [(Epilogue::ReluBias, 0), (Epilogue::None, bytes_left)];
            let alternatives =
                alternatives.map(|(epilogue, bytes_left)| Alternative { epilogue, bytes_left });
            let plan = Matmul::fastest_of(&stream, spec(Epilogue::None), &alternatives).unwrap();
            assert_eq!(plan.spec().epilogue, expected, "{bytes_left} bytes left");
        }
        set_product_faults(ProductFaults::default());
        std::fs::remove_file(&file).unwrap();
    }

    /// Two processes that search for the same product at once, and one for another: all compute
    /// with what was kept first, and no entry is lost.
    #[test]
    fn of_searches_at_once_the_first_counts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("algorithms.txt");
        let found = |word| Kept { words: [word; 8], nanoseconds: word };
        let counted: Vec<Kept> = std::thread::scope(|scope| {
            let keep_both = |word: u64| {
                let file = &file;
                move || {
                    let own = keep(file, format!("{word:x}"), None, found(word)).unwrap();
                    assert_eq!(own, found(word));
                    keep(file, "ff".to_owned(), None, found(word)).unwrap()
                }
            };
            let threads: Vec<_> = (0..16).map(|word| scope.spawn(keep_both(word))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let kept = Algorithms::read(&file).unwrap();
        assert!(counted.iter().all(|counted| Some(*counted) == kept.get("ff")), "{counted:?}");
        assert!((0..16).all(|word| kept.get(&format!("{word:x}")) == Some(found(word))));
    }

    #[test]
    fn a_refused_algorithm_is_replaced() {
        let Some(device) = device() else { return };
        let stream = CudaStream::new(&device).unwrap();
        if !set_product_faults(ProductFaults { refused: 3, ..ProductFaults::default() }) {
            return;
        }
        let [a, d] = [1.0_f32, 0.0].map(|x| upload(&device, &[x; 128]).unwrap());
        let args = MatmulArgs::new(a.ptr(), a.ptr(), d.ptr());
        let plan = Matmul::new(&stream, spec(Epilogue::None)).unwrap();
        assert!(plan.try_run(&stream, &args) && !plan.is_refused());
        stream.synchronize().unwrap();
        assert_eq!(download::<f32>(&d).unwrap(), [8.0; 128]);
        set_product_faults(ProductFaults { refused: 15, ..ProductFaults::default() });
        assert!(!plan.try_run(&stream, &args) && plan.is_refused());
        stream.check().unwrap();
        plan.run(&stream, &args);
        let message = stream.check().unwrap_err().to_string();
        assert!(message.contains("refuses all algorithms"), "{message}");
        set_product_faults(ProductFaults::default());
    }
}
