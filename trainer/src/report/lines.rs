//! Lines for people: as wide as the terminal, broken between facts, never in a word; `error:` and
//! `warning:` coloured as the command line parser's own messages are.
//!
//! Facts of a line are separated by two blanks. Where the output is no terminal, a line stays one
//! line.

use crate::error::{Error, chain};
use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::{AnsiColor, Style, Styles};
use std::borrow::Cow;
use std::io::Write as _;
use std::os::fd::AsFd;

/// Blanks before what continues a line, besides the line's own.
const INDENT: usize = 2;

/// A terminal that says it is narrower than this is not believed.
const NARROWEST: usize = 20;

/// Columns of the terminal that `stream` is; `None` where it is none, or does not say.
pub fn width(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col > 0).then(|| usize::from(size.ws_col).max(NARROWEST))
}

/// `text` in lines of at most `width` columns, as far as there are blanks to break at; unchanged
/// where there is no width.
pub fn fold(text: &str, width: Option<usize>) -> Cow<'_, str> {
    let Some(width) = width.filter(|&width| text.lines().any(|line| columns(line) > width)) else {
        return text.into();
    };
    let mut folded = String::with_capacity(text.len() + text.len() / 16);
    for line in text.split_inclusive('\n') {
        fold_line(line, width, &mut folded);
    }
    folded.into()
}

fn columns(text: &str) -> usize {
    text.trim_end_matches('\n').chars().count()
}

fn fold_line(line: &str, width: usize, folded: &mut String) {
    let indent = line.len() - line.trim_start_matches(' ').len();
    folded.push_str(&line[..indent]);
    let (mut rest, mut column) = (&line[indent..], indent);
    while column + columns(rest) > width {
        let Some(at) = best_break(rest, width.saturating_sub(column)) else { break };
        folded.push_str(&rest[..at]);
        column = indent + INDENT;
        folded.push('\n');
        folded.extend(std::iter::repeat_n(' ', column));
        rest = rest[at..].trim_start_matches(' ');
    }
    folded.push_str(rest);
}

/// Where a line that may fill `available` columns is broken best: between facts, else after a mark
/// or before a bracket, else between words, but not between a number and its unit. Never between
/// back quotes. `None` where there is nothing to break at.
fn best_break(line: &str, available: usize) -> Option<usize> {
    let (mut best, mut quoted, mut before) = (None, false, '\0');
    for (column, (at, letter)) in line.char_indices().enumerate() {
        quoted ^= letter == '`';
        let is_break = letter == ' ' && before != ' ' && !quoted && at > 0;
        if is_break && !line[at..].trim().is_empty() {
            if column > available && best.is_some() {
                break;
            }
            let rank = rank_of_break(before, &line[at..]);
            // A good break far to the left leaves a short line: a worse one is better then.
            let enough = match rank {
                3 => available / 3,
                2 => available / 2,
                _ => 0,
            };
            let rank = if column >= enough { rank } else { 0 };
            if best.is_none_or(|(found, _)| rank >= found) {
                best = Some((rank, at));
            }
        }
        before = letter;
    }
    best.map(|(_, at)| at)
}

/// How good it is to break a line before `rest`, which follows the letter `before`.
fn rank_of_break(before: char, rest: &str) -> u8 {
    match before {
        _ if rest.starts_with("  ") => 3,
        ',' | ';' | ':' => 2,
        _ if rest.starts_with(" (") => 2,
        _ if before.is_ascii_digit() => 0,
        _ => 1,
    }
}

/// `error: message`, in one line: it may be copied or searched for.
pub fn error(message: &str) -> String {
    labelled(*Styles::styled().get_error(), "error:", message, None)
}

/// `warning: message`, in lines of at most `width` columns.
pub fn warning(message: &str, width: Option<usize>) -> String {
    labelled(
        Style::new().bold().fg_color(Some(AnsiColor::Yellow.into())),
        "warning:",
        message,
        width,
    )
}

