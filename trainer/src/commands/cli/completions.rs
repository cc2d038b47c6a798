//! `headlong completions SHELL`: what a shell offers. The values come from what the help says
//! anyway: a flag of `auto|cpu|cuda` offers these words, one of `FILE` files, one of `DIR` folders,
//! one of `N` nothing.

use super::Cli;
use crate::config::keys::KEYS;
use crate::config::preset::PRESETS;
use crate::config::{DENSE_NAMES, SPARSE_NAMES};
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, CommandFactory as _, ValueHint};
use clap_complete::Shell;

/// The script for `shell`, of the program `name`.
pub fn script(shell: Shell, name: &str) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), name, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Bash { script + &without_blank(name) } else { script }
}

/// A key ends in `=`, and its value follows at once: bash must put no blank between them.
fn without_blank(name: &str) -> String {
    let function = name.replace('-', "__");
    format!(
        r#"
_{function}_keys() {{
    _{function} "$@"
    [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace
    return 0
}}
complete -F _{function}_keys -o bashdefault {name}
"#
    )
}

/// The command line with what its values can be, and with commands after `launch`, which to the
/// parser are just words.
fn command() -> Command {
    let command = with_values(Cli::command());
    let launched: Vec<Command> =
        command.get_subcommands().filter(|other| other.get_name() != "launch").cloned().collect();
    command.mut_subcommand("launch", |launch| {
        let flags = launch.get_arguments().filter(|argument| !argument.is_positional()).cloned();
        let about = launch.get_about().cloned().unwrap_or_default();
        Command::new("launch").about(about).args(flags.collect::<Vec<_>>()).subcommands(launched)
    })
}

fn with_values(command: Command) -> Command {
    command.mut_args(with_value).mut_subcommands(with_values)
}

fn with_value(argument: Arg) -> Arg {
    if !argument.get_action().takes_values() || !argument.get_possible_values().is_empty() {
        return argument;
    }
    let known: Vec<String> = match argument.get_id().as_str() {
        "preset" => PRESETS.iter().map(|preset| preset.name.to_owned()).collect(),
        "optimizer" => {
            let dense = DENSE_NAMES.iter().filter(|name| !SPARSE_NAMES.contains(name));
            SPARSE_NAMES.iter().chain(dense).map(|&name| name.to_owned()).collect()
        }
        "set" => KEYS.iter().map(|key| format!("{}=", key.path)).collect(),
        _ => words_of(&argument),
    };
    if !known.is_empty() {
        // The parser holds words that live as long as the program, which ends when the script is
        // printed.
        let known = known.into_iter().map(|word| &*word.leak());
        return argument
            .value_parser(PossibleValuesParser::new(known.collect::<Vec<&'static str>>()));
    }
    let hint = match name_of(&argument) {
        name if name.contains("DIR") => ValueHint::DirPath,
        name if name.contains("FILE") => ValueHint::FilePath,
        _ if argument.get_value_hint() != ValueHint::Unknown => return argument,
        _ => ValueHint::Other,
    };
    argument.value_hint(hint)
}

fn name_of(argument: &Arg) -> String {
    argument.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect()
}

/// The words of a name such as `off|auto|rows=N` that stand for themselves; none where files can be
/// named, too.
fn words_of(argument: &Arg) -> Vec<String> {
    let name = name_of(argument);
    if name.contains("FILE") {
        return Vec::new();
    }
    let is_word = |word: &&str| {
        word.starts_with(|letter: char| letter.is_ascii_lowercase())
            && word.chars().all(|letter| {
                letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_'
            })
    };
    name.split('|').filter(is_word).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(path: &[&str], id: &str) -> Arg {
        let found = path.iter().fold(command(), |command, name| {
            command.find_subcommand(name).unwrap_or_else(|| panic!("no command {name}")).clone()
        });
        let found = found.get_arguments().find(|argument| argument.get_id() == id).cloned();
        found.unwrap_or_else(|| panic!("{path:?} has no {id}"))
    }

    fn values(path: &[&str], id: &str) -> Vec<String> {
        argument(path, id)
            .get_possible_values()
            .iter()
            .map(|value| value.get_name().to_owned())
            .collect()
    }

    #[test]
    fn flags_offer_their_words() {
        assert!(values(&["train"], "preset").contains(&"criteo-terabyte-dcnv2".to_owned()));
        assert!(values(&["launch", "train"], "optimizer").contains(&"lazy_adam".to_owned()));
        assert!(values(&["train"], "set").contains(&"train.batch_size=".to_owned()));
        assert_eq!(values(&["train"], "precision"), ["f32", "tf32", "bf16", "f16"]);
        assert_eq!(values(&["train"], "hybrid"), ["off", "auto"]);
        assert_eq!(values(&["train"], "batch_size"), [""; 0]);
    }

    #[test]
    fn files_are_offered_where_files_are_wanted() {
        for (path, id, hint) in [
            (&["train"][..], "data", ValueHint::FilePath),
            (&["train"], "log_json", ValueHint::FilePath),
            (&["train"], "checkpoint_dir", ValueHint::DirPath),
            (&["train"], "snapshot_dir", ValueHint::DirPath),
            (&["eval"], "checkpoint", ValueHint::DirPath),
            (&["checkpoint", "verify"], "dir", ValueHint::DirPath),
            (&["train"], "batch_size", ValueHint::Other),
            (&["train"], "learning_rate", ValueHint::Other),
            (&["launch"], "ranks", ValueHint::Other),
        ] {
            assert_eq!(argument(path, id).get_value_hint(), hint, "{path:?} {id}");
        }
    }
}
