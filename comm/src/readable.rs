//! What a peer says in words, made fit for a terminal: one line without escapes, of bounded length.

/// Characters of the longest text that is shown whole, and of the beginning that is shown of a
/// longer one.
const WHOLE: usize = 540;
const BEGINNING: usize = 500;

/// `text` with what moves a cursor, ends a line or turns the direction of writing escaped; cut
/// where it is too long, with its length. A text that has been made readable stays as it is.
pub fn readable(text: &str) -> String {
    let length = text.chars().count();
    let is_long = length > WHOLE;
    let shown = text.chars().take(if is_long { BEGINNING } else { WHOLE });
    let mut line = String::with_capacity(text.len().min(4 * WHOLE));
    for character in shown {
        match is_plain(character) {
            true => line.push(character),
            false => line.extend(character.escape_default()),
        }
        // Escapes are longer than what they stand for.
        if line.len() > 4 * WHOLE {
            break;
        }
    }
    if line.chars().count() > WHOLE {
        line = line.chars().take(BEGINNING).collect();
    } else if !is_long {
        return line;
    }
    line.push_str(&format!("... ({length} characters)"));
    line
}

/// What an error says.
pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn is_plain(character: char) -> bool {
    let turns = matches!(
        character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    let ends_a_line = matches!(character, '\u{2028}' | '\u{2029}');
    !(character.is_control() || turns || ends_a_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_writes_over_a_terminal_is_shown_as_what_it_is() {
        let forged = "x\u{1b}]0;title\u{7}\r\nerror: fake line\u{202e}";
        assert_eq!(readable(forged), "x\\u{1b}]0;title\\u{7}\\r\\nerror: fake line\\u{202e}");
        assert_eq!(readable("wörter 1 \u{1f4a5} \"day_0.gz\""), "wörter 1 \u{1f4a5} \"day_0.gz\"");
    }

    #[test]
    fn a_long_text_is_cut_with_its_length_and_then_stays() {
        for (text, words) in [
            ("x".repeat(1 << 20), "xx... (1048576 characters)"),
            ("\n".repeat(600), "\\n... (600 characters)"),
            ("\u{1b}".repeat(400), "... (400 characters)"),
            ("ä".repeat(540), "ä"),
        ] {
            let line = readable(&text);
            assert!(line.ends_with(words) && line.chars().count() <= WHOLE, "{line}");
            assert_eq!(readable(&line), line);
        }
    }
}
