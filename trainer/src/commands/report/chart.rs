//! Charts of a report: curves over steps, and points of tenths, as SVG inside the page, whose style
//! sheet has the colours of light and dark.

use super::html::escape;
use crate::report::axis::Interval;
use crate::report::{count, svg};
use std::fmt::Write as _;

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 270.0;
const TOP: f64 = 10.0;
const RIGHT: f64 = 30.0;
const BOTTOM: f64 = 46.0;
/// Width of a letter of the axes' numbers, of most fonts at most.
const LETTER: f64 = 8.4;
/// More points than the picture is wide are not seen: of so many the highest and lowest are drawn.
const MOST_DRAWN: usize = 600;
/// Places along a curve that tell their values to a pointer.
const MOST_TOLD: usize = 100;

/// How numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    Plain,
    /// Shares, as percent.
    Percent,
    /// Whole ones, short: `25k`.
    Count,
}

/// What lies along one side of a chart.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    pub label: &'static str,
    pub numbers: Numbers,
    /// Whether 0 is on it, whatever the values.
    pub from_zero: bool,
}

/// One curve.
#[derive(Debug, Clone, Default)]
pub struct Curve {
    pub name: String,
    /// Classes of the style sheet: its colour (`c1` …), and `faint` or `dashed`.
    pub class: String,
    pub points: Vec<(f64, f64)>,
    /// Whether its points are marked, each with what it tells to a pointer.
    pub told: Vec<String>,
}

/// A chart.
#[derive(Debug)]
pub struct Chart {
    pub title: &'static str,
    /// A sentence under it.
    pub note: String,
    pub x: Axis,
    pub y: Axis,
    pub curves: Vec<Curve>,
    /// Whether the line on which both are equal is drawn.
    pub has_diagonal: bool,
}

impl Chart {
    /// The chart as a figure; nothing where it has no point.
    pub fn draw(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        if points().next().is_none() {
            return String::new();
        }
        let mut text = format!("<figure><figcaption>{}</figcaption>\n", escape(self.title));
        self.write_legend(&mut text);
        let interval = |axis: Axis, of: &dyn Fn(&(f64, f64)) -> f64, most| {
            let zero = axis.from_zero.then_some(0.0);
            Interval::new(points().map(of).chain(zero), most)
        };
        let (mut across, mut up) =
            (interval(self.x, &|point| point.0, 5), interval(self.y, &|point| point.1, 5));
        if self.has_diagonal {
            let both = [&across, &up].map(|side| [side.low(), side.high()]).concat();
            across = Interval::new(both.iter().copied(), 5);
            up = Interval::new(both.into_iter(), 5);
        }
        let labels = |axis: Axis, side: &Interval| -> Vec<String> {
            side.ticks.iter().map(|&tick| axis.numbers.write(tick, side.step())).collect()
        };
        let named = labels(self.y, &up);
        let longest = named.iter().map(|label| label.chars().count()).max().unwrap_or(0);
        let left = longest as f64 * LETTER + 12.0;
        let frame = Frame { left, across, up };
        let _ = writeln!(
            text,
            "<svg class=\"chart\" viewBox=\"0 0 {WIDTH:.0} {HEIGHT:.0}\" role=\"img\" \
             aria-label=\"{}\">",
            escape(self.title)
        );
        frame.write_grid(&mut text, &named, &labels(self.x, &frame.across));
        let middle = (left + WIDTH - RIGHT) / 2.0;
        let _ = writeln!(
            text,
            "<text class=\"label\" x=\"{middle:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 6.0,
            escape(self.x.label)
        );
        if self.has_diagonal {
            let ends =
                [(frame.across.low(), frame.up.low()), (frame.across.high(), frame.up.high())];
            let _ = writeln!(text, "<path class=\"ideal\" d=\"{}\"/>", frame.path(&ends));
        }
        self.curves.iter().for_each(|curve| frame.write_curve(&mut text, curve));
        if self.curves.iter().all(|curve| curve.told.is_empty()) {
            self.write_told(&frame, &mut text);
        }
        text += svg::END;
        if !self.note.is_empty() {
            let _ = writeln!(text, "<p class=\"note\">{}</p>", escape(&self.note));
        }
        text + "</figure>\n"
    }

