//! Where the bags of tables become vectors: `comm.pool_at`, and `pool_at` of a `[[table]]`.

use super::validate::quoted;
use super::{
    Compress, Config, DeduplicateChoice, DeviceChoice, IdsChoice, PoolAtChoice, TableEntry,
};
use crate::error::{Error, Result};
use headlong_embedding::hybrid::PoolAt;
use headlong_embedding::hybrid::split::may_pool_at_owner;

impl Config {
    /// What is asked for of the table of `column`: what its entry says, else `comm.pool_at`, which
    /// is for bags of several ids. One id a sample is its row, wherever it is pooled.
    pub fn pool_at(&self, column: usize) -> PoolAtChoice {
        let of_all = match self.max_ids_per_sample(column) {
            0 | 1 => PoolAtChoice::Rank,
            _ => self.comm.pool_at,
        };
        self.table_entry(column).and_then(|entry| entry.pool_at).unwrap_or(of_all)
    }

    /// Whether that is left to what travels, and may come out as the owner.
    pub fn pools_by_cost(&self, column: usize) -> bool {
        // Asked last: the choices are those of all tables.
        let may = || {
            may_pool_at_owner(&self.table_spec(column, 1), self.placement_choices()[column]).is_ok()
        };
        self.pool_at(column) == PoolAtChoice::Auto
            && self.sum_blocks() > 1
            && self.compress_of_owners() == Compress::None
            && may()
    }

    /// Whether the bags of the table of `column` are pooled at the owner, or may be.
    pub fn may_pool_at_owner(&self, column: usize) -> bool {
        self.pool_at(column) == PoolAtChoice::Owner || self.pools_by_cost(column)
    }

    /// Where the bags of each table become vectors, with what is left to cost on the rank.
    pub fn pooled_at(&self) -> Vec<PoolAt> {
        let at = |column| match self.pool_at(column) {
            PoolAtChoice::Owner => PoolAt::Owner,
            PoolAtChoice::Rank | PoolAtChoice::Auto => PoolAt::Rank,
        };
        (0..self.data.num_sparse).map(at).collect()
    }

    /// Says of each table where its bags become vectors, in place of what was left to cost.
    pub fn decide_pooling(&mut self, pool_at: &[PoolAt]) {
        for (column, &at) in pool_at.iter().enumerate() {
            if self.pool_at(column) != PoolAtChoice::Auto {
                continue;
            }
            let decided = match at {
                PoolAt::Owner => PoolAtChoice::Owner,
                PoolAt::Rank => PoolAtChoice::Rank,
            };
            let name = format!("C{}", column + 1);
            match self.table.iter_mut().find(|entry| entry.name == name) {
                Some(entry) => entry.pool_at = Some(decided),
                None => self.table.push(TableEntry {
                    name,
                    pool_at: Some(decided),
                    ..TableEntry::default()
                }),
            }
        }
    }

    /// Refuses what owners cannot pool, and what does not go with it.
    pub(super) fn validate_pooling(&self) -> Result<()> {
        let columns = 0..self.data.num_sparse;
        let is_owner = |&column: &usize| self.pool_at(column) == PoolAtChoice::Owner;
        let owner = columns.clone().find(is_owner);
        let by_cost = columns.clone().find(|&column| self.pools_by_cost(column));
        owner.map_or(Ok(()), |column| self.check_owners(column))?;
        by_cost.map_or(Ok(()), |column| self.check_exchange_of_owners(column))?;
        let placements = self.placement_choices();
        for column in columns.filter(is_owner) {
            let placement = placements[column];
            if let Err(reason) = may_pool_at_owner(&self.table_spec(column, 1), placement) {
                let message = format!("table C{}: {reason}", column + 1);
                return Err(Error::config("pool_at = \"owner\"", message));
            }
        }
        let drift = self.hybrid.repartition_drift;
        let apart = match (self.run.eval_ranks, self.run.eval_processes) {
            (Some(_), _) => Some("run.eval_ranks"),
            (None, processes) => processes.map(|_| "run.eval_processes"),
        };
        match (owner.or(by_cost), by_cost) {
            (Some(column), _) if apart.is_some() => Err(Error::contradiction(
                self.pool_at_in_words(column),
                apart.unwrap_or_default(),
                "other ranks would add up rows in another order",
            )),
            (_, Some(column)) if drift > 0.0 => Err(Error::contradiction(
                self.pool_at_in_words(column),
                format!("hybrid.repartition_drift = {drift}"),
                "a sum keeps its shape while rows move: say \"rank\" or \"owner\"",
            )),
            _ => Ok(()),
        }
    }

    /// What does not go with bags that are pooled at the owner, as those of `column` are.
    fn check_owners(&self, column: usize) -> Result<()> {
        let setting = self.pool_at_in_words(column);
        if self.compress_of_owners() != Compress::None {
            let other = match self.comm.compress {
                Some(compress) => format!("comm.compress = {}", quoted(&compress)),
                None => format!("train.precision = {}", quoted(&self.train.precision)),
            };
            let reason = "between processors sums of owners travel as f32: say comm.compress = \
                          \"none\"";
            return Err(Error::contradiction(setting, other, reason));
        }
        self.check_exchange_of_owners(column)
    }

