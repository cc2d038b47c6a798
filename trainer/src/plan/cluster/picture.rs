//! Pictures of plans: how a step's parts and the samples per second change with the number of devices, and what each device holds.

use super::description::ClusterDescription;
use super::placement::{Place, Placing};
use super::practice::Practice;
use super::search::{Candidate, search};
use super::workload::Workload;
use crate::lanes::Lane;
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

/// The picture of `best` and of the best plans on one node, two, four, … as many as the cluster has.
pub fn svg(
    workload: &Workload,
    cluster: &ClusterDescription,
    practice: &Practice,
    best: &Candidate,
) -> String {
    let columns = columns(workload, cluster, practice, best);
    let map_top = TOP + HEIGHT + 90.0;
    let tables = workload.tables.len().min(MOST_TABLES);
    let height = map_top + tables as f64 * CELL + 30.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1060 {height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"14\" font-weight=\"bold\">{}, batch {}</text>\n",
        cluster.name, best.batch_size
    );
    bars(&mut text, &columns);
    rates(&mut text, &columns);
    map(&mut text, workload, cluster, best, map_top);
    text + "</svg>\n"
}

fn columns(
    workload: &Workload,
    cluster: &ClusterDescription,
    practice: &Practice,
    best: &Candidate,
) -> Vec<Column> {
    let mut nodes = 1;
    let mut columns = Vec::new();
    while nodes < cluster.nodes {
        let part = ClusterDescription { nodes, ..cluster.clone() };
        let found = search(workload, &part, practice);
        columns.extend(
            found
                .best()
                .map(|candidate| Column { devices: part.num_devices(), candidate: candidate.clone() }),
        );
        nodes *= 2;
    }
    columns.push(Column { devices: cluster.num_devices(), candidate: best.clone() });
    columns
}

/// The time of a step, by the lane that everything waits for.
fn bars(text: &mut String, columns: &[Column]) {
    let most = columns.iter().map(|column| column.candidate.forecast.step_us).fold(0.0, f64::max);
    frame(text, LEFT, "microseconds a step, by the lane that is waited for", columns);
    let slot = WIDTH / columns.len() as f64;
    for (index, column) in columns.iter().enumerate() {
        let forecast = &column.candidate.forecast;
        let mut y = TOP + HEIGHT;
        let mut bar = |us: f64, colour: &str, name: &str| {
            let height = us / most * HEIGHT;
            y -= height;
            let x = LEFT + slot * (index as f64 + 0.2);
            let _ = writeln!(
                text,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{colour}\"><title>{name}: {us:.0} us</title></rect>",
                slot * 0.6
            );
        };
        let mut rest = forecast.step_us;
        for lane in Lane::ALL {
            let of_lane = forecast.stages.iter().filter(|stage| stage.lane == lane.name());
            let us: f64 = of_lane.map(|stage| stage.critical_us).sum();
            rest -= us;
            bar(us, colour(lane), lane.name());
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
            "<rect x=\"{x}\" y=\"28\" width=\"10\" height=\"10\" fill=\"{}\"/><text x=\"{:.0}\" y=\"37\">{}</text>",
            colour(lane),
            x + 14.0,
            lane.name()
        );
    }
}

/// Samples per second against as many times those of the first column.
fn rates(text: &mut String, columns: &[Column]) {
    frame(text, RIGHT_PANEL, "million samples a second; dashed: in proportion to devices", columns);
    let rate = |column: &Column| column.candidate.forecast.samples_per_s / 1e6;
    let ideal = |column: &Column| rate(&columns[0]) * column.devices as f64 / columns[0].devices as f64;
    let most = columns.iter().map(|column| rate(column).max(ideal(column))).fold(0.0, f64::max);
    let slot = WIDTH / columns.len() as f64;
    let at = |index: usize, value: f64| {
        (RIGHT_PANEL + slot * (index as f64 + 0.5), TOP + HEIGHT - value / most * HEIGHT)
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
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"#0072b2\"/><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.1}</text>",
            y + 16.0,
            rate(column)
        );
    }
}

fn frame(text: &mut String, left: f64, title: &str, columns: &[Column]) {
    let bottom = TOP + HEIGHT;
    let _ = writeln!(
        text,
        "<text x=\"{left}\" y=\"{:.0}\" fill=\"#333\">{title}</text>\
         <rect x=\"{left}\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#999\"/>\
         <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">devices</text>",
        TOP - 8.0,
        left + WIDTH / 2.0,
        bottom + 34.0
    );
    let slot = WIDTH / columns.len() as f64;
    for (index, column) in columns.iter().enumerate() {
        let x = left + slot * (index as f64 + 0.5);
        let (y, name) = (bottom + 15.0, column.candidate.forecast.layout.strategy.short());
        let _ = writeln!(
            text,
            "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}<title>{name}</title></text>",
            column.devices
        );
    }
}

/// Which device holds how much of each table: the darker, the more of it.
fn map(text: &mut String, workload: &Workload, cluster: &ClusterDescription, best: &Candidate, top: f64) {
    let devices = cluster.num_devices();
    let shown = devices.min(MOST_DEVICES);
    let _ = writeln!(
        text,
        "<text x=\"{LEFT}\" y=\"{:.0}\" fill=\"#333\">part of each table on devices 0 to {}</text>",
        top - 8.0,
        shown - 1
    );
    let places = workload.tables.iter().zip(&best.forecast.layout.places);
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
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{0:.0}\" height=\"{0:.0}\" fill=\"#0072b2\" fill-opacity=\"{1:.2}\"/>",
                    CELL - 1.0,
                    0.15 + 0.85 * part
                );
            }
        }
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
        Place::ColumnWise { first, parts } if (first..first + parts).contains(&device) => 1.0 / parts as f64,
        Place::ColumnWise { .. } => 0.0,
    }
}

fn colour(lane: Lane) -> &'static str {
    crate::trace::lane_colour(lane)
}

impl Placing<'_> {
    /// The picture of this plan.
    pub fn picture(&self, best: &Candidate) -> String {
        svg(self.workload, self.cluster, self.practice, best)
    }
}
