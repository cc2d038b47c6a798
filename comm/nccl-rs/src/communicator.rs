//! One rank's end.

use crate::error::{Error, Result};
use crate::group::Group;
use crate::library::Library;
use crate::sys::{self, Code};
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What makes ranks one job: rank 0 makes it, every rank is given it by other means.
#[derive(Clone, Copy)]
pub struct UniqueId(pub(crate) sys::UniqueId);

impl UniqueId {
    /// Bytes of an id.
    pub const BYTES: usize = 128;

    /// A new id. NCCL opens a socket for it in this process, which has to live until all ranks have come together.
    ///
    /// # Errors
    /// [`Error::Call`], for instance where no network interface can be used.
    pub fn new(library: &Library) -> Result<Self> {
        let mut id = sys::UniqueId([0; Self::BYTES]);
        // SAFETY: the pointer is to an id that lives.
        let code = unsafe { (library.functions.get_unique_id)(&mut id) };
        library.result("ncclGetUniqueId", code, std::ptr::null_mut())?;
        Ok(Self(id))
    }

    /// The id as bytes, for the way to the other ranks.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        self.0.0.map(|byte| byte as u8)
    }

    /// The id that another rank has made.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(sys::UniqueId(bytes.map(|byte| byte as c_char)))
    }
}

/// How a communicator waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// True: NCCL's calls return when they are done, and nothing ends a wait for a rank that never comes. False: they are
    /// waited for here, until the deadline.
    pub blocking: bool,
    /// How long a call may be in progress.
    pub deadline: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { blocking: false, deadline: Duration::from_secs(120) }
    }
}

/// One rank's end of a communicator.
///
/// It is ended by [`Comm::close`], with all ranks, or by [`Comm::abort`], alone. Dropped without, it aborts, and says nothing.
#[derive(Debug)]
pub struct Comm {
    library: Arc<Library>,
    rank: usize,
    num_ranks: usize,
    config: Config,
    /// None: aborted or closed.
    raw: Mutex<Option<Raw>>,
}

/// `ncclComm_t`.
#[derive(Debug, Clone, Copy)]
struct Raw(sys::Comm);

// SAFETY: NCCL ties no communicator to a thread; that one call is made at a time is what the mutex around it sees to.
unsafe impl Send for Raw {}

impl Comm {
    /// Comes together with the other ranks: every rank calls this, with the same id. The CUDA context of the rank's device is
    /// current. Two ranks of one communicator on one device are refused by NCCL.
    ///
    /// # Errors
    /// [`Error::Call`] with NCCL's words; [`Error::Timeout`] where ranks are missing at the deadline.
    ///
    /// # Panics
    /// When `rank` is not below `num_ranks`.
    pub fn init(
        library: &Arc<Library>,
        id: &UniqueId,
        rank: usize,
        num_ranks: usize,
        config: Config,
    ) -> Result<Self> {
        const FUNCTION: &str = "ncclCommInitRankConfig";
        assert!(rank < num_ranks, "rank {rank} of {num_ranks}");
        let mut raw = std::ptr::null_mut();
        let mut settings = sys::Config::new(config.blocking);
        // SAFETY: the pointers are to values that live during the call; NCCL copies the settings.
        let code = unsafe {
            (library.functions.comm_init_rank_config)(
                &mut raw,
                num_ranks as c_int,
                id.0,
                rank as c_int,
                &mut settings,
            )
        };
        if raw.is_null() {
            library.result(FUNCTION, code, raw)?;
        }
        // From here on a failure aborts, by `Drop`.
        let comm =
            Self { library: library.clone(), rank, num_ranks, config, raw: Mutex::new(Some(Raw(raw))) };
        let held = comm.lock(FUNCTION)?;
        held.finish(FUNCTION, code)?;
        drop(held);
        Ok(comm)
    }

