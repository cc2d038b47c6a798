//! The step `own-table`: what `docs/custom-tables.md` says is done, to the letter, in a folder
//! outside of the workspace.
//!
//! The page's blocks are the test. A block whose first line is a comment with a file's name is that
//! file; a block of `sh` is run. Lines of a run that name the digest of its weights must agree
//! where the page says that they do.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::{Outcome, Workshop, pages};
use crate::process::{self, At as _};

const PAGE: &str = "docs/custom-tables.md";

/// Where the page has the clone, seen from the folder of the crate.
const CLONE: &str = "../headlong";

/// Runs of a block of `sh` whose weights are equal say so with this remark.
const EQUAL: &str = "# the same weights";

pub fn own_table(workshop: &Workshop) -> Result<Outcome> {
    let page = workshop.root.join(PAGE);
    let page = fs::read_to_string(&page).at(&page)?;
    let (files, commands) = blocks(&page);
    let folder = folder(&workshop.root);
    process::fresh_folder(&folder)?;
    let root = workshop.root.display().to_string();
    for (name, text) in files {
        let file = folder.join(name);
        fs::create_dir_all(file.parent().unwrap_or(&folder)).with_context(|| name.to_owned())?;
        fs::write(&file, text.replace(CLONE, &root)).at(&file)?;
    }
    // What the workspace has built of other crates need not be built again.
    std::os::unix::fs::symlink(workshop.target(), folder.join("target"))
        .context("the folder of what is built")?;
    reuse_what_is_built(&workshop.root, &folder)?;
    let (mut ran, mut digests) = (0, Vec::new());
    for line in commands {
        let line = line.replace(CLONE, &root);
        println!("$ {line}");
        let mut command = process::command("sh", &["-ec", &line], &folder);
        command.env("CARGO_NET_OFFLINE", "true");
        // The same release profile as the workspace, so that the dependencies built there are
        // reused.
        command
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "false");
        let finished = process::read(command, |_| true)?;
        if !finished.success {
            return Ok(Outcome::Failed(format!("`{line}` fails")));
        }
        ran += 1;
        if line.contains(EQUAL) {
            digests.push((digest(&finished.lines).with_context(|| line.clone())?, line));
        }
    }
    ensure!(digests.len() > 1, "{PAGE} says of no two runs that their weights are equal");
    let first = digests[0].0.clone();
    match digests.iter().find(|(digest, _)| *digest != first) {
        Some((_, line)) => {
            Ok(Outcome::Failed(format!("`{line}` has other weights than `{}`", digests[0].1)))
        }
        None => {
            Ok(Outcome::Passed(format!("{ran} commands, {} runs of equal weights", digests.len())))
        }
    }
}

/// Gives the crates that both need the settings and features of the workspace's build: those of
/// others are then not built again. Those of Headlong are, as a path outside of the workspace makes
/// other crates of them; for what the page does they need not be optimised.
fn reuse_what_is_built(root: &Path, folder: &Path) -> Result<()> {
    let settings = root.join(".cargo/config.toml");
    let config = folder.join(".cargo/config.toml");
    fs::create_dir_all(folder.join(".cargo")).at(&config)?;
    let settings = fs::read_to_string(&settings).at(&settings)?;
    let of_others = settings.lines().filter(|line| !line.starts_with("headlong-"));
    let packages = "[profile.release.package]";
    let quick: String =
        ["comm", "device", "embedding", "metrics", "mlp", "planner", "reader", "verbs"]
            .iter()
            .map(|name| format!("\nheadlong-{name} = {{ opt-level = 1 }}"))
            .collect();
    let settings = of_others.fold(String::new(), |text, line| text + line + "\n");
    ensure!(settings.contains(packages), ".cargo/config.toml has no {packages}");
    let settings = settings.replace(packages, &(packages.to_owned() + &quick));
    fs::write(&config, settings).at(&config)?;
    let fuzz = root.join("fuzz/Cargo.toml");
    let fuzz = fs::read_to_string(&fuzz).at(&fuzz)?;
    let features = fuzz.find("\n# ---- Features").context("fuzz/Cargo.toml: shared features")?;
    let manifest = folder.join("Cargo.toml");
    let own = fs::read_to_string(&manifest).at(&manifest)?;
    fs::write(&manifest, own + &fuzz[features..]).at(&manifest)
}

/// A folder of its own for each checkout, always the same one: what was built for it is found
/// again.
fn folder(root: &Path) -> PathBuf {
    let name: String =
        root.to_string_lossy().chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
    std::env::temp_dir().join(format!("own-table{name}"))
}

fn digest(lines: &[String]) -> Result<String> {
    let found = lines.iter().rev().find_map(|line| line.strip_prefix("weights "));
    match found {
        Some(digest) => Ok(digest.trim().to_owned()),
        None => bail!("no digest of weights was printed"),
    }
}

/// The files of the crate, with their names, and the commands, in the order of the page; other
/// blocks are remarks.
fn blocks(page: &str) -> (Vec<(&str, String)>, Vec<&str>) {
    let (mut files, mut commands) = (Vec::new(), Vec::new());
    for block in pages::blocks(page) {
        match block.file() {
            Some(file) => files.push(file),
            None if block.language == "sh" => commands.extend(block.lines),
            None => {}
        }
    }
    (files, commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_files_commands_or_remarks() {
        let page = "a\n\
                    ```rust\n\
                    // src/lib.rs\n\
                    \n\
                    fn a() {}\n\
                    ```\n\
                    ```toml\n\
                    [remark]\n\
                    ```\n\
                    ```sh\n\
                    cargo test\n\
                    ```\n\
                    ```rust\n\
                    // A remark.\n\
                    ```\n";
        assert_eq!(
            blocks(page),
            (vec![("src/lib.rs", "fn a() {}\n".to_owned())], vec!["cargo test"])
        );
    }

    /// The page's table and its program by the library are the example `03_custom_table`: both are
    /// tested.
    #[test]
    fn the_page_has_the_files_of_the_example() {
        let root = crate::workspace_root();
        let page = fs::read_to_string(root.join(PAGE)).unwrap();
        let (files, _) = blocks(&page);
        let of_page = |name: &str| {
            let found = files.iter().find(|(file, _)| *file == name);
            found.unwrap_or_else(|| panic!("no block for {name}")).1.clone()
        };
        let of_example =
            |name: &str| fs::read_to_string(root.join("trainer/examples").join(name)).unwrap();
        assert_eq!(of_page("src/lib.rs"), of_example("03_custom_table/quotient_remainder.rs"));
        let in_crate = |text: String, path: &str| {
            let module = format!("{path}mod quotient_remainder;\n\n");
            let text =
                text.replace(&module, "").replace("use quotient_remainder::", "use own_table::");
            text.lines()
                .skip_while(|line| line.starts_with("//!") || line.is_empty())
                .fold(String::new(), |text, line| text + line + "\n")
        };
        let path = "#[path = \"03_custom_table/quotient_remainder.rs\"]\n";
        assert_eq!(of_page("src/main.rs"), in_crate(of_example("05_own_program.rs"), path));
    }
}