    /// What the upright axis is, and which curve is which.
    fn write_legend(&self, text: &mut String) {
        let _ = write!(text, "<p class=\"legend\"><span class=\"unit\">{}</span>", self.y.label);
        for curve in self.curves.iter().filter(|curve| !curve.name.is_empty()) {
            let _ = write!(
                text,
                "<span class=\"key {}\"><i></i>{}</span>",
                escape(&curve.class),
                escape(&curve.name)
            );
        }
        text.push_str("</p>\n");
    }

    /// Strips over the picture that tell a pointer the values of the curves below it.
    fn write_told(&self, frame: &Frame, text: &mut String) {
        let Some(first) = self.curves.first() else { return };
        let every = first.points.len().div_ceil(MOST_TOLD).max(1);
        let told: Vec<(f64, f64)> = first.points.iter().copied().step_by(every).collect();
        for (index, &(x, _)) in told.iter().enumerate() {
            let middle_to = |other: Option<&(f64, f64)>, border: f64| {
                other.map_or(border, |other| frame.x((x + other.0) / 2.0))
            };
            let from = middle_to(index.checked_sub(1).and_then(|at| told.get(at)), frame.left);
            let to = middle_to(told.get(index + 1), WIDTH - RIGHT);
            let _ = write!(
                text,
                "<rect class=\"told\" x=\"{from:.1}\" y=\"{TOP:.0}\" width=\"{:.1}\" \
                 height=\"{:.0}\"><title>{} {}",
                (to - from).max(0.1),
                HEIGHT - TOP - BOTTOM,
                escape(self.x.label),
                self.x.numbers.exact(x)
            );
            for curve in &self.curves {
                let near = |point: &&(f64, f64)| (point.0 - x).abs();
                let nearest = curve.points.iter().min_by(|a, b| near(a).total_cmp(&near(b)));
                if let Some((_, value)) = nearest {
                    let name = if curve.name.is_empty() { self.y.label } else { &*curve.name };
                    let _ = write!(text, "\n{}: {}", escape(name), self.y.numbers.exact(*value));
                }
            }
            text.push_str("</title></rect>\n");
        }
    }
}

/// Where values lie in the picture.
struct Frame {
    left: f64,
    across: Interval,
    up: Interval,
}

impl Frame {
    fn x(&self, value: f64) -> f64 {
        self.left + self.across.place(value) * (WIDTH - RIGHT - self.left)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.up.place(value) * (HEIGHT - BOTTOM - TOP)
    }

    fn write_grid(&self, text: &mut String, named: &[String], below: &[String]) {
        let bottom = HEIGHT - BOTTOM;
        for (&tick, label) in self.across.ticks.iter().zip(below) {
            svg::upright(text, self.x(tick), [TOP, bottom], bottom + 19.0, label);
        }
        for (&tick, label) in self.up.ticks.iter().zip(named) {
            let y = self.y(tick);
            let _ = writeln!(
                text,
                "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{:.1}\" \
                 y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                self.left,
                WIDTH - RIGHT,
                self.left - 6.0,
                y + 4.0
            );
        }
    }

    fn path(&self, points: &[(f64, f64)]) -> String {
        let mut path = String::new();
        for (index, &(x, y)) in points.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", self.x(x), self.y(y));
        }
        path
    }

    fn write_curve(&self, text: &mut String, curve: &Curve) {
        let class = escape(&curve.class);
        let drawn = thinned(&curve.points);
        if drawn.len() > 1 {
            let _ = writeln!(text, "<path class=\"{class}\" d=\"{}\"/>", self.path(&drawn));
        }
        if curve.told.is_empty() && drawn.len() > 1 {
            return;
        }
        for (index, &(x, y)) in curve.points.iter().enumerate() {
            let told = curve.told.get(index).map(|told| escape(told)).unwrap_or_default();
            let _ = writeln!(
                text,
                "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{told}\
                 </title></circle>",
                self.x(x),
                self.y(y)
            );
        }
    }
}

