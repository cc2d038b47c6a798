//! Pictures of plans: how a step's parts and the samples per second change with the number of
//! devices, and what each device holds.

use crate::iteration::schedule::Lane;
use crate::iteration::trace::lane_colour;
use crate::report::axis::{Linear, Logarithmic};
use headlong_planner::description::ClusterDescription;
use headlong_planner::placement::{Place, Placing};
use headlong_planner::search::{Candidate, search};
use std::fmt::Write as _;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
const TOP: f64 = 60.0;
const LEFT: f64 = 70.0;
const RIGHT_PANEL: f64 = 600.0;
const CELL: f64 = 11.0;
/// Tables and devices of the map, at most.
const MOST_TABLES: usize = 40;
const MOST_DEVICES: usize = 64;

/// One number of nodes.
struct Column {
    devices: usize,
    candidate: Candidate,
}

/// The picture of the plan `best` and of the best plans on one node, two, four, … as many as the
/// cluster has.
pub fn svg(placing: &Placing<'_>, best: &Candidate) -> String {
    let columns = columns(placing, best);
    let map_top = TOP + HEIGHT + 90.0;
    let tables = placing.workload.tables.len().min(MOST_TABLES);
    let height = map_top + tables as f64 * CELL + 30.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1060 {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"14\" font-weight=\"bold\">{}, batch {}</text>\n",
        placing.cluster.name, best.batch_size
    );
    bars(&mut text, &columns);
    rates(&mut text, &columns);
    map(&mut text, placing, best, map_top);
    text + "</svg>\n"
}

fn columns(placing: &Placing<'_>, best: &Candidate) -> Vec<Column> {
    let Placing { workload, cluster, practice } = *placing;
    let mut nodes = 1;
    let mut columns = Vec::new();
    // A number close to the last one would lie on it.
    while 3 * nodes <= 2 * cluster.nodes {
        let part = ClusterDescription { nodes, ..cluster.clone() };
        let found = search(workload, &part, practice);
        columns.extend(
            found.best().map(|candidate| Column {
                devices: part.num_devices(),
                candidate: candidate.clone(),
            }),
        );
        nodes *= 2;
    }
    columns.push(Column { devices: cluster.num_devices(), candidate: best.clone() });
    columns
}

/// The time of a step, by the lane that everything waits for.
fn bars(text: &mut String, columns: &[Column]) {
    let axis = Linear::new(
        columns.iter().map(|column| column.candidate.forecast.step_us).fold(0.0, f64::max),
    );
    let ticks: Vec<_> = axis.ticks.iter().map(|&us| (axis.place(us), us)).collect();
    frame(text, LEFT, "microseconds a step, by the lane that is waited for", &ticks);
    devices(text, LEFT, columns, &|index| (index as f64 + 0.5) / columns.len() as f64);
    let slot = WIDTH / columns.len() as f64;
    for (index, column) in columns.iter().enumerate() {
        let forecast = &column.candidate.forecast;
        let mut y = TOP + HEIGHT;
        let mut bar = |us: f64, colour: &str, name: &str| {
            let height = axis.place(us) * HEIGHT;
            y -= height;
            let x = LEFT + slot * (index as f64 + 0.2);
            let _ = writeln!(
                text,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" \
                 fill=\"{colour}\"><title>{name}: {us:.0} us</title></rect>",
                slot * 0.6
            );
        };
        let mut rest = forecast.step_us;
        for lane in Lane::ALL {
            let of_lane = forecast.stages.iter().filter(|stage| stage.lane == lane.name());
            let us: f64 = of_lane.map(|stage| stage.critical_us).sum();
            rest -= us;
            bar(us, lane_colour(lane), lane.name());
        }
        if rest > 1e-3 {
            bar(rest, "#ccc", "waiting");
        }
        let x = LEFT + slot * (index as f64 + 0.5);
        let _ = writeln!(
            text,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0}</text>",
            y - 4.0,
            forecast.step_us
        );
    }
    for (index, lane) in Lane::ALL.into_iter().enumerate() {
        let x = LEFT + 250.0 + index as f64 * 62.0;
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"28\" width=\"10\" height=\"10\" fill=\"{}\"/><text x=\"{:.0}\" \
             y=\"37\">{}</text>",
            lane_colour(lane),
            x + 14.0,
            lane.name()
        );
    }
}

