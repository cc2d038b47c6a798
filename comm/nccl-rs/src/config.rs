//! How a communicator is set up.

use crate::error::{Error, Result};
use crate::library::Library;
use crate::sys;
use crate::version::{COLLNET_SINCE, NVLS_SINCE, Version};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Whether NCCL may use a feature of the network or of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Feature {
    /// Never in this communicator.
    Off,
    /// As NCCL and its environment decide.
    #[default]
    Auto,
    /// The communicator is only made where NCCL takes the demand and the feature is there, as far
    /// as that can be told: [`Config::check`] says how. Whether an operation then uses it, NCCL
    /// does not tell: `NCCL_DEBUG=INFO` and `NCCL_DEBUG_SUBSYS=TUNING` do.
    Require,
}

/// What a communicator is made with. Calls never block in NCCL: they are waited for here, until the
/// deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// How long one call may be in progress.
    pub deadline: Duration,
    /// How often the watchdog asks NCCL whether something went wrong.
    pub watch_every: Duration,
    /// How long aborting, destroying and dropping wait for NCCL; after that the communicator is
    /// left to itself.
    pub end_within: Duration,
    /// Sums inside the network's switches (CollNet, SHARP).
    pub collnet: Feature,
    /// Sums inside the node's NVSwitch (NVLS).
    pub nvls: Feature,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(120),
            watch_every: Duration::from_millis(50),
            end_within: Duration::from_secs(2),
            collnet: Feature::Auto,
            nvls: Feature::Auto,
        }
    }
}

impl Config {
    /// The settings as the library takes them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where it is too old for one that is not `Auto`.
    pub(crate) fn to_raw(self, library: &Library) -> Result<sys::Config> {
        const NVLS_ON: i32 = 0;
        const NVLS_OFF: i32 = i32::MAX;
        let mut raw = sys::Config::new(library.version().number());
        if let Some(on) =
            asked(self.collnet, library, COLLNET_SINCE, ["CollNet", "NCCL_COLLNET_ENABLE"])?
        {
            raw.collnet_enable = i32::from(on);
        }
        // Where it cannot be set, it is on by default, and the communicator is asked whether it is
        // there.
        let is_asked_later =
            self.nvls == Feature::Require && library.functions.comm_query_properties.is_some();
        if (library.version() >= NVLS_SINCE || !is_asked_later)
            && let Some(on) = asked(self.nvls, library, NVLS_SINCE, ["NVLS", "NCCL_NVLS_ENABLE"])?
        {
            raw.nvls_host_mode = if on { NVLS_ON } else { NVLS_OFF };
        }
        Ok(raw)
    }
}

/// On, off, or None for NCCL's own choice.
fn asked(
    feature: Feature,
    library: &Library,
    since: Version,
    [name, variable]: [&str; 2],
) -> Result<Option<bool>> {
    let on = match feature {
        Feature::Auto => return Ok(None),
        Feature::Off => false,
        Feature::Require => true,
    };
    if library.version() >= since {
        return Ok(Some(on));
    }
    Err(Error::Unsupported {
        what: format!("choosing {name} for one communicator"),
        found: library.version(),
        advice: format!(
            "NCCL {since} is needed; with this one set {variable}={} for the whole process, and \
             leave the setting at auto",
            u8::from(on)
        ),
    })
}
