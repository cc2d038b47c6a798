//! A session in a program of one's own ends where the configuration says.

#![cfg(test)]

use crate::run_support::Place;
use headlong::config::Config;
use headlong::config::preset::preset;
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::report::Reporter;
use headlong::run::prepare::Prepared;
use headlong::run::session::{Session, Start};
use headlong::state::checkpoint::newest;
use headlong_embedding::Registry;

/// 1,500 rows in batches of 64 are 24 steps an epoch.
fn config(place: &Place) -> Config {
    let mut config = preset("criteo-hashed").unwrap();
    config.data.train = vec![place.train.clone().into()];
    config.synthetic.enabled = false;
    config.checkpoint.dir = Some(place.path("checkpoints"));
    let small = [
        "model.dim=8",
        "model.bottom=[16,8]",
        "model.top=[16,1]",
        "tables.rows=500",
        "train.batch_size=64",
    ];
    config.set_all(&small).unwrap();
    config.validate().unwrap();
    config
}

/// Steps until the session ends, but a hundred at most; the session is saved at the end.
fn steps(config: &Config, is_resumed: bool) -> u64 {
    let folder = config.checkpoint.dir.as_ref().unwrap();
    let checkpoint = if is_resumed { newest(folder).unwrap() } else { None };
    let start = checkpoint.as_ref().map_or(Start::Fresh, Start::Resume);
    let prepared = Prepared::new(config, checkpoint.as_ref(), 1, &Reporter::quiet(None)).unwrap();
    let registry = Registry::default();
    let group = RankGroup::build(config, &prepared.table_rows, RankGroupOptions::new(1, &registry))
        .unwrap();
    let data = prepared.session_data(config, 1).unwrap();
    let mut session = Session::open(config, group, data, &start).unwrap();
    for _ in 0..100 {
        if session.step().unwrap().is_none() {
            assert!(session.enqueue().unwrap().is_none(), "what has ended stays so");
            break;
        }
    }
    session.save(None).unwrap();
    session.steps()
}

#[test]
fn a_session_ends_after_the_steps_that_are_asked_for() {
    let place = Place::new("rows.txt");
    let mut config = config(&place);
    config.train.steps = Some(40);
    assert_eq!(steps(&config, false), 40);
    assert_eq!(steps(&config, true), 40, "nothing is left to do");
    config.train.steps = Some(55);
    assert_eq!(steps(&config, true), 55);
}

#[test]
fn a_session_ends_within_an_epoch() {
    let place = Place::new("rows.txt.gz");
    let mut config = config(&place);
    for (epochs, expected) in [(0.5, 12), (1.0, 24), (1.25, 24 + 6)] {
        config.train.epochs = epochs;
        assert_eq!(steps(&config, epochs > 0.5), expected, "{epochs} epochs");
    }
}
