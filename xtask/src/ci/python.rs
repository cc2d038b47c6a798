//! The Python package: its wheel is built, installed into an empty environment and tested there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Outcome, Workshop};
use crate::process::{self, At as _};

/// What the tests import, and what builds the wheel.
const MODULES: &str = "maturin, pandas, polars, pyarrow, sklearn";
/// A wheel is small enough to be waited for.
const MOST_BYTES: u64 = 20_000_000;

pub fn python(workshop: &Workshop) -> Result<Outcome> {
    let Some(python) = python_with_modules(&workshop.root) else {
        return Ok(Outcome::Skipped(format!(
            "the wheel needs a Python with {MODULES}: .ci/run installs them"
        )));
    };
    let scratch = workshop.scratch().join("python");
    process::fresh_folder(&scratch)?;
    let package = workshop.root.join("python");
    // The tests lie next to the package, and take the one that is installed.
    let tests = package.join("tests");
    let pip = python.clone();
    let run = |program: &str, arguments: &[&str]| {
        process::show(process::command(program, arguments, &tests))
    };
    let (wheels, target) = (shown(&scratch.join("wheels")), shown(&workshop.target()));
    let manifest = shown(&package.join("Cargo.toml"));
    let build = ["-m", "maturin", "build", "--release", "--manifest-path", &manifest];
    let build = [&build[..], &["--out", &wheels, "--target-dir", &target]].concat();
    if !run(&python, &build)? {
        return Ok(Outcome::Failed("the wheel is not built".to_owned()));
    }
    let wheel = only_file(Path::new(&wheels))?;
    let bytes = fs::metadata(&wheel).at(&wheel)?.len();
    if bytes > MOST_BYTES {
        return Ok(Outcome::Failed(format!("the wheel has {bytes} bytes, more than {MOST_BYTES}")));
    }
    let test = |python: &str, what: &str| run(python, &["-B", "-m", "unittest", "-q", what]);
    let install = |environment: &Path, python: &str, more: &[&str]| -> Result<Option<String>> {
        let (folder, own) = (shown(environment), shown(&environment.join("bin/python")));
        let wheel = shown(&wheel);
        let by_pip = ["-m", "pip", "--python", &own, "install", "-q", "--no-index", &wheel];
        let made = [&["-m", "venv", "--without-pip", &folder], more].concat();
        Ok((run(python, &made)? && run(&pip, &by_pip)?).then_some(own))
    };
    let environment = scratch.join("environment");
    let Some(own) = install(&environment, &python, &[])? else {
        return Ok(Outcome::Failed("the wheel cannot be installed".to_owned()));
    };
    // First with nothing but the standard library, then with what other packages bring.
    let passed = test(&own, "bare")? && {
        borrow_packages(&python, &environment, workshop)?;
        test(&own, "frames")? && test(&own, "classifier")? && test(&own, "malformed")?
    };
    if !passed {
        return Ok(Outcome::Failed("its tests fail".to_owned()));
    }
    // PyTorch is Debian's, with its own numpy.
    let Some(python) = python_with_torch() else {
        return Ok(Outcome::Skipped(
            "the modules need a Python with torch: .ci/run installs it".to_owned(),
        ));
    };
    let own = install(&scratch.join("modules"), &python, &["--system-site-packages"])?;
    let passed = own.map(|own| test(&own, "modules")).transpose()?.unwrap_or(false);
    match passed {
        true => Ok(Outcome::Passed(format!("the wheel has {:.1} MB", bytes as f64 / 1e6))),
        false => Ok(Outcome::Failed("the tests of modules of PyTorch fail".to_owned())),
    }
}

/// The system's Python, or the one on the path, whichever can import torch.
fn python_with_torch() -> Option<String> {
    let programs = ["/usr/bin/python3", "python3"].map(str::to_owned);
    programs.into_iter().find(|python| process::answers(python, &["-c", "import venv, torch"]))
}

/// The project's own Python or the system's, whichever can import [`MODULES`].
fn python_with_modules(root: &Path) -> Option<String> {
    let programs = [shown(&root.join(".venv/bin/python")), "python3".to_owned()];
    let import = format!("import pip, venv, {MODULES}");
    programs.into_iter().find(|python| process::answers(python, &["-c", &import]))
}

/// Lets an environment import what is installed for `python`.
fn borrow_packages(python: &str, environment: &Path, workshop: &Workshop) -> Result<()> {
    let place = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let of = |program: &str| -> Result<PathBuf> {
        let command = process::command(program, &["-c", place], &workshop.root);
        let finished = process::read(command, |_| false)?;
        let last = finished.lines.last().context("the folder of its packages")?;
        Ok(PathBuf::from(last))
    };
    let file = of(&shown(&environment.join("bin/python")))?.join("borrowed.pth");
    fs::write(&file, shown(&of(python)?)).at(&file)
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let mut files = fs::read_dir(folder).at(folder)?;
    Ok(files.next().context("no wheel was written")??.path())
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
