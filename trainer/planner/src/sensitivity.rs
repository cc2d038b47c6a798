//! What more of something would buy.

use crate::description::ClusterDescription;
use crate::forecast::Forecast;
use crate::placement::Placing;
use serde::Serialize;

/// How much more.
const MORE: f64 = 1.2;

/// What a fifth more of one thing changes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sensitivity {
    pub what: &'static str,
    /// Part of the samples per second that it adds: 0.03 is 3 %.
    pub gain: f64,
}

type Change = fn(&mut ClusterDescription);

/// What there can be more of.
const CHANGES: [(&str, Change); 5] = [
    ("network between nodes", |cluster| cluster.between = cluster.between.scaled(MORE)),
    ("links inside nodes", |cluster| cluster.inside = cluster.inside.scaled(MORE)),
    ("matrix rate", |cluster| scale(&mut cluster.device.matrix_share, MORE)),
    ("memory bandwidth", |cluster| scale(&mut cluster.device.memory_gb_per_s, MORE)),
    ("speed of small operations", |cluster| {
        let (device, inside, between) =
            (&mut cluster.device, &mut cluster.inside, &mut cluster.between);
        for latency in [
            &mut device.kernel_us,
            &mut device.launch_us,
            &mut inside.latency_us,
            &mut inside.all_reduce_latency_us,
            &mut between.latency_us,
            &mut between.all_reduce_latency_us,
        ] {
            scale(latency, 1.0 / MORE);
        }
    }),
];

fn scale(value: &mut f64, factor: f64) {
    *value *= factor;
}

impl Placing<'_> {
    /// What a fifth more of each thing would buy this plan, most first.
    pub fn sensitivities(&self, forecast: &Forecast) -> Vec<Sensitivity> {
        let gain = |change: Change| {
            let mut cluster = self.cluster.clone();
            change(&mut cluster);
            let changed =
                Placing { cluster: &cluster, ..*self }.forecast_of(forecast.layout.clone());
            forecast.step_us / changed.step_us - 1.0
        };
        let mut all: Vec<_> = CHANGES
            .iter()
            .map(|&(what, change)| Sensitivity { what, gain: gain(change) })
            .collect();
        all.sort_by(|one, other| other.gain.total_cmp(&one.gain));
        all
    }
}
