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
