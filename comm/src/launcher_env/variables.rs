//! The variables of every launcher, and how one of them is read.

use super::{Launcher, check_below, half_set};
use crate::error::{CommError, Result};
use std::collections::BTreeMap;

/// The names one launcher uses.
pub struct LauncherVariables {
    /// This process.
    pub rank: &'static str,
    /// How many there are.
    pub world_size: &'static str,
    /// This process among those of its machine, and how many its machine has; the first pair that is set counts.
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
        set("HEADLONG_RANK", "HEADLONG_WORLD_SIZE", &[("HEADLONG_LOCAL_RANK", "HEADLONG_LOCAL_SIZE")]),
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

/// The name of the job: the same on all ranks, another for another job; `None` where the launcher gives none.
pub fn job_name(variables: &Variables, launcher: Launcher) -> Option<String> {
    if let Some(job) = variables.text("HEADLONG_JOB") {
        return Some(job.into());
    }
    let names: &[&str] = match launcher {
        Launcher::Headlong => &[],
        Launcher::Torchrun => &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
        Launcher::OpenMpi => &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
        Launcher::Pmi => &["PMI_JOBID", "PALS_APID"],
        Launcher::Pmix => &["PMIX_NAMESPACE"],
        Launcher::Slurm => &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    };
    let parts: Vec<&str> = names.iter().filter_map(|name| variables.text(name)).collect();
    (!parts.is_empty()).then(|| parts.join("."))
}

/// An environment, with errors that name the variable.
pub struct Variables<'a> {
    map: &'a BTreeMap<String, String>,
}

impl<'a> Variables<'a> {
    /// Looks at `map`.
    pub fn new(map: &'a BTreeMap<String, String>) -> Self {
        Self { map }
    }

    /// A variable's text; an empty one counts as not set.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.map.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// A variable as a count.
    pub fn number(&self, name: &str) -> Result<Option<usize>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = text.parse::<u32>().map_err(|_| CommError::Setting {
            setting: name.into(),
            reason: format!("is `{text}`, expected a whole number from 0"),
        })?;
        Ok(Some(number as usize))
    }

    /// A variable as a port.
    pub fn port(&self, name: &str) -> Result<Option<u16>> {
        let Some(number) = self.number(name)? else { return Ok(None) };
        match u16::try_from(number) {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ => Err(CommError::Setting {
                setting: name.into(),
                reason: format!("is {number}, expected a port from 1 to 65535"),
            }),
        }
    }

    /// Local rank and local size: both or none, one below the other.
    pub fn pair(&self, rank_name: &str, size_name: &str) -> Result<Option<(usize, usize)>> {
        match (self.number(rank_name)?, self.number(size_name)?) {
            (Some(rank), Some(size)) => {
                check_below(rank_name, rank, size_name, size)?;
                Ok(Some((rank, size)))
            }
            // A launcher that gives only one of the two is taken as giving none; our own names are never half.
            (Some(_), None) if rank_name.starts_with("HEADLONG") => Err(half_set(rank_name, size_name)),
            (None, Some(_)) if rank_name.starts_with("HEADLONG") => Err(half_set(size_name, rank_name)),
            _ => Ok(None),
        }
    }

    /// Without a launcher, a rank or a world size must not stand alone: somebody meant a job of several ranks.
    pub fn refuse_orphans(&self) -> Result<()> {
        if self.text("PMIX_RANK").is_some() && self.text("PMIX_NAMESPACE").is_some() {
            let reason =
                "is not set, and PMIX_RANK alone does not say how many ranks there are: set it on all ranks"
                    .into();
            return Err(CommError::Setting { setting: "HEADLONG_WORLD_SIZE".into(), reason });
        }
        match self.number("HEADLONG_WORLD_SIZE")? {
            Some(size) if size > 1 => Err(half_set("HEADLONG_WORLD_SIZE", "HEADLONG_RANK")),
            _ => Ok(()),
        }
    }
}
