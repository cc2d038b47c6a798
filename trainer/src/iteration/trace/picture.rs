//! A picture of one step: lanes below each other, stages as bars over time. For eyes and documents;
//! Perfetto shows whole runs.

use super::{Recorder, Span};
use crate::iteration::schedule::Lane;
use crate::report::axis::round_ticks;
use crate::report::svg;
use std::fmt::Write as _;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 28.0;
const LANE_HEIGHT: f64 = 34.0;
const RANK_GAP: f64 = 26.0;

/// Width of a letter of the small text, of most fonts at most.
const LETTER_WIDTH: f64 = 5.2;
const ROW_HEIGHT: f64 = 10.0;
/// Between a bar's edge and its name.
const MARGIN: f64 = 3.0;

/// The last whole step of each rank as an SVG.
pub(super) fn draw<'a>(ranks: impl Iterator<Item = (usize, &'a Recorder)>) -> String {
    let ranks: Vec<(usize, &[Span])> =
        ranks.map(|(rank, recorder)| (rank, last_step(&recorder.spans))).collect();
    let spans = || ranks.iter().flat_map(|(_, spans)| spans.iter());
    let start = spans().map(|span| span.start_us).fold(f64::INFINITY, f64::min);
    let end =
        spans().map(|span| span.start_us + span.duration_us).fold(f64::NEG_INFINITY, f64::max);
    let length = if end > start { end - start } else { 1.0 };
    let rank_height = Lane::ALL.len() as f64 * LANE_HEIGHT + RANK_GAP;
    let height = TOP + ranks.len() as f64 * rank_height + 8.0;
    let mut text = svg::begin(LEFT + WIDTH + 16.0, height, 9);
    let x = |us: f64| LEFT + (us - start) / length * WIDTH;
    let (unit, us_of_unit) = if length >= 1e4 { ("ms", 1e3) } else { ("µs", 1.0) };
    for tick in round_ticks(length / us_of_unit, 10) {
        let at = x(start + tick * us_of_unit);
        svg::upright(&mut text, at, [16.0, height], 12.0, format_args!("{tick} {unit}"));
    }
    for (position, (rank, spans)) in ranks.iter().enumerate() {
        let top = TOP + position as f64 * rank_height;
        let _ = writeln!(
            text,
            "<text x=\"4\" y=\"{:.1}\" font-weight=\"bold\">rank {rank}</text>",
            top + 4.0
        );
        for lane in Lane::ALL {
            let y = top + 8.0 + lane as usize as f64 * LANE_HEIGHT;
            let _ = writeln!(
                text,
                "<text x=\"4\" y=\"{:.1}\" fill=\"#333\">{}</text>",
                y + 16.0,
                lane.name()
            );
            for span in spans.iter().filter(|span| span.lane == lane) {
                bar(&mut text, span, (x(span.start_us), y, span.duration_us / length * WIDTH));
            }
        }
    }
    text + svg::END
}

/// The colour of a lane's stages in pictures.
pub fn lane_colour(lane: Lane) -> &'static str {
    match lane {
        Lane::Copy => "#b8c4d6",
        Lane::Sparse => "#8fc9a3",
        Lane::Comm => "#e3b98a",
        Lane::Dense => "#a9a4d8",
    }
}

fn bar(text: &mut String, span: &Span, (x, y, width): (f64, f64, f64)) {
    let colour = lane_colour(span.lane);
    let (name, drawn, height) = (span.name, width.max(0.6), LANE_HEIGHT - 8.0);
    let _ = writeln!(
        text,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{drawn:.1}\" height=\"{height:.0}\" \
         fill=\"{colour}\" stroke=\"white\"><title>{name}: {:.1} µs</title></rect>",
        span.duration_us
    );
    let rows = name_in(name, width);
    let first = y + 16.0 - (rows.len().max(1) - 1) as f64 * ROW_HEIGHT / 2.0;
    for (row, shown) in rows.iter().enumerate() {
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\">{shown}</text>",
            x + MARGIN,
            first + row as f64 * ROW_HEIGHT
        );
    }
}

/// A stage's name in a bar of this width: whole, in one row or two, or not at all. It shows when
/// pointed at, too.
fn name_in(name: &str, width: f64) -> Vec<String> {
    let name = name.replace('_', " ");
    let fits = |text: &str| text.chars().count() as f64 * LETTER_WIDTH + 2.0 * MARGIN <= width;
    if fits(&name) {
        return vec![name];
    }
    let halves = name.match_indices(' ').map(|(at, _)| [&name[..at], &name[at + 1..]]);
    let fitting = halves.into_iter().find(|rows| rows.iter().all(|row| fits(row)));
    fitting.map_or(Vec::new(), |rows| rows.map(str::to_owned).to_vec())
}

/// The spans of the last step that ended: from the last but one start of the stage that starts each
/// step to the last.
fn last_step(spans: &[Span]) -> &[Span] {
    let first = crate::iteration::schedule::STEP
        .iter()
        .find(|stage| spans.iter().any(|span| span.name == stage.name));
    let Some(first) = first else { return spans };
    let mut starts: Vec<usize> = spans
        .iter()
        .enumerate()
        .filter(|(_, span)| span.name == first.name)
        .map(|(index, _)| index)
        .collect();
    let end = match starts.len() {
        0 | 1 => spans.len(),
        _ => starts.pop().unwrap_or(spans.len()),
    };
    &spans[starts.pop().unwrap_or(0)..end]
}

#[cfg(test)]
mod tests {
    use super::super::Record;
    use super::*;

    #[test]
    fn a_picture_shows_the_last_whole_step_of_every_rank() {
        let mut recorder = Recorder::new(Record { spans: true, ..Record::default() });
        for step in 0..3 {
            for (name, lane) in [("pool", Lane::Sparse), ("top_forward", Lane::Dense)] {
                recorder.spans.push(Span {
                    name,
                    lane,
                    start_us: f64::from(step) * 100.0,
                    duration_us: 50.0,
                });
            }
        }
        let step = last_step(&recorder.spans);
        assert_eq!((step.len(), step[0].start_us), (2, 100.0));
        let picture = draw([(0, &recorder), (1, &recorder)].into_iter());
        assert_eq!(picture.matches("<title>top_forward: 50.0 µs</title>").count(), 2);
        assert!(picture.contains("rank 1") && picture.ends_with("</svg>\n"));
        // 50 µs: ticks at multiples of 5.
        assert!(
            picture.contains(">5 µs<")
                && picture.contains(">50 µs<")
                && !picture.contains(">6 µs<")
        );
    }

    #[test]
    fn names_are_whole_or_left_out() {
        assert_eq!(name_in("interaction_forward", 105.0), ["interaction forward"]);
        assert_eq!(name_in("interaction_forward", 70.0), ["interaction", "forward"]);
        assert_eq!(name_in("interaction_forward", 60.0), [""; 0]);
        assert_eq!(name_in("pool", 20.0), [""; 0]);
    }
}