    /// What of an exchange does not go with bags that are pooled at the owner, or may be.
    fn check_exchange_of_owners(&self, column: usize) -> Result<()> {
        let (setting, comm) = (self.pool_at_in_words(column), &self.comm);
        let against = [
            (
                comm.deduplicate == DeduplicateChoice::Node,
                format!("comm.deduplicate = {}", quoted(&comm.deduplicate)),
                "nodes merge rows, and owners send sums of them",
            ),
            (
                comm.ids == IdsChoice::Known,
                format!("comm.ids = {}", quoted(&comm.ids)),
                "owners are sent the bags of each rank",
            ),
        ];
        match against.into_iter().find(|(against, ..)| *against) {
            Some((_, other, reason)) => Err(Error::contradiction(setting, other, reason)),
            None => Ok(()),
        }
    }

    /// What keeps owners from pooling bags: on a device sums of owners travel as rows do.
    fn compress_of_owners(&self) -> Compress {
        match self.run.device == DeviceChoice::Cuda {
            true => Compress::None,
            false => self.compress(),
        }
    }

    fn pool_at_in_words(&self, column: usize) -> String {
        let choice = quoted(&self.pool_at(column));
        match self.table_entry(column).and_then(|entry| entry.pool_at) {
            Some(_) => format!("table C{}: pool_at = {choice}", column + 1),
            None => format!("comm.pool_at = {choice}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_go_together_is_named() {
        let refused = |text: &str| {
            let bags = "[tables]\nmax_ids_per_sample = 3\n";
            let config = Config::from_toml(&format!("{bags}{text}"), "a.toml").unwrap();
            config.validate().unwrap_err().to_string()
        };
        let own = "[[table]]\nname = \"C2\"\npool_at = \"owner\"\n";
        let node = refused(&format!("[comm]\ndeduplicate = \"node\"\n{own}"));
        assert!(node.contains("table C2: pool_at") && node.contains("deduplicate"), "{node}");
        let known = refused("[comm]\npool_at = \"owner\"\nids = \"known\"\n");
        assert!(known.contains("comm.pool_at = \"owner\"") && known.contains("ids"), "{known}");
        let auto =
            refused("[comm]\npool_at = \"auto\"\nids = \"known\"\n[train]\nsum_blocks = 2\n");
        assert!(auto.contains("comm.pool_at = \"auto\"") && auto.contains("ids"), "{auto}");
        let apart = refused("[comm]\npool_at = \"owner\"\n[run]\neval_processes = 1\n");
        assert!(apart.contains("run.eval_processes"), "{apart}");
        let hashed = refused(
            "[comm]\npool_at = \"owner\"\n[[table]]\nname = \"C3\"\nkind = \"hashed\"\nrows = 9\n",
        );
        assert!(hashed.contains("C3") && hashed.contains("raw ids"), "{hashed}");
        let drift = refused(
            "[comm]\npool_at = \"auto\"\n[hybrid]\nrepartition_drift = 0.1\n\
             [train]\nsum_blocks = 2\n",
        );
        assert!(drift.contains("repartition_drift"), "{drift}");
        let bf16 = "[comm]\npool_at = \"owner\"\n[train]\nprecision = \"bf16\"\nsum_blocks = 2\n";
        assert!(refused(bf16).contains("compress"), "{}", refused(bf16));
        for narrow in ["bf16", "f16"] {
            let said = format!("compress = \"{narrow}\"");
            let error = refused(&format!("[comm]\npool_at = \"owner\"\n{said}\n"));
            assert!(error.contains(&format!("comm.{said}")), "{error}");
        }
    }

    #[test]
    fn what_was_left_to_cost_is_said_of_each_table() {
        let text = "[tables]\nmax_ids_per_sample = 3\n\n[comm]\npool_at = \"auto\"\n\n\
                    [[table]]\nname = \"C2\"\npool_at = \"rank\"\n";
        let mut config = Config::from_toml(text, "a.toml").unwrap();
        let mut decided = vec![PoolAt::Rank; config.data.num_sparse];
        (decided[1], decided[2]) = (PoolAt::Owner, PoolAt::Owner);
        config.decide_pooling(&decided);
        config.validate().unwrap();
        decided[1] = PoolAt::Rank;
        assert_eq!(config.pooled_at(), decided, "what was said stays");
        assert_eq!(Config::from_toml(&config.to_commented_toml(), "shown").unwrap(), config);
        config.tables.max_ids_per_sample = 1;
        config.comm.pool_at = PoolAtChoice::Owner;
        assert_eq!(config.pool_at(5), PoolAtChoice::Rank, "one id a sample is no bag");
    }
}
