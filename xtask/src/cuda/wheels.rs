//! NVIDIA's libraries and tools from their wheels, unpacked below `target/`: none of them needs a
//! GPU to be opened.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::Had;
use crate::process::{self, At as _};

/// Unpacks the members whose names begin with one of the given words: a wheel is a zip archive,
/// which Python can read everywhere, and some hold hundreds of megabytes that are not needed.
const UNPACK: &str = "import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
names = [n for n in wheel.namelist() if n.startswith(tuple(sys.argv[3:]))]
wheel.extractall(sys.argv[2], names)";

/// A wheel, and what is taken from it.
pub struct Wheel {
    /// Its name in reasons of skips, by which `REQUIRE` knows it, and that of its folder.
    pub name: &'static str,
    /// The package and its version, as pip takes them.
    pub package: &'static str,
    /// The file that is wanted: where it is, nothing is fetched.
    pub file: &'static str,
    /// With what the names of members begin that are unpacked.
    pub members: &'static [&'static str],
}

impl Wheel {
    /// Where the wanted file is, or will be.
    pub fn path(&self, target: &Path) -> PathBuf {
        target.join(self.name).join(self.file)
    }

    /// The wanted file, fetched where it is not there yet.
    pub fn fetch(&self, root: &Path, target: &Path) -> Result<Had> {
        let (file, home) = (self.path(target), target.join(self.name));
        if file.is_file() {
            return Ok(Had::Here(file));
        }
        if !process::answers("python3", &["-m", "pip", "--version"]) {
            let name = self.name;
            return Ok(Had::Not(format!("pip, which fetches the {name} wheel, is not installed")));
        }
        let downloads = home.join("download");
        process::fresh_folder(&downloads)?;
        let mut fetch = process::command("python3", &["-m", "pip", "download", "--quiet"], root);
        fetch.args(["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]);
        fetch.arg("--dest").arg(&downloads).arg(self.package);
        if !process::show(fetch)? {
            let (name, package) = (self.name, self.package);
            return Ok(Had::Not(format!("the {name} wheel ({package}) cannot be fetched")));
        }
        for entry in fs::read_dir(&downloads)?.flatten() {
            self.unpack(root, &entry.path(), &home)?;
        }
        fs::remove_dir_all(&downloads).at(&downloads)?;
        ensure!(file.is_file(), "the wheel {} has no {}", self.package, self.file);
        Ok(Had::Here(file))
    }

    fn unpack(&self, root: &Path, wheel: &Path, home: &Path) -> Result<()> {
        let mut unpack = process::command("python3", &["-c", UNPACK], root);
        unpack.arg(wheel).arg(home).args(self.members);
        // Not by `show`, which prints the program.
        let unpacked = unpack.status().context("starting python3")?;
        if !unpacked.success() {
            bail!("{} cannot be unpacked", wheel.display());
        }
        Ok(())
    }
}
