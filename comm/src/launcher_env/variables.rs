//! The variables of every launcher, and how one of them is read.

use super::{Environment, Launcher, check_below, half_set};
use crate::error::{CommError, Result};
use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;

pub struct LauncherVariables {
    pub rank: &'static str,
    pub world_size: &'static str,
    /// This process among those of its machine, and how many its machine has; the first pair that
    /// is set counts.
    pub local: &'static [(&'static str, &'static str)],
}

const fn set(
    rank: &'static str,
    world_size: &'static str,
    local: &'static [(&'static str, &'static str)],
) -> LauncherVariables {
    LauncherVariables { rank, world_size, local }
}

/// All sets but Slurm's, which needs more care; the first complete one wins.
pub const SETS: &[(Launcher, LauncherVariables)] = &[
    (
        Launcher::Headlong,
        set(
            "HEADLONG_RANK",
            "HEADLONG_WORLD_SIZE",
            &[("HEADLONG_LOCAL_RANK", "HEADLONG_LOCAL_SIZE")],
        ),
    ),
    (Launcher::Torchrun, set("RANK", "WORLD_SIZE", &[("LOCAL_RANK", "LOCAL_WORLD_SIZE")])),
    (
        Launcher::OpenMpi,
        set(
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            &[("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")],
        ),
    ),
    (
        Launcher::Pmi,
        set(
            "PMI_RANK",
            "PMI_SIZE",
            &[("MPI_LOCALRANKID", "MPI_LOCALNRANKS"), ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")],
        ),
    ),
    (Launcher::Pmix, set("PMIX_RANK", "HEADLONG_WORLD_SIZE", &[])),
];

/// The name of the job: the same on all ranks, another for another job; `None` where the launcher
/// gives none.
pub fn job_name(variables: &Variables, launcher: Launcher) -> Result<Option<String>> {
    if let Some(job) = variables.text("HEADLONG_JOB")? {
        return Ok(Some(job.into()));
    }
    let names: &[&str] = match launcher {
        Launcher::Headlong => &[],
        // TORCHELASTIC_RESTART_COUNT is what one agent has counted: that of a machine which comes
        // later begins with 0 again.
        Launcher::Torchrun => &["TORCHELASTIC_RUN_ID"],
        Launcher::OpenMpi => &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
        Launcher::Pmi => &["PMI_JOBID", "PALS_APID"],
        Launcher::Pmix => &["PMIX_NAMESPACE"],
        Launcher::Slurm => &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    };
    let parts = names.iter().filter_map(|name| variables.text(name).transpose());
    let parts: Vec<&str> = parts.collect::<Result<_>>()?;
    Ok((!parts.is_empty()).then(|| parts.join(".")))
}

/// An environment, with errors that name the variable. A variable that is set but cannot be used is
/// an error, never "not set": its user meant something by it.
pub struct Variables<'a> {
    map: &'a Environment,
}

impl<'a> Variables<'a> {
    pub fn new(map: &'a Environment) -> Self {
        Self { map }
    }

    /// A variable's bytes.
    pub fn bytes(&self, name: &str) -> Result<Option<&'a OsStr>> {
        match self.map.get(name) {
            Some(value) if value.as_bytes().trim_ascii().is_empty() => {
                Err(refuse(name, "is set, but empty: give it a value, or unset it"))
            }
            value => Ok(value.map(|value| value.as_os_str())),
        }
    }

    /// A variable's text.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.bytes(name)? else { return Ok(None) };
        match value.to_str() {
            Some(text) => Ok(Some(text.trim())),
            None => Err(refuse(name, format!("is {value:?}, expected text in UTF-8"))),
        }
    }

    pub fn number(&self, name: &str) -> Result<Option<usize>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let number = text.parse::<u32>().map_err(|_| {
            refuse(name, format!("is `{text}`, expected a whole number from 0 to {}", u32::MAX))
        })?;
        Ok(Some(number as usize))
    }

    pub fn port(&self, name: &str) -> Result<Option<u16>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ => Err(refuse(name, format!("is `{text}`, expected a port from 1 to 65535"))),
        }
    }

    /// A variable as a host: a name or an address, with or without brackets.
    pub fn host(&self, name: &str) -> Result<Option<String>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let host = text.trim_matches(['[', ']']);
        let is_host =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
        let is_every_address = host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
        let reason = match host.split_once(':') {
            _ if host.is_empty() || !host.chars().all(is_host) => {
                format!("is {text:?}, expected the name or address of a machine")
            }
            _ if is_every_address => format!(
                "is {text:?}, which is every address of a machine: expected the one at which the \
                 others reach rank 0"
            ),
            // An address of IPv6 has two at least.
            Some((_, port)) if !port.contains(':') => format!(
                "is {text:?}, expected a name or an address alone: a port is for {}",
                name.replace("ADDR", "PORT")
            ),
            _ => return Ok(Some(host.to_owned())),
        };
        Err(refuse(name, reason))
    }

    /// Local rank and local size: both or none, one below the other.
    pub fn pair(&self, rank_name: &str, size_name: &str) -> Result<Option<(usize, usize)>> {
        match (self.number(rank_name)?, self.number(size_name)?) {
            (Some(rank), Some(size)) => {
                check_below(rank_name, rank, size_name, size)?;
                Ok(Some((rank, size)))
            }
            // A launcher that gives only one of the two is taken as giving none; our own names are
            // never half.
            (Some(_), None) if rank_name.starts_with("HEADLONG") => {
                Err(half_set(rank_name, size_name))
            }
            (None, Some(_)) if rank_name.starts_with("HEADLONG") => {
                Err(half_set(size_name, rank_name))
            }
            _ => Ok(None),
        }
    }

    /// Without a launcher, a rank or a world size must not be set alone: a job was meant of
    /// several ranks.
    pub fn refuse_orphans(&self) -> Result<()> {
        if self.text("PMIX_RANK")?.is_some() && self.text("PMIX_NAMESPACE")?.is_some() {
            let reason = "is not set, and PMIX_RANK does not say how many ranks there are: set it \
                          on all ranks";
            return Err(refuse("HEADLONG_WORLD_SIZE", reason));
        }
        match self.number("HEADLONG_WORLD_SIZE")? {
            Some(size) if size > 1 => Err(half_set("HEADLONG_WORLD_SIZE", "HEADLONG_RANK")),
            _ => Ok(()),
        }
    }
}

pub fn refuse(name: &str, reason: impl Into<String>) -> CommError {
    CommError::Setting { setting: name.into(), reason: reason.into() }
}