    /// Who this is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn num_ranks(&self) -> usize {
        self.num_ranks
    }

    /// The library it belongs to.
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// What NCCL itself says: rank, number of ranks, ordinal of the CUDA device.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Aborted`].
    pub fn place(&self) -> Result<(usize, usize, usize)> {
        let functions = &self.library.functions;
        let ask = |function, call: unsafe extern "C" fn(sys::Comm, *mut c_int) -> Code| {
            let held = self.lock(function)?;
            let mut answer = 0;
            // SAFETY: the communicator is alive, and the pointer is to an int that lives.
            let code = unsafe { call(held.raw, &mut answer) };
            self.library.result(function, code, held.raw)?;
            Ok(usize::try_from(answer).unwrap_or(usize::MAX))
        };
        Ok((
            ask("ncclCommUserRank", functions.comm_user_rank)?,
            ask("ncclCommCount", functions.comm_count)?,
            ask("ncclCommCuDevice", functions.comm_cu_device)?,
        ))
    }

    /// Whether everything is sound so far: what has gone wrong on a stream since the last look. It waits for nothing.
    ///
    /// # Errors
    /// [`Error::Call`] with NCCL's words, after which only [`Comm::abort`] is of use; [`Error::Aborted`].
    pub fn check(&self) -> Result<()> {
        const FUNCTION: &str = "ncclCommGetAsyncError";
        let held = self.lock(FUNCTION)?;
        match held.state()? {
            Code::IN_PROGRESS => Ok(()),
            state => self.library.result(FUNCTION, state, held.raw),
        }
    }

    /// Enqueues what `body` lists, all of it together: sends and receives of one group may come in any order. May be called on
    /// a stream that is being captured.
    ///
    /// # Errors
    /// Those of `body` first; [`Error::Call`], [`Error::Timeout`], [`Error::Aborted`].
    pub fn group(&self, body: impl FnOnce(&Group<'_>) -> Result<()>) -> Result<()> {
        const FUNCTION: &str = "ncclGroupEnd";
        let held = self.lock("ncclGroupStart")?;
        let group = Group::start(&held)?;
        let listed = body(&group);
        let code = group.end();
        listed?;
        held.finish(FUNCTION, code)
    }

    /// Ends the communicator at once, without the other ranks: what waits on a stream is given up. Later calls answer
    /// [`Error::Aborted`]. Called again it does nothing.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn abort(&self) -> Result<()> {
        let taken = self.raw.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Raw(raw)) = taken else { return Ok(()) };
        // SAFETY: the communicator was alive and has been taken out: nobody uses it again.
        let code = unsafe { (self.library.functions.comm_abort)(raw) };
        self.library.result("ncclCommAbort", code, std::ptr::null_mut())
    }

    /// Ends the communicator with all ranks, when what they have enqueued is done.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Timeout`], [`Error::Aborted`]; the communicator is gone in any case.
    pub fn close(self) -> Result<()> {
        const FUNCTION: &str = "ncclCommFinalize";
        let held = self.lock(FUNCTION)?;
        // SAFETY: the communicator is alive.
        let code = unsafe { (self.library.functions.comm_finalize)(held.raw) };
        held.finish(FUNCTION, code)?;
        drop(held);
        let taken = self.raw.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Raw(raw)) = taken else { return Ok(()) };
        // SAFETY: finalised, and taken out: nobody uses it again.
        let code = unsafe { (self.library.functions.comm_destroy)(raw) };
        self.library.result("ncclCommDestroy", code, std::ptr::null_mut())
    }

    /// The communicator, for one caller at a time.
    pub(crate) fn lock(&self, function: &'static str) -> Result<Held<'_>> {
        let guard = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        match *guard {
            Some(Raw(raw)) => {
                Ok(Held { library: &self.library, raw, deadline: self.config.deadline, _guard: guard })
            }
            None => Err(Error::Aborted { function }),
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.abort();
    }
}

/// The communicator, alive, and nobody else calls it.
pub(crate) struct Held<'a> {
    pub(crate) library: &'a Library,
    pub(crate) raw: sys::Comm,
    deadline: Duration,
    _guard: MutexGuard<'a, Option<Raw>>,
}

impl Held<'_> {
    /// The state that NCCL's own threads have left.
    fn state(&self) -> Result<Code> {
        let mut state = Code::SUCCESS;
        // SAFETY: the communicator is alive, and the pointer is to a code that lives.
        let code = unsafe { (self.library.functions.comm_get_async_error)(self.raw, &mut state) };
        self.library.result("ncclCommGetAsyncError", code, self.raw)?;
        Ok(state)
    }

    /// The end of a call that has answered `code`: where it is in progress, waits for it.
    pub(crate) fn finish(&self, function: &'static str, mut code: Code) -> Result<()> {
        let started = Instant::now();
        let mut looks = 0_u32;
        while code == Code::IN_PROGRESS {
            let waited = started.elapsed();
            if waited >= self.deadline {
                return Err(Error::Timeout { function, waited_ms: waited.as_millis() as u64 });
            }
            // Enqueueing takes microseconds, coming together seconds.
            match looks {
                0..1000 => std::hint::spin_loop(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
            looks += 1;
            code = self.state()?;
        }
        self.library.result(function, code, self.raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_the_way_as_bytes() {
        let bytes = std::array::from_fn(|index| (index * 3) as u8);
        assert_eq!(UniqueId::from_bytes(bytes).to_bytes(), bytes);
    }
}
