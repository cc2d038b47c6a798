//! The tables of `docs/scaling.md`, as Markdown: a test compares them with the page.

use crate::choices::Chosen;
use crate::forecast::Forecast;
use crate::published::{Checked, Model};
use std::fmt::Write as _;

/// Published points, which are fitted, and how far the others are off.
pub fn published(checked: &[Checked]) -> String {
    let mut text = String::from(
        "| model | system | devices | batch | round | by | published us | predicted us | error \
         | |\n\
         |---|---|---:|---:|---|---|---:|---:|---:|---|\n",
    );
    for one in checked {
        let point = &one.point;
        let model = if point.model == Model::Dlrm { "DLRM" } else { "DCNv2" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {model} | {} | {} | {} | {} | {} | {:.0} | {:.0} | {:+.1} % | {} |",
            point.cluster,
            point.nodes * point.devices_per_node,
            point.batch_size,
            point.round,
            point.submitter,
            point.us,
            one.predicted_us,
            percent(one.error()),
            point.role.name()
        );
    }
    text
}

/// Hundredths to one decimal place; nothing is never "-0.0".
pub fn percent(share: f64) -> f64 {
    (share * 1000.0).round() / 10.0 + 0.0
}

/// What each choice changes.
pub fn choices(title: &str, chosen: &[Chosen]) -> String {
    let mut text = format!("| {title} | us a step | change |\n|---|---:|---:|\n");
    for (index, one) in chosen.iter().enumerate() {
        // Nothing lost is nothing gained: no "-0".
        let whole = one.change_us.round() + 0.0;
        let change = if index == 0 { String::new() } else { format!("{whole:+.0}") };
        let _ = writeln!(text, "| {} | {:.0} | {change} |", one.what, one.step_us);
    }
    text
}

/// The stages that a step waits for, in the order in which they run.
pub fn critical_path(title: &str, forecast: &Forecast) -> String {
    let mut text =
        format!("| {title} | lane | takes, us | of the step, us |\n|---|---|---:|---:|\n");
    for stage in forecast.stages.iter().filter(|stage| stage.critical_us >= 0.5) {
        let (name, lane) = (stage.name, stage.lane);
        let _ =
            writeln!(text, "| `{name}` | {lane} | {:.0} | {:.0} |", stage.us, stage.critical_us);
    }
    let _ = writeln!(text, "| all | | | {:.0} |", forecast.step_us);
    text
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn nothing_has_no_sign() {
        let shown =
            [-0.000_4, 0.0, -0.000_6, 0.123_44].map(|share| format!("{:.1}", percent(share)));
        assert_eq!(shown, ["0.0", "0.0", "-0.1", "12.3"]);
    }
}