/// Samples per second against as many times those of the first column. Both axes are logarithmic:
/// in proportion is a straight line.
fn rates(text: &mut String, columns: &[Column]) {
    let rate = |column: &Column| column.candidate.forecast.samples_per_s / 1e6;
    let ideal =
        |column: &Column| rate(&columns[0]) * column.devices as f64 / columns[0].devices as f64;
    let across = Logarithmic::new(columns.iter().map(|column| column.devices as f64), 2.0);
    let up = Logarithmic::new(columns.iter().flat_map(|column| [rate(column), ideal(column)]), 2.0);
    let ticks: Vec<_> = up.ticks(2.0).into_iter().map(|rate| (up.place(rate), rate)).collect();
    frame(text, RIGHT_PANEL, "million samples a second; dashed: in proportion to devices", &ticks);
    let part = |index: usize| 0.05 + 0.9 * across.place(columns[index].devices as f64);
    devices(text, RIGHT_PANEL, columns, &part);
    let at = |index: usize, value: f64| {
        (RIGHT_PANEL + WIDTH * part(index), TOP + HEIGHT - up.place(value) * HEIGHT)
    };
    let mut line = |of: &dyn Fn(&Column) -> f64, style: &str| {
        let points: Vec<String> = columns
            .iter()
            .enumerate()
            .map(|(index, column)| at(index, of(column)))
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(text, "<polyline points=\"{}\" fill=\"none\" {style}/>", points.join(" "));
    };
    line(&ideal, "stroke=\"#999\" stroke-dasharray=\"4 3\"");
    line(&rate, "stroke=\"#0072b2\" stroke-width=\"2\"");
    for (index, column) in columns.iter().enumerate() {
        let (x, y) = at(index, rate(column));
        let _ = writeln!(
            text,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"#0072b2\"/><text x=\"{x:.1}\" \
             y=\"{:.1}\" text-anchor=\"middle\">{:.1}</text>",
            y + 16.0,
            rate(column)
        );
    }
}

/// A panel with its title and the values of its upright axis: where each lies, 0 to 1, and what it
/// is.
fn frame(text: &mut String, left: f64, title: &str, ticks: &[(f64, f64)]) {
    let bottom = TOP + HEIGHT;
    let _ = writeln!(
        text,
        "<text x=\"{left}\" y=\"{:.0}\" fill=\"#333\">{title}</text><rect x=\"{left}\" y=\"{TOP}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#999\"/><text x=\"{:.0}\" \
         y=\"{:.0}\" text-anchor=\"middle\">devices</text>",
        TOP - 8.0,
        left + WIDTH / 2.0,
        bottom + 34.0
    );
    for (part, value) in ticks {
        let y = bottom - part * HEIGHT;
        let _ = writeln!(
            text,
            "<line x1=\"{left}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#eee\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{value}</text>",
            left + WIDTH,
            left - 5.0,
            y + 4.0
        );
    }
}

/// The numbers of devices below a panel, `part` of its width from its left edge.
fn devices(text: &mut String, left: f64, columns: &[Column], part: &dyn Fn(usize) -> f64) {
    for (index, column) in columns.iter().enumerate() {
        let (x, name) =
            (left + WIDTH * part(index), column.candidate.forecast.layout.strategy.short());
        let _ = writeln!(
            text,
            "<text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}<title>{name}</title></text>",
            TOP + HEIGHT + 15.0,
            column.devices
        );
    }
}

/// Which device holds how much of each table: the darker, the more of it.
fn map(text: &mut String, placing: &Placing<'_>, best: &Candidate, top: f64) {
    let devices = placing.cluster.num_devices();
    let shown = devices.min(MOST_DEVICES);
    let _ = writeln!(
        text,
        "<text x=\"{LEFT}\" y=\"{:.0}\" fill=\"#333\">part of each table on devices 0 to {}</text>",
        top - 8.0,
        shown - 1
    );
    scale(text, LEFT + 300.0, top - 18.0);
    let places = placing.workload.tables.iter().zip(&best.forecast.layout.places);
    for (row, (table, place)) in places.take(MOST_TABLES).enumerate() {
        let y = top + row as f64 * CELL;
        let _ = writeln!(
            text,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"9\">{}</text>",
            LEFT - 6.0,
            y + 9.0,
            table.name
        );
        for device in 0..shown {
            let part = part_on(*place, table.rows, device, devices);
            if part > 0.0 {
                let x = LEFT + device as f64 * CELL;
                let _ = writeln!(
                    text,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{0:.0}\" height=\"{0:.0}\" \
                     fill=\"#0072b2\" fill-opacity=\"{1:.2}\"/>",
                    CELL - 1.0,
                    opacity(part)
                );
            }
        }
    }
}

/// How dark a part of a table is drawn.
fn opacity(part: f64) -> f64 {
    0.15 + 0.85 * part
}

/// What the map's shades mean.
fn scale(text: &mut String, left: f64, y: f64) {
    for (index, percent) in [1_u32, 25, 50, 75, 100].into_iter().enumerate() {
        let x = left + index as f64 * 52.0;
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{CELL}\" height=\"{CELL}\" fill=\"#0072b2\" \
             fill-opacity=\"{:.2}\"/><text x=\"{:.1}\" y=\"{:.1}\" font-size=\"9\">{percent} \
             %</text>",
            opacity(f64::from(percent) / 100.0),
            x + CELL + 3.0,
            y + 9.0
        );
    }
}

fn part_on(place: Place, rows: u64, device: usize, devices: usize) -> f64 {
    let divided = 1.0 / devices as f64;
    match place {
        Place::DataParallel => 1.0,
        Place::RowWise => divided,
        Place::Hybrid { frequent_rows } => {
            let part = frequent_rows as f64 / rows as f64;
            part + (1.0 - part) * divided
        }
        Place::TableWise { device: own } => f64::from(u8::from(own == device)),
        Place::ColumnWise { first, parts } if (first..first + parts).contains(&device) => {
            1.0 / parts as f64
        }
        Place::ColumnWise { .. } => 0.0,
    }
}
