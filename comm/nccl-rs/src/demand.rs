//! What [`Feature::Require`] demands, looked for before ranks come together: NCCL itself falls back
//! in silence.
//!
//! | feature | what can be told before | what a communicator tells |
//! |---|---|---|
//! | CollNet | the switch in the environment; a network plugin with a part for collectives | nothing |
//! | NVLS | the switch in the environment | whether its devices have it (NCCL 2.29 or newer) |
//!
//! Source: NCCL's user guide, environment variables, and `ncclCommQueryProperties` of `nccl.h`.

use crate::config::{Config, Feature};
use crate::error::{Error, Result};
use crate::library::{Library, open_shared};
use crate::version::Version;
use std::ffi::{CString, c_void};
use std::path::PathBuf;

/// The network plugin where the environment names none.
const PLUGIN: &str = "libnccl-net.so";
/// The versions of the plugin's part for collectives that libraries look for, newest first; some
/// above today's.
const COLLECTIVES: std::ops::RangeInclusive<u32> = 5..=20;
const COLLNET: &str = "CollNet";
const NVLS: &str = "NVLS";

type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

fn of_process(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

impl Config {
    /// Whether what is required can be there, as far as one rank can tell alone: the library's age,
    /// the switches in the environment, the plugin for CollNet. To be asked on all ranks before
    /// they come together in [`Comm::init`](crate::Comm::init), where those that can would wait for
    /// those that cannot.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Unavailable`] with what is missing.
    pub fn check(&self, library: &Library) -> Result<()> {
        self.to_raw(library)?;
        self.check_with(&of_process)
    }

    fn check_with(&self, environment: Environment<'_>) -> Result<()> {
        if self.nvls == Feature::Require {
            is_not_switched_off(NVLS, "NCCL_NVLS_ENABLE", environment)?;
        }
        if self.collnet == Feature::Require {
            is_not_switched_off(COLLNET, "NCCL_COLLNET_ENABLE", environment)?;
            has_plugin(environment).map_err(|reason| Error::Unavailable {
                what: COLLNET,
                reason,
                advice: "install the SHARP plugin (HPC-X, or nccl-rdma-sharp-plugins), put its \
                         folder on LD_LIBRARY_PATH, or name it in NCCL_NET_PLUGIN; leave the \
                         setting at auto otherwise",
            })?;
        }
        Ok(())
    }
}

pub(crate) fn no_nvls(version: Version) -> Error {
    Error::Unavailable {
        what: NVLS,
        reason: format!(
            "NCCL {version} says that the devices of this communicator do not have it \
             (multimemSupport is 0)"
        ),
        advice: "it needs at least three GPUs of the Hopper generation or newer behind one \
                 NVSwitch, driver and fabric manager of one version, and NCCL_NVLS_ENABLE not 0; \
                 leave the setting at auto otherwise",
    }
}

/// The environment wins over what a communicator asks for.
fn is_not_switched_off(
    what: &'static str,
    variable: &str,
    environment: Environment<'_>,
) -> Result<()> {
    match environment(variable).as_deref() {
        Some("0") => Err(Error::Unavailable {
            what,
            reason: format!("{variable}=0 switches it off"),
            advice: "unset the variable, or leave the setting at auto",
        }),
        _ => Ok(()),
    }
}

/// Whether NCCL would find a network plugin with a part for collectives, which CollNet (SHARP)
/// needs. Opens what is there.
///
/// # Errors
/// What was looked at, and what is wrong with it.
pub fn collnet_plugin() -> Result<(), String> {
    has_plugin(&of_process)
}

fn has_plugin(environment: Environment<'_>) -> Result<(), String> {
    let named = environment("NCCL_NET_PLUGIN").unwrap_or_default();
    if named == "none" {
        return Err("NCCL_NET_PLUGIN=none keeps NCCL from its network plugin".to_owned());
    }
    let mut looked = Vec::new();
    for path in named.split(',').flat_map(files_of) {
        match open_shared(&path) {
            Ok(handle) if has_collectives(handle) => return Ok(()),
            Ok(_) => looked.push(format!(
                "{} has no part for collectives (ncclCollNetPlugin)",
                path.display()
            )),
            Err(reason) => looked.push(format!("{} ({reason})", path.display())),
        }
    }
    Err(format!("no network plugin can do it; looked at {}", looked.join("; ")))
}

fn files_of(name: &str) -> Vec<PathBuf> {
    match name {
        "" => vec![PLUGIN.into()],
        name if name.contains('/') || name.ends_with(".so") => vec![name.into()],
        name => vec![format!("libnccl-net-{name}.so").into(), name.into()],
    }
}

/// Note: the plugin stays open, as NCCL would keep it.
fn has_collectives(handle: *mut c_void) -> bool {
    COLLECTIVES.into_iter().any(|version| {
        let name =
            CString::new(format!("ncclCollNetPlugin_v{version}")).expect("a name without zeros");
        // SAFETY: the handle is open and the name ends in a zero.
        !unsafe { libc::dlsym(handle, name.as_ptr()) }.is_null()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const REQUIRED: Config = Config {
        deadline: std::time::Duration::ZERO,
        watch_every: std::time::Duration::ZERO,
        end_within: std::time::Duration::ZERO,
        collnet: Feature::Require,
        nvls: Feature::Require,
    };

    /// What is said with these variables set.
    fn said(variables: &[(&str, &str)]) -> Result<(), String> {
        let environment = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        REQUIRED.check_with(&environment).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_missing_is_named() {
        let refused = |variables, part: &str| {
            let text = said(variables).expect_err("it is not there");
            assert!(text.contains(part), "{text}");
        };
        refused(
            &[("NCCL_NVLS_ENABLE", "0")],
            "NVLS is required, but NCCL_NVLS_ENABLE=0 switches it off",
        );
        refused(&[("NCCL_COLLNET_ENABLE", "0")], "CollNet is required, but NCCL_COLLNET_ENABLE=0");
        refused(&[("NCCL_NET_PLUGIN", "none")], "NCCL_NET_PLUGIN=none keeps NCCL");
        refused(&[("NCCL_NET_PLUGIN", "/nowhere/plugin.so")], "looked at /nowhere/plugin.so (");
        refused(&[("NCCL_NET_PLUGIN", "absent")], "looked at libnccl-net-absent.so (");
        refused(&[("NCCL_NET_PLUGIN", "libc.so.6")], "no network plugin can do it");
        let nothing = Config { collnet: Feature::Off, nvls: Feature::Auto, ..REQUIRED };
        assert_eq!(nothing.check_with(&|_| Some("0".to_owned())), Ok(()), "nothing is required");
    }

    #[test]
    fn a_plugin_counts_when_it_has_a_part_for_collectives() {
        let folder = tempfile::tempdir().expect("a folder");
        let plugin = |name: &str, symbol: &str| {
            let (source, library) = (folder.path().join("plugin.c"), folder.path().join(name));
            std::fs::write(&source, format!("int {symbol};\n"))
                .expect("a temporary folder can be written");
            let built = Command::new("cc")
                .args(["-shared", "-fPIC", "-o"])
                .args([&library, &source])
                .status();
            let is_built = built.is_ok_and(|status| status.success());
            is_built.then(|| library.to_str().expect("a path of text").to_owned())
        };
        let plugins =
            (plugin("one.so", "ncclNetPlugin_v10"), plugin("two.so", "ncclCollNetPlugin_v8"));
        let (Some(only_net), Some(both)) = plugins else {
            return println!("skipped, because cc builds no shared library");
        };
        let text = said(&[("NCCL_NET_PLUGIN", &only_net)]).expect_err("it has no collectives");
        assert!(text.contains("one.so has no part for collectives"), "{text}");
        assert_eq!(said(&[("NCCL_NET_PLUGIN", &both)]), Ok(()));
        assert_eq!(
            said(&[("NCCL_NET_PLUGIN", &format!("{only_net},{both}"))]),
            Ok(()),
            "a list of them"
        );
    }
}