/// The points that are seen: of neighbours that fall together the lowest and the highest.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= MOST_DRAWN {
        return points.to_vec();
    }
    let together = (2 * points.len()).div_ceil(MOST_DRAWN);
    let ends = |points: &[(f64, f64)]| {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let lowest = points.iter().min_by(by_value).copied();
        let highest = points.iter().max_by(by_value).copied();
        let mut both: Vec<(f64, f64)> = lowest.into_iter().chain(highest).collect();
        both.sort_by(|a, b| a.0.total_cmp(&b.0));
        both
    };
    points.chunks(together).flat_map(ends).collect()
}

impl Numbers {
    /// A value on an axis whose values are `step` apart.
    fn write(self, value: f64, step: f64) -> String {
        let digits = |step: f64| (-(step.abs().log10() + 1e-9).floor()).clamp(0.0, 9.0) as usize;
        match self {
            Self::Percent => format!("{:.*} %", digits(step * 100.0), value * 100.0),
            Self::Count | Self::Plain if value.abs() >= 1e4 => {
                let (unit, name) = [(1e9, "G"), (1e6, "M"), (1e3, "k")]
                    .into_iter()
                    .find(|(unit, _)| value.abs() >= *unit)
                    .unwrap_or((1.0, ""));
                format!("{:.*}{name}", digits(step / unit), value / unit)
            }
            Self::Count => count(value.max(0.0) as u64),
            // Learning rates.
            Self::Plain if value != 0.0 && step < 1e-5 => format!("{value:.1e}"),
            Self::Plain => format!("{value:.*}", digits(step)),
        }
    }

    /// A value for itself.
    pub fn exact(self, value: f64) -> String {
        match self {
            Self::Percent => format!("{:.2} %", value * 100.0),
            Self::Count => count(value.max(0.0).round() as u64),
            Self::Plain if value != 0.0 && value.abs() < 1e-3 => format!("{value:.3e}"),
            Self::Plain => format!("{value:.5}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        let axis = |label, numbers| Axis { label, numbers, from_zero: false };
        let curve = Curve { name: "a<b".into(), class: "c1".into(), points, told: Vec::new() };
        Chart {
            title: "Loss",
            note: String::new(),
            x: axis("step", Numbers::Count),
            y: axis("log loss", Numbers::Plain),
            curves: vec![curve],
            has_diagonal: false,
        }
    }

    #[test]
    fn a_chart_tells_its_values_and_escapes_names() {
        let text = chart(vec![(100.0, 0.5), (200.0, 0.25), (300.0, 0.125)]).draw();
        assert!(text.contains("<title>step 200\na&lt;b: 0.25000</title>"), "{text}");
        assert!(text.contains(">0.5</text>") && text.contains(">300</text>"), "{text}");
        assert!(!text.contains("a<b") && !text.contains("NaN"), "{text}");
        assert_eq!(chart(Vec::new()).draw(), "");
        let one = chart(vec![(1.0, 0.5)]).draw();
        assert!(one.contains("<circle") && !one.contains("NaN"), "{one}");
    }

    #[test]
    fn long_curves_keep_their_peaks() {
        let mut points: Vec<(f64, f64)> = (0..50_000).map(|step| (f64::from(step), 0.5)).collect();
        (points[777].1, points[40_001].1) = (2.0, -1.0);
        let drawn = thinned(&points);
        assert!(drawn.len() <= MOST_DRAWN && drawn.contains(&points[777]), "{}", drawn.len());
        assert!(drawn.contains(&points[40_001]));
        assert!(drawn.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }

    #[test]
    fn axes_name_their_values_as_exactly_as_they_are_apart() {
        for (numbers, value, step, expected) in [
            (Numbers::Plain, 0.75, 0.01, "0.75"),
            (Numbers::Plain, 0.5, 0.1, "0.5"),
            (Numbers::Count, 2500.0, 500.0, "2,500"),
            (Numbers::Count, 12_500.0, 500.0, "12.5k"),
            (Numbers::Count, 4_000_000.0, 1e6, "4M"),
            (Numbers::Percent, 0.1, 0.05, "10 %"),
            (Numbers::Percent, 0.005, 0.005, "0.5 %"),
            (Numbers::Plain, 0.0, 0.2, "0.0"),
        ] {
            assert_eq!(numbers.write(value, step), expected);
        }
    }
}