fn labelled(style: Style, label: &str, message: &str, width: Option<usize>) -> String {
    let text = format!("{label} {message}");
    let folded = fold(text.trim_end(), width);
    format!("{style}{label}{style:#}{}", &folded[label.len()..])
}

/// The last words of a program that ends with `error`, on standard error. A requested stop is not
/// an error.
pub fn last_words(failure: &Error) {
    match failure {
        Error::Interrupted { is_said: true, .. } => {}
        Error::Interrupted { .. } => {
            let text = failure.to_string();
            // A command is on a line of its own, which stays whole: it will be copied.
            let (sentence, command) = text.split_at(text.find('\n').unwrap_or(text.len()));
            to_stderr(&format!("{}{command}", fold(sentence, width(std::io::stderr()))));
        }
        _ => to_stderr(&error(&chain(failure))),
    }
}

/// Writes lines to standard error, in colour where that is a terminal that shows it unless the user
/// says otherwise (`NO_COLOR`). All at once: other processes may write to the same place. What
/// cannot be written is lost: there is no other place to say so.
pub fn to_stderr(text: &str) {
    let mut out = std::io::stderr();
    let mut text = format!("{}\n", text.trim_end());
    if AutoStream::choice(&out) == ColorChoice::Never {
        text = strip_str(&text).to_string();
    }
    let _ = out.write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_facts() {
        let line =
            "step 3,125  AUC 0.80162  log loss 0.49029  accuracy 76.11 % (always \"no\" 67.87 %)\n";
        let expected = "step 3,125  AUC 0.80162  log loss 0.49029\n  accuracy 76.11 % (always \
                        \"no\" 67.87 %)\n";
        assert_eq!(fold(line, Some(80)), expected);
        assert_eq!(fold(line, Some(82)), line);
        assert_eq!(fold(line, None), line);
        let narrow = "step 3,125  AUC 0.80162\n  log loss 0.49029\n  accuracy 76.11 %\n  (always \
                      \"no\" 67.87 %)\n";
        assert_eq!(fold(line, Some(24)), narrow);
    }

    #[test]
    fn prose_breaks_after_marks_and_numbers_keep_their_units() {
        let line = "  memory 132.07 MiB of 22.48 GiB available (fits): tables 37.12 MiB, dense \
                    network 341.82 KiB";
        let expected = "  memory 132.07 MiB of 22.48 GiB available (fits): tables 37.12 MiB,\n    \
                        dense network 341.82 KiB";
        assert_eq!(fold(line, Some(80)), expected);
        assert_eq!(fold("a sum of about 400 samples", Some(20)), "a sum of about\n  400 samples");
    }

    #[test]
    fn commands_words_and_what_follows_stay_whole() {
        let command =
            "go on with `headlong train --data a.txt --checkpoint-dir c --resume`, or not";
        assert_eq!(
            fold(command, Some(40)),
            "go on with\n  `headlong train --data a.txt --checkpoint-dir c --resume`,\n  or not"
        );
        assert_eq!(fold(&"x".repeat(99), Some(20)), "x".repeat(99));
        assert_eq!(
            fold("first\nsecond line that is long\n", Some(20)),
            "first\nsecond line that is\n  long\n"
        );
    }

    #[test]
    fn no_line_is_too_long_where_words_are_short() {
        let text =
            "training stood still, for evaluations: in 15.27 % of the (whole) time  and ended 3 s \
             later "
                .repeat(7);
        for width in 20..130 {
            let folded = fold(&text, Some(width)).into_owned();
            assert!(folded.lines().all(|line| columns(line) <= width), "{width}: {folded}");
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&folded), words(&text));
        }
    }

    #[test]
    fn labels_are_styled_and_can_be_stripped() {
        let text = error("no such file");
        assert!(text.starts_with("\u{1b}[") && text.ends_with(" no such file"), "{text:?}");
        assert_eq!(strip_str(&text).to_string(), "error: no such file");
        let text = warning("two rows were skipped", Some(20));
        assert_eq!(strip_str(&text).to_string(), "warning: two rows\n  were skipped");
    }
}
