//! What all pictures begin with, and how they draw the lines of an upright axis.

use std::fmt::{Display, Write as _};

/// What ends a picture.
pub const END: &str = "</svg>\n";

/// The head of a picture of this size, on white, and the size of its letters.
pub fn begin(width: f64, height: f64, font_size: u32) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"{font_size}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    )
}

/// An upright line of a grid from `top` to `bottom`, and its value, whose letters stand on
/// `named_at`.
pub fn upright(
    text: &mut String,
    x: f64,
    [top, bottom]: [f64; 2],
    named_at: f64,
    value: impl Display,
) {
    let _ = writeln!(
        text,
        "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.0}\" y2=\"{bottom:.0}\" stroke=\"#eee\"/>\
         <text x=\"{x:.1}\" y=\"{named_at:.0}\" text-anchor=\"middle\" fill=\"#555\">{value}</text>"
    );
}
