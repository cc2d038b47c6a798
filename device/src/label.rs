//! What a sample teaches, in one number: its label, and how much it counts.
//!
//! | label | weight 1 | any other weight w | weight 0 |
//! |---|---|---|---|
//! | 1 | 1 | w | -0 |
//! | 0 | 0 | -w | -0 |
//!
//! So labels without weights are what they always are, and weights travel wherever labels do:
//! through readers, batches, shares of ranks and the memory of devices. `mlp/src/loss/loss.cu`
//! reads them by the same rule.

/// A label and a weight, which is finite and not negative, as one number.
pub fn weighted(is_positive: bool, weight: f32) -> f32 {
    debug_assert!(weight.is_finite() && weight >= 0.0, "a weight is 0 or more, found {weight}");
    match is_positive {
        _ if weight == 0.0 => -0.0,
        true => weight,
        false if weight == 1.0 => 0.0,
        false => -weight,
    }
}

/// Whether the label is 1, and the weight: what [`weighted`] was made of. The label of weight 0 is
/// not kept.
pub fn parts(label: f32) -> (bool, f32) {
    (label > 0.0, if label.to_bits() == 0 { 1.0 } else { label.abs() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_and_weights_of_one_are_plain_labels() {
        for is_positive in [false, true] {
            for weight in [f32::MIN_POSITIVE, 0.3, 1.0, 2.0, f32::MAX] {
                assert_eq!(parts(weighted(is_positive, weight)), (is_positive, weight));
            }
            let plain = f32::from(u8::from(is_positive));
            assert_eq!(weighted(is_positive, 1.0).to_bits(), plain.to_bits());
            assert_eq!(parts(weighted(is_positive, 0.0)), (false, 0.0));
        }
    }
}
