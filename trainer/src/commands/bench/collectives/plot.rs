//! A picture of a comparison: latency and bandwidth by size, a line for each backend. For eyes and
//! documents.

use super::backend::Backend;
use super::table::{Report, Row};
use crate::report::axis::Logarithmic as Axis;
use crate::report::svg;
use std::fmt::Write as _;

const WIDTH: f64 = 430.0;
const HEIGHT: f64 = 290.0;
const TOP: f64 = 62.0;
const PANELS: [f64; 2] = [64.0, 578.0];
const ALL_WIDTH: f64 = 1030.0;
const ALL_HEIGHT: f64 = 412.0;

/// Lines that can be told apart, also by those who do not see all colours (Okabe and Ito).
fn colour(backend: Backend) -> &'static str {
    match backend {
        Backend::Local => "#0072b2",
        Backend::Shm => "#009e73",
        Backend::Tcp => "#d55e00",
        Backend::Verbs => "#cc79a7",
        Backend::Ucx => "#000000",
        Backend::Nccl => "#e69f00",
        Backend::Peer => "#56b4e9",
    }
}

/// The picture, of each row's main form.
pub fn draw(report: &Report) -> String {
    let rows =
        || report.rows.iter().filter(|row| row.dtype == report.rows[0].dtype && row.bytes > 0);
    let mut text = svg::begin(ALL_WIDTH, ALL_HEIGHT, 12);
    if rows().next().is_none() {
        text += "<text x=\"20\" y=\"40\">nothing was measured that has a size</text>\n";
        return text + svg::END;
    }
    let first = &report.rows[0];
    let _ = writeln!(
        text,
        "<text x=\"{}\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{}, {} ranks, {}, {}</text>",
        PANELS[0],
        first.operation.name(),
        first.ranks,
        first.dtype.name(),
        first.main().0.name().replace('_', " ")
    );
    let sizes = Axis::new(rows().map(|row| row.bytes as f64), 2.0);
    let p50 = |row: &Row| row.main().1.latency.nearest_rank(50.0);
    let p99 = |row: &Row| row.main().1.latency.percentile(99.0).unwrap_or(f64::NAN);
    let bus = |row: &Row| row.bandwidths(&row.main().1).1;
    let times = Axis::new(rows().flat_map(|row| [p50(row), p99(row)]), 10.0);
    let bandwidths = Axis::new(rows().map(bus), 10.0);
    let titles = ["latency, us: p50 (solid), p99 (dashed)", "bus bandwidth at the mean time, GB/s"];
    for ((left, axis), title) in PANELS.into_iter().zip([&times, &bandwidths]).zip(titles) {
        frame(&mut text, left, &sizes, axis, title);
    }
    let backends = report.rows.chunk_by(|one, other| one.backend == other.backend);
    for (number, rows) in backends.enumerate() {
        let rows: Vec<&Row> =
            rows.iter().filter(|row| row.dtype == first.dtype && row.bytes > 0).collect();
        let backend = rows.first().map_or(first.backend, |row| row.backend);
        let mut draw = |left, axis: &Axis, of: &dyn Fn(&Row) -> f64, dashed| {
            let points =
                rows.iter().map(|row| (sizes.place(row.bytes as f64), axis.place(of(row))));
            line(&mut text, left, points, (colour(backend), dashed));
        };
        draw(PANELS[0], &times, &p99, true);
        draw(PANELS[0], &times, &p50, false);
        draw(PANELS[1], &bandwidths, &bus, false);
        key(&mut text, number, backend);
    }
    text + svg::END
}

/// Axes, ticks and names of one panel.
fn frame(text: &mut String, left: f64, sizes: &Axis, values: &Axis, title: &str) {
    let (bottom, right) = (TOP + HEIGHT, left + WIDTH);
    let _ =
        writeln!(text, "<text x=\"{left}\" y=\"{:.0}\" fill=\"#333\">{title}</text>", TOP - 12.0);
    for size in sizes.ticks(2.0) {
        let x = left + sizes.place(size) * WIDTH;
        svg::upright(text, x, [TOP, bottom], bottom + 17.0, short(size));
    }
    for value in values.ticks(10.0) {
        let y = bottom - values.place(value) * HEIGHT;
        let _ = writeln!(
            text,
            "<line x1=\"{left}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{value}</text>",
            left - 6.0,
            y + 4.0
        );
    }
    let _ = writeln!(
        text,
        "<rect x=\"{left}\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" \
         stroke=\"#999\"/><text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#333\">size, \
         bytes</text>",
        left + WIDTH / 2.0,
        bottom + 35.0
    );
}

/// A line through the points that there are, each 0 to 1 in both directions.
fn line(
    text: &mut String,
    left: f64,
    points: impl Iterator<Item = (f64, f64)>,
    (colour, is_dashed): (&str, bool),
) {
    let at = |(x, y): (f64, f64)| (left + x * WIDTH, TOP + HEIGHT - y * HEIGHT);
    let points: Vec<(f64, f64)> = points.filter(|point| point.1.is_finite()).map(at).collect();
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let style = if is_dashed { " stroke-dasharray=\"4 3\" stroke-opacity=\"0.8\"" } else { "" };
    let _ = writeln!(
        text,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{}\"{style}/>",
        path.join(" "),
        if is_dashed { 1.2 } else { 2.0 }
    );
    for (x, y) in points.iter().filter(|_| !is_dashed) {
        let _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
    }
}

fn key(text: &mut String, position: usize, backend: Backend) {
    let x = PANELS[1] + position as f64 * 78.0;
    let _ = writeln!(
        text,
        "<line x1=\"{x}\" x2=\"{:.0}\" y1=\"18\" y2=\"18\" stroke=\"{}\" stroke-width=\"2\"/>\
         <text x=\"{:.0}\" y=\"22\">{}</text>",
        x + 22.0,
        colour(backend),
        x + 27.0,
        backend.name()
    );
}

/// A power of two as people say it.
fn short(bytes: f64) -> String {
    let units = [("G", 30), ("M", 20), ("K", 10)];
    let unit = units.iter().find(|(_, shift)| bytes >= f64::from(1_u32 << shift));
    unit.map_or_else(
        || format!("{bytes}"),
        |(name, shift)| format!("{}{name}", bytes / f64::from(1_u32 << shift)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_short_names() {
        assert_eq!([512.0, 1024.0, 4_194_304.0].map(short), ["512", "1K", "4M"]);
    }
}
