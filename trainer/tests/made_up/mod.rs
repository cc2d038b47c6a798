//! Batches that are made up from a seed.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use headlong_device::rng::CounterRng;
use headlong_embedding::TableSpec;
use headlong_embedding::hybrid::{Owner, Partition, TablePlacement};
use headlong_reader::{Batch, Jagged};

/// What a made-up batch looks like.
#[derive(Debug, Clone, Copy)]
pub struct MadeUp<'a> {
    pub seed: u64,
    pub rows: &'a [u64],
    pub num_dense: usize,
}

impl MadeUp<'_> {
    /// Batch number `number`: bags of none to three ids, few of them frequent, many of them the
    /// same.
    pub fn bags(&self, number: u64, samples: usize) -> Batch {
        let random = CounterRng::new(self.seed, number);
        let mut counter = 0;
        let mut bits = || {
            counter += 1;
            u64::from(random.bits(counter)[0])
        };
        let sparse = self.rows.iter().map(|&rows| {
            let mut bags = Jagged { values: Vec::new(), offsets: vec![0].into() };
            for _ in 0..samples {
                for _ in 0..[1, 1, 0, 3][(bits() % 4) as usize] {
                    bags.values.push(if bits() % 2 == 0 {
                        bits() % rows.min(3)
                    } else {
                        bits() % rows
                    });
                }
                bags.offsets.push(bags.values.len() as u32);
            }
            bags
        });
        let sparse = sparse.collect();
        Batch {
            num_samples: samples,
            labels: (0..samples).map(|_| (bits() % 2) as f32).collect(),
            dense: (0..samples * self.num_dense)
                .map(|_| (bits() % 1000) as f32 / 500.0 - 1.0)
                .collect(),
            sparse,
            ..Batch::default()
        }
    }

    /// One id for each sample and table.
    pub fn one_hot(&self, samples: usize) -> Batch {
        let random = CounterRng::new(self.seed, 3);
        let ids = |(table, &rows): (usize, &u64)| Jagged {
            values: (0..samples)
                .map(|sample| {
                    (random.uniform((table * samples + sample) as u64) * rows as f32) as u64
                })
                .collect(),
            offsets: (0..=samples as u32).collect(),
        };
        let dense =
            (0..samples * self.num_dense).map(|index| random.uniform(1_000_000 + index as u64));
        Batch {
            num_samples: samples,
            labels: (0..samples).map(|sample| f32::from(sample % 3 == 0)).collect(),
            dense: dense.collect(),
            sparse: self.rows.iter().enumerate().map(ids).collect(),
            ..Batch::default()
        }
    }
}

/// Four tables: one replicated, one with one owner, the others split.
pub fn mixed(specs: &[TableSpec], ranks: usize) -> Partition {
    let last = Owner(ranks - 1);
    let placements = vec![
        TablePlacement::DataParallel,
        TablePlacement::RowWise {
            frequent: vec![3, 7, 0],
            placed: vec![(1, last), (39, Owner(0))],
        },
        TablePlacement::TableWise(last),
        TablePlacement::RowWise {
            frequent: (0..100).step_by(7).collect(),
            placed: vec![(1, Owner(0))],
        },
    ];
    Partition::new(specs, ranks, placements).unwrap()
}
