//! The command lines of all pages: the program takes each. What they do is checked where a page is
//! followed (`your_data.rs`, and the step `book` of `cargo xtask ci`); the others need data, a
//! device or a cluster that is not here.

#![cfg(test)]

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};
use headlong::commands::cli::Cli;
use std::path::{Path, PathBuf};

/// The pages of users, below the workspace's root.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut pages = vec![root.join("README.md"), root.join("python/README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|end| end == "md") => pages.push(path),
                false => {}
            }
        }
    }
    pages
}

/// The commands of the blocks of a page, each as it is typed after the name of the program: from a
/// line's `headlong`, or the one that a launcher starts.
fn commands(page: &str) -> Vec<String> {
    let names: Vec<String> = Cli::command()
        .get_subcommands()
        .map(|one| format!("headlong {} ", one.get_name()))
        .collect();
    let mut commands = Vec::new();
    let mut is_fenced = false;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        is_fenced ^= line.trim_start().starts_with("```");
        let mut typed = line.trim().trim_start_matches("$ ").to_owned() + " ";
        if !(is_fenced || line.starts_with("    ")) {
            continue;
        }
        while let Some(before) = typed.strip_suffix("\\ ") {
            typed = format!("{before}{} ", lines.next().unwrap_or_default().trim());
        }
        let is_word = |start: &usize| *start == 0 || typed[..*start].ends_with(' ');
        let starts = names.iter().filter_map(|name| typed.find(name.as_str())).filter(is_word);
        let is_first = typed.starts_with("headlong ") && !typed.starts_with("headlong = ");
        if let Some(start) = starts.min().or(is_first.then_some(0)) {
            let rest = &typed[start + "headlong ".len()..];
            let end = [" | ", " >", " #", " || ", " & ", "; ", " … "];
            let end = end.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
            commands.push(rest[..end].trim().to_owned());
        }
    }
    commands
}

/// Whether the program takes the command, and what `launch` starts.
fn is_taken(command: &str) -> Result<(), String> {
    let words = shlex::split(command).ok_or("it is no line of a shell")?;
    if let Some(at) = words.iter().position(|word| word == "--") {
        is_taken(&words[at + 1..].join(" "))?;
    }
    match Cli::try_parse_from([&["headlong".to_owned()], &words[..]].concat()) {
        Err(error) if error.kind() != ErrorKind::DisplayHelp => Err(error.to_string()),
        _ => Ok(()),
    }
}

#[test]
fn every_command_of_a_page_is_one_of_this_program() {
    let mut seen = 0;
    for path in pages() {
        for command in commands(&std::fs::read_to_string(&path).unwrap()) {
            seen += 1;
            is_taken(&command).unwrap_or_else(|error| {
                panic!("{}: headlong {command}: {error}", path.display());
            });
        }
    }
    assert!(seen >= 80, "{seen} commands were found");
}

#[test]
fn a_command_that_there_is_not_is_found() {
    let page = "    headlong train \\\n      --data A | head\n\n```\nsrun headlong doctor\n\
                headlong no-such\n```\nheadlong in a sentence\n";
    assert_eq!(commands(page), ["train --data A", "doctor", "no-such"]);
    assert!(is_taken("train --data A").is_ok() && is_taken("launch -n 2 -- doctor").is_ok());
    assert!(is_taken("no-such").is_err() && is_taken("launch -n 2 -- train --no-such 1").is_err());
}
