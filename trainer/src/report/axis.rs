//! Axes of pictures: where a value lies, and which values are named.

/// The values from 0 to `length` that an axis names, at most about `most` of them: multiples of 1,
/// 2 or 5 times a power of ten.
pub fn round_ticks(length: f64, most: usize) -> Vec<f64> {
    if !(length.is_finite() && length > 0.0) {
        return vec![0.0];
    }
    let least = length / most.max(1) as f64;
    let power = 10_f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|digit| digit * power)
        .into_iter()
        .find(|step| *step >= least * (1.0 - 1e-9));
    let step = step.unwrap_or(10.0 * power);
    (0..=(length / step * (1.0 + 1e-9)) as u32).map(|number| f64::from(number) * step).collect()
}

/// An axis from 0 to a round number, with some room above the highest value.
#[derive(Debug)]
pub struct Linear {
    pub ticks: Vec<f64>,
}

impl Linear {
    /// Holds values up to `highest`.
    pub fn new(highest: f64) -> Self {
        let mut ticks = round_ticks(highest, 6);
        let step = ticks.get(1).copied().unwrap_or(1.0);
        while ticks.last().is_some_and(|last| *last < highest * 1.05) {
            ticks.push(ticks.len() as f64 * step);
        }
        Self { ticks }
    }

    /// 0 at the begin, 1 at the end.
    pub fn place(&self, value: f64) -> f64 {
        value / self.ticks.last().copied().filter(|last| *last > 0.0).unwrap_or(1.0)
    }
}

/// An axis between two round numbers.
#[derive(Debug)]
pub struct Interval {
    /// The values that are named: the first and the last are its ends.
    pub ticks: Vec<f64>,
}

impl Interval {
    /// Holds all `values` that are finite, with about `most` names at most.
    pub fn new(values: impl Iterator<Item = f64>, most: usize) -> Self {
        let finite = values.filter(|value| value.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = match low < high {
            true => (low, high),
            // One value, or none: it has room on both sides.
            false if low == high => {
                let room = if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
                (low - room, high + room)
            }
            false => (0.0, 1.0),
        };
        let step = round_ticks(high - low, most).get(1).copied().unwrap_or(high - low);
        let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
        let ticks = (0..=(last - first) as u32).map(|at| (first + f64::from(at)) * step);
        Self { ticks: ticks.collect() }
    }

    pub fn low(&self) -> f64 {
        self.ticks.first().copied().unwrap_or(0.0)
    }

    pub fn high(&self) -> f64 {
        self.ticks.last().copied().unwrap_or(1.0)
    }

    /// From one named value to the next.
    pub fn step(&self) -> f64 {
        (self.high() - self.low()) / (self.ticks.len().max(2) - 1) as f64
    }

    /// 0 at the begin, 1 at the end.
    pub fn place(&self, value: f64) -> f64 {
        (value - self.low()) / (self.high() - self.low())
    }
}

#[derive(Debug)]
pub struct Logarithmic {
    from: f64,
    to: f64,
}

impl Logarithmic {
    /// Holds all values, from a power of `base` to one.
    pub fn new(values: impl Iterator<Item = f64>, base: f64) -> Self {
        let usable = values.filter(|value| value.is_finite() && *value > 0.0);
        let (least, most) =
            usable.fold((f64::INFINITY, 0.0_f64), |(a, b), value| (a.min(value), b.max(value)));
        if least > most {
            return Self { from: 1.0, to: base };
        }
        let from = base.powf((least.ln() / base.ln() + 1e-9).floor());
        let to = base.powf((most.ln() / base.ln() - 1e-9).ceil());
        Self { from, to: if to > from { to } else { from * base } }
    }

    /// 0 at the begin, 1 at the end.
    pub fn place(&self, value: f64) -> f64 {
        (value / self.from).ln() / (self.to / self.from).ln()
    }

    /// Powers of `base`, at most about eight.
    pub fn ticks(&self, base: f64) -> Vec<f64> {
        let steps = ((self.to / self.from).ln() / base.ln()).round() as i32;
        let every = (steps / 8 + 1).max(1);
        (0..=steps).step_by(every as usize).map(|step| self.from * base.powi(step)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_their_values_between_powers() {
        let axis = Logarithmic::new([3.0, 250.0].into_iter(), 10.0);
        assert!((axis.from - 1.0).abs() < 1e-9 && (axis.to - 1000.0).abs() < 1e-6);
        assert_eq!(axis.ticks(10.0).len(), 4);
        assert!((axis.place(1.0)).abs() < 1e-9 && (axis.place(1000.0) - 1.0).abs() < 1e-9);
        let one = Logarithmic::new([1024.0].into_iter(), 2.0);
        assert!(one.to > one.from, "one size has a width, too");
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(round_ticks(573.0, 10), [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]);
        assert_eq!(round_ticks(100.0, 5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(round_ticks(0.0, 5), [0.0]);
        for length in [1e-3, 0.7, 9.99, 57.3, 5120.0, 1e9] {
            let ticks = round_ticks(length, 8);
            assert!(
                (4..=9).contains(&ticks.len()) && ticks[ticks.len() - 1] <= length * 1.001,
                "{ticks:?}"
            );
        }
    }

    #[test]
    fn an_interval_ends_at_round_numbers_around_its_values() {
        let of = |values: &[f64]| Interval::new(values.iter().copied(), 5);
        let ticks = |values: &[f64]| {
            of(values).ticks.iter().map(|tick| (tick * 1e6).round() / 1e6).collect::<Vec<_>>()
        };
        assert_eq!(ticks(&[0.731, 0.764]), [0.73, 0.74, 0.75, 0.76, 0.77]);
        assert_eq!(ticks(&[-3.0, f64::NAN, 12.0]), [-5.0, 0.0, 5.0, 10.0, 15.0]);
        for values in [&[0.5][..], &[0.0], &[], &[1e-12, 2e-12], &[4e9, 5e9, f64::INFINITY]] {
            let axis = of(values);
            let inside = values.iter().filter(|value| value.is_finite());
            assert!(inside.clone().all(|&value| (-1e-6..=1.000_001).contains(&axis.place(value))));
            assert!((2..9).contains(&axis.ticks.len()) && axis.low() < axis.high(), "{axis:?}");
        }
    }

    #[test]
    fn there_is_room_above_the_highest_value() {
        for highest in [5120.0, 5000.0, 1.0, 0.0] {
            let axis = Linear::new(highest);
            assert!(
                (0.5..0.96).contains(&axis.place(highest)) || highest == 0.0,
                "{highest}: {axis:?}"
            );
        }
    }
}
