//! Receive requests: the owner's side of a route. What sources request is merged into unique
//! local rows.

use super::options::{Deduplicate, PoolAt};
use super::partition::{Code, Owner, Partition};
use super::route::HybridRoute;
use super::set::{HybridSet, Location};
use crate::error::{EmbeddingError, Result};
use crate::ids::{Ids, bags_of, check_range, num_samples};
use crate::route::all_below;
use crate::table::{Keys, TableSpec};
use headlong_device::Stream;

impl HybridSet {
    /// Merges what the sources request, which has arrived in [`HybridRoute::id_exchange`]'s
    /// buffers, or in [`HybridRoute::id_slots`]. Nothing on a single rank.
    ///
    /// # Errors
    /// [`EmbeddingError::RowNotOwned`]: a source requests rows that this owner does not keep.
    ///
    /// # Panics
    /// When the route is another set's.
    pub fn receive_requests(&self, stream: &Stream, route: &mut HybridRoute) -> Result<()> {
        match &self.at {
            Location::Local(_) => return Ok(()),
            Location::Device(device) => {
                device.receive_requests(stream.cuda_body(), route.device());
                return Ok(());
            }
            Location::Host => self.check_route(route),
        }
        self.receive_bags(stream, route)?;
        let HybridRoute { received, merges, .. } = route;
        stream.pool().chunks_mut(merges, 1, |table, merge| {
            if self.pool_at[table] == PoolAt::Owner {
                return;
            }
            merge[0].fill(|source| {
                (received.list(source, table), received.first_element(source, table))
            });
        });
        let refused =
            merges.iter().enumerate().find_map(|(table, merge)| Some((table, merge.refused()?)));
        let Some((table, (source_index, row))) = refused else { return Ok(()) };
        let rows = merges[table].local_rows();
        route.clear_received();
        Err(EmbeddingError::RowNotOwned {
            table: self.specs[table].name.clone(),
            source_index,
            row,
            rows,
        })
    }

    /// As the exchange of ids and [`Self::receive_requests`], from the slices of all ranks in rank
    /// order, where this rank knows them: the same result, and nothing travels. It reads every id
    /// of the batch to find those that belong here. Under [`Deduplicate::Node`] this is only the
    /// owner's side: proxies still merge what their peers send them. For tables in the memory of
    /// the host.
    ///
    /// # Errors
    /// [`EmbeddingError::IdOutOfRange`], slices of another shape, [`EmbeddingError::Capacity`].
    ///
    /// # Panics
    /// When there is not one slice per owner, bags are pooled at the owner, and as
    /// [`Self::receive_requests`].
    pub fn receive_known_requests(
        &self,
        stream: &Stream,
        route: &mut HybridRoute,
        slices: &[&dyn Ids],
    ) -> Result<()> {
        self.check_route(route);
        assert_eq!(slices.len(), self.partition.num_owners(), "one slice per rank");
        assert!(!self.pools_at_owner(), "ids of bags that are pooled at the owner are exchanged");
        self.check_slices(route, slices)?;
        let ranks = slices.len() / route.received.totals.len();
        let unique = self.deduplicate != Deduplicate::Off;
        let partition = &*self.partition;
        let HybridRoute { received, merges, names, .. } = route;
        let num_tables = merges.len();
        stream.pool().chunks_mut(merges, 1, |table, merge| {
            let keys = self.specs[table].keys;
            merge[0].fill_known(ranks, unique, |rank, body| {
                let rows = slices[rank].table(table).values;
                each_row_of(partition, self.owner, (table, keys), rows, body);
            });
        });
        for (list, count) in received.counts.iter_mut().enumerate() {
            *count = merges[list % num_tables].count_of(list / num_tables);
        }
        received.lay_out(names)?;
        received.lay_out_vectors(|list, rows| rows * merges[list % num_tables].dim());
        for (table, merge) in merges.iter_mut().enumerate() {
            for source in 0..received.totals.len() {
                merge.set_base(source, received.first_element(source, table));
            }
            let first_row = &received.first_row;
            merge.for_each_request(|source, position, row| {
                received.rows[first_row[source * num_tables + table] + position] = row;
            });
        }
        Ok(())
    }

    fn check_slices(&self, route: &HybridRoute, slices: &[&dyn Ids]) -> Result<()> {
        for slice in slices {
            num_samples(&self.specs, *slice)?;
            for (table, spec) in self.specs.iter().enumerate() {
                let (found, most) =
                    (slice.table(table).values.len(), route.tables[table].max_ids());
                EmbeddingError::check_capacity(&spec.name, "ids", found, most)?;
            }
            let in_range = |(table, spec): (usize, &TableSpec)| {
                spec.keys == Keys::RawIds || all_below(slice.table(table).values, spec.rows)
            };
            if !self.specs.iter().enumerate().all(in_range) {
                check_range(&self.specs, &|table| bags_of(*slice, table))?;
            }
        }
        Ok(())
    }
}

/// Rows looked at together: their codes lie on the stack.
const ROWS_AT_ONCE: usize = 256;

/// Calls `body` with runs of the local rows (or raw ids) of all ids among `rows` that belong to
/// `owner`, in their order.
fn each_row_of(
    partition: &Partition,
    owner: Owner,
    (table, keys): (usize, Keys),
    rows: &[u64],
    body: &mut dyn FnMut(&[u64]),
) {
    if partition.local_rows(table, owner) == 0 {
        return;
    }
    let mut codes = [Code::default(); ROWS_AT_ONCE];
    let mut found = [0; ROWS_AT_ONCE];
    for rows in rows.chunks(ROWS_AT_ONCE) {
        partition.classify_rows(table, rows, &mut codes[..rows.len()]);
        let mut count = 0;
        // Note: no branch on whose row it is, which would be mispredicted for every other one.
        for (&row, code) in rows.iter().zip(&codes) {
            found[count] = if keys == Keys::RawIds { row } else { code.local_row() };
            count += usize::from(!code.is_frequent() & (code.owner() == owner.0));
        }
        body(&found[..count]);
    }
}
