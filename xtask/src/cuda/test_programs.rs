//! The compiled test programs, for running them otherwise than by cargo.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cargo_metadata::Message;

use crate::process::cargo;

pub struct TestProgram {
    pub package: String,
    pub name: String,
    pub path: PathBuf,
    /// The folder that its tests expect to run in: that of its package.
    pub folder: PathBuf,
}

/// Compiles the tests and says where those of `packages` are: unit tests first, then files of tests
/// in the order of names.
///
/// The tests of the whole workspace are compiled: some packages alone would have dependencies with
/// other features, and all would be built again.
pub fn build(root: &Path, packages: &[&str]) -> Result<Vec<TestProgram>> {
    let arguments = [
        "test",
        "--release",
        "--workspace",
        "--no-run",
        "--message-format",
        "json-render-diagnostics",
    ];
    let mut command = cargo(&arguments, root);
    command.stderr(std::process::Stdio::inherit());
    let output = command.output().context("starting cargo")?;
    ensure!(output.status.success(), "the tests do not compile");
    let mut programs = Vec::new();
    for message in Message::parse_stream(output.stdout.as_slice()) {
        let Message::CompilerArtifact(artifact) = message.context("cargo's messages")? else {
            continue;
        };
        let Some(path) = artifact.executable.filter(|_| artifact.profile.test) else { continue };
        if !packages.iter().any(|package| is_of(&artifact.package_id.repr, package)) {
            continue;
        }
        let folder = artifact.manifest_path.parent().context("a manifest lies in a folder")?;
        let is_unit = !artifact.target.is_test();
        let package = package_of(folder.as_std_path());
        let name = artifact.target.name;
        let folder = folder.as_std_path().to_path_buf();
        programs.push((
            package,
            !is_unit,
            TestProgram { package: String::new(), name, path: path.into(), folder },
        ));
    }
    programs.sort_by(|a, b| (&a.0, a.1, &a.2.name).cmp(&(&b.0, b.1, &b.2.name)));
    let named = |(package, _, program)| TestProgram { package, ..program };
    Ok(programs.into_iter().map(named).collect())
}

/// `headlong-comm` lies in `comm/`: the folder's name tells packages apart.
fn package_of(folder: &Path) -> String {
    folder.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

/// Whether cargo's name of a package, `path+file:///…/comm#headlong-comm@0.1.0`, or `…/xtask#0.1.0`
/// where the folder has its name, is that of `package`.
fn is_of(id: &str, package: &str) -> bool {
    let (path, name) = id.rsplit_once('#').unwrap_or(("", id));
    match name.split_once('@') {
        Some((name, _version)) => name == package,
        None => path.rsplit('/').next() == Some(package),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_told_by_cargos_names() {
        assert!(is_of("path+file:///x/comm#headlong-comm@0.1.0", "headlong-comm"));
        assert!(is_of("path+file:///x/xtask#0.1.0", "xtask"));
        assert!(!is_of("path+file:///x/comm#headlong-comm@0.1.0", "headlong"));
        assert!(!is_of("path+file:///x/trainer#headlong@0.1.0", "trainer"));
    }
}
