//! Text of a page.

use crate::report::{duration, short_time};
use std::fmt::Write as _;

/// `text` as it stands between tags and in the quotes of an attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // What HTML does not allow at all.
            letter if letter.is_control() && !"\n\t".contains(letter) => {
                escaped.push('\u{fffd}');
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// A section with a heading, whose `body` is HTML.
pub fn section(heading: &str, body: &str) -> String {
    let id: String = heading
        .chars()
        .map(|letter| if letter.is_alphanumeric() { letter.to_ascii_lowercase() } else { '-' })
        .collect();
    format!("<section id=\"{id}\">\n<h2>{}</h2>\n{body}</section>\n", escape(heading))
}

/// A paragraph of text.
pub fn paragraph(class: &str, text: &str) -> String {
    format!("<p class=\"{class}\">{}</p>\n", escape(text))
}

/// What can be unfolded, whose `body` is HTML.
pub fn details(summary: &str, body: &str) -> String {
    format!("<details><summary>{}</summary>\n{body}</details>\n", escape(summary))
}

/// Text as it is.
pub fn preformatted(text: &str) -> String {
    format!("<pre>{}</pre>\n", escape(text))
}

/// A table of text. The first column is left, the others are numbers.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = "<div class=\"wide\"><table>\n<thead><tr>".to_owned();
    for name in head {
        let _ = write!(text, "<th>{}</th>", escape(name));
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        text.push_str("<tr>");
        for cell in row {
            let _ = write!(text, "<td>{}</td>", escape(cell));
        }
        text.push_str("</tr>\n");
    }
    text + "</tbody></table></div>\n"
}

/// Seconds for people, short ones, too.
pub fn span(seconds: f64) -> String {
    if seconds < 1.0 { short_time(seconds * 1e6) } else { duration(seconds) }
}

/// One line of a list of bars.
pub struct Bar {
    pub name: String,
    /// What kind of thing it is, in small letters.
    pub kind: String,
    /// Of the longest bar, 0 to 1.
    pub share: f64,
    /// What stands next to it.
    pub value: String,
    /// What it tells to a pointer.
    pub told: String,
    /// A colour; that of the style sheet where there is none.
    pub colour: Option<&'static str>,
}

/// A list of bars.
pub fn bars(bars: &[Bar]) -> String {
    let mut text = "<div class=\"bars\">\n".to_owned();
    for bar in bars {
        let fill = bar.colour.map_or(String::new(), |colour| format!(" style=\"fill:{colour}\""));
        let _ = writeln!(
            text,
            "<div class=\"bar\" title=\"{told}\"><span class=\"name\">{}<small>{}</small></span>\
             <svg viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect \
             class=\"track\" width=\"100\" height=\"10\"/><rect width=\"{:.2}\" height=\"10\"{fill}\
             ><title>{told}</title></rect></svg><span class=\"value\">{}</span></div>",
            escape(&bar.name),
            escape(&bar.kind),
            100.0 * bar.share.clamp(0.0, 1.0),
            escape(&bar.value),
            told = escape(&bar.told),
        );
    }
    text + "</div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_data_say_is_no_markup() {
        let odd = "<script>\"&'\u{7}</script>\n";
        let expected = "&lt;script&gt;&quot;&amp;&#39;\u{fffd}&lt;/script&gt;\n";
        assert_eq!(escape(odd), expected);
        let bar = Bar {
            name: odd.to_owned(),
            kind: odd.to_owned(),
            share: f64::NAN,
            value: odd.to_owned(),
            told: odd.to_owned(),
            colour: None,
        };
        let texts = [
            section(odd, ""),
            paragraph("note", odd),
            details(odd, ""),
            preformatted(odd),
            table(&[odd], &[vec![odd.to_owned()]]),
            bars(&[bar]),
        ];
        for text in texts {
            assert!(!text.contains("<script") && text.contains("&lt;script&gt;"), "{text}");
        }
    }
}
