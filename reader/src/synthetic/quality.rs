//! How well the best possible model does: the truth's own scores against the labels drawn from it.

pub(super) type Scored = (f64, u8);

/// The exact area under the ROC curve: the share of (click, no click) pairs in which the click has
/// the higher logit, ties counting one half. 0.5 where one of the two is absent.
pub(super) fn auc(scored: &mut [Scored]) -> f64 {
    scored.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut negatives_below, mut positives, mut wins) = (0.0, 0.0, 0.0);
    for tied in scored.chunk_by(|a, b| a.0 == b.0) {
        let tied_positives = tied.iter().filter(|scored| scored.1 == 1).count() as f64;
        let tied_negatives = tied.len() as f64 - tied_positives;
        wins += tied_positives * (negatives_below + tied_negatives / 2.0);
        negatives_below += tied_negatives;
        positives += tied_positives;
    }
    let pairs = positives * negatives_below;
    if pairs > 0.0 { wins / pairs } else { 0.5 }
}

/// The mean of `-ln p(label)`, in nats.
pub(super) fn log_loss(scored: &[Scored]) -> f64 {
    // ln(1 + e^x), without overflow for large x.
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let loss =
        |&(logit, label): &Scored| if label == 1 { softplus(-logit) } else { softplus(logit) };
    scored.iter().map(loss).sum::<f64>() / scored.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn area_by_hand() {
        assert_eq!(auc(&mut [(0.1, 0), (0.4, 0), (0.35, 1), (0.8, 1)]), 0.75);
        assert_eq!(auc(&mut [(1.0, 0), (1.0, 1)]), 0.5);
        assert_eq!(auc(&mut [(1.0, 1), (2.0, 1)]), 0.5);
    }

    #[test]
    fn loss_by_hand() {
        let ln2 = std::f64::consts::LN_2;
        assert!((log_loss(&[(0.0, 0), (0.0, 1)]) - ln2).abs() < 1e-15);
        assert!((log_loss(&[(800.0, 0)]) - 800.0).abs() < 1e-9);
    }
}
