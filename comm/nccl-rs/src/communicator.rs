//! One rank's end.

use crate::config::{Config, Feature};
use crate::demand;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::library::Library;
use crate::state::{BeforeAbort, Shared, Turn, Watchdog, Wish};
use crate::sys;
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// What makes ranks one job: rank 0 makes it, every rank is given it by other means.
#[derive(Clone, Copy)]
pub struct UniqueId(pub(crate) sys::UniqueId);

impl UniqueId {
    /// Bytes of an id.
    pub const BYTES: usize = 128;

    /// A new id. NCCL opens a socket for it in this process, which has to live until all ranks have
    /// come together.
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

/// One rank's end of a communicator.
///
/// A thread of its own asks NCCL every [`Config::watch_every`] whether something went wrong. The
/// first error ends the communicator: what waits on a stream is given up, and every later call
/// answers with that error.
///
/// It is ended by [`Comm::close`], with all ranks, or by [`Comm::abort`], alone. Dropped without,
/// it aborts, and waits for that at most [`Config::end_within`].
#[derive(Debug)]
pub struct Comm {
    shared: Arc<Shared>,
    _watchdog: Watchdog,
    rank: usize,
    num_ranks: usize,
}

impl Comm {
    /// Comes together with the other ranks: every rank calls this, with the same id and settings.
    /// The CUDA context of the rank's device is current. Two ranks of one communicator on one
    /// device are refused by NCCL.
    ///
    /// # Errors
    /// [`Error::Call`] with NCCL's words; [`Error::Timeout`] where ranks are missing at the
    /// deadline; [`Error::Unsupported`] where the library is too old for a setting;
    /// [`Error::Unavailable`] where NCCL has come together without what the settings require.
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
        let mut settings = config.to_raw(library)?;
        let (shared, watchdog) = Shared::start(library, config)?;
        let mut raw = std::ptr::null_mut();
        let (ranks, own) = (num_ranks as c_int, rank as c_int);
        let init = library.functions.comm_init_rank_config;
        // SAFETY: the pointers are to values that live during the call; NCCL copies the settings.
        let code = unsafe { init(&mut raw, ranks, id.0, own, &mut settings) };
        if raw.is_null() {
            library.result(FUNCTION, code, raw)?;
            let reason = "NCCL has made no communicator, and says nothing about it".to_owned();
            return Err(Error::Argument { function: FUNCTION, reason });
        }
        shared.adopt(raw);
        shared.turn(FUNCTION, config.deadline)?.finish(FUNCTION, |_| code)?;
        let comm = Self { shared, _watchdog: watchdog, rank, num_ranks };
        // From here on a failure aborts.
        comm.meet_demands()?;
        Ok(comm)
    }

    /// Whether NCCL has what is required of this communicator, as far as it tells.
    fn meet_demands(&self) -> Result<()> {
        const FUNCTION: &str = "ncclCommQueryProperties";
        let is_required = self.shared.config.nvls == Feature::Require;
        let Some(query) = self.library().functions.comm_query_properties.filter(|_| is_required)
        else {
            return Ok(());
        };
        let mut properties = sys::Properties::new();
        // SAFETY: the communicator is alive; the properties are, and have room for those of later
        // libraries.
        self.turn(FUNCTION)?.call(FUNCTION, |comm| unsafe { query(comm, &mut properties) })?;
        match properties.multimem {
            0 => Err(demand::no_nvls(self.library().version())),
            _ => Ok(()),
        }
    }

    /// The library it belongs to.
    pub fn library(&self) -> &Arc<Library> {
        &self.shared.library
    }

    /// Whether everything is sound so far: what has gone wrong on a stream since the last look. It
    /// waits for nothing.
    ///
    /// # Errors
    /// The communicator's first error; [`Error::Aborted`].
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// Enqueues what `body` lists, all of it together: sends and receives of one group may come in
    /// any order. May be called on a stream that is being captured.
    ///
    /// # Errors
    /// Those of `body` first; [`Error::Call`], [`Error::Timeout`], [`Error::Aborted`].
    pub fn group(&self, body: impl FnOnce(&Group<'_>) -> Result<()>) -> Result<()> {
        const FUNCTION: &str = "ncclGroupEnd";
        let turn = self.turn("ncclGroupStart")?;
        let group = Group::start(&turn, (self.rank, self.num_ranks))?;
        let listed = body(&group);
        let code = group.end();
        let ended = turn.finish(FUNCTION, |_| code);
        listed.and(ended)
    }

    /// Ends the communicator at once, without the other ranks: what waits on a stream is given up.
    /// Later calls answer [`Error::Aborted`]. Any thread may call it, while another waits; called
    /// again it does nothing.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Timeout`] where NCCL takes longer than [`Config::end_within`].
    pub fn abort(&self) -> Result<()> {
        self.shared.end(Wish::Abort, "ncclCommAbort")
    }

    /// Has `call` called before NCCL aborts, whatever the cause: what waits on a stream continues
    /// then, with nothing received. The first call that is given is the one.
    pub fn before_abort(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.shared.before_abort.set(BeforeAbort(Box::new(call)));
    }

    /// Ends the communicator with all ranks, when what they have enqueued is done.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Timeout`], [`Error::Aborted`]; the communicator is gone in any
    /// case.
    pub fn close(self) -> Result<()> {
        const FUNCTION: &str = "ncclCommFinalize";
        let finalize = self.library().functions.comm_finalize;
        // SAFETY: the communicator is alive.
        self.turn(FUNCTION)?.finish(FUNCTION, |comm| unsafe { finalize(comm) })?;
        self.shared.end(Wish::Destroy, "ncclCommDestroy")
    }

    fn turn(&self, function: &'static str) -> Result<Turn<'_>> {
        self.shared.turn(function, self.shared.config.deadline)
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
