//! Lists of rows that ranks have for each other, and where they and their vectors lie.

use crate::error::{EmbeddingError, Result};

/// Lists of rows between this rank and its peers, packed by peer, then by table.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// Peers × tables.
    pub(super) counts: Vec<u32>,
    /// Per peer.
    pub(super) totals: Vec<usize>,
    /// Per peer, elements of the vectors that belong to the rows.
    pub(super) elements: Vec<usize>,
    /// Peers × tables: first row of each list, and one more.
    pub(super) first_row: Vec<usize>,
    /// Peers × tables: first element of each list's vectors, and one more.
    pub(super) first_element: Vec<usize>,
    pub(super) rows: Vec<u64>,
    /// Most rows of one list, per table.
    pub(super) capacities: Vec<usize>,
}

impl Lists {
    pub(super) fn new(num_peers: usize, capacities: Vec<usize>, max_rows: usize) -> Self {
        let lists = num_peers * capacities.len();
        Self {
            counts: vec![0; lists],
            totals: vec![0; num_peers],
            elements: vec![0; num_peers],
            first_row: vec![0; lists + 1],
            first_element: vec![0; lists + 1],
            rows: vec![0; max_rows],
            capacities,
        }
    }

    /// Works out totals and positions of rows from the counts; on an error they stay as they were.
    pub(super) fn lay_out(&mut self, names: &[String]) -> Result<()> {
        let tables = self.capacities.len();
        for (list, &found) in self.counts.iter().enumerate() {
            let (name, most) = (&names[list % tables], self.capacities[list % tables]);
            EmbeddingError::check_capacity(name, "requested rows", found as usize, most)?;
        }
        let mut row = 0;
        for peer in 0..self.totals.len() {
            let before = row;
            for list in peer * tables..(peer + 1) * tables {
                self.first_row[list] = row;
                row += self.counts[list] as usize;
            }
            self.totals[peer] = row - before;
        }
        self.first_row[self.counts.len()] = row;
        Ok(())
    }

    /// The same for the vectors, once rows are laid out: `elements` says how many elements belong
    /// to a list, which has so many rows.
    pub(super) fn lay_out_vectors(&mut self, elements: impl Fn(usize, usize) -> usize) {
        let (tables, mut element) = (self.capacities.len(), 0);
        for peer in 0..self.totals.len() {
            let before = element;
            for list in peer * tables..(peer + 1) * tables {
                self.first_element[list] = element;
                element += elements(list, self.first_row[list + 1] - self.first_row[list]);
            }
            self.elements[peer] = element - before;
        }
        self.first_element[self.counts.len()] = element;
    }

    /// Forgets all rows.
    pub(super) fn clear(&mut self) {
        self.counts.fill(0);
        self.totals.fill(0);
        self.elements.fill(0);
        self.first_row.fill(0);
        self.first_element.fill(0);
    }

    /// Rows of the longest list.
    pub(super) fn longest(&self) -> usize {
        self.first_row.windows(2).map(|bounds| bounds[1] - bounds[0]).max().unwrap_or(0)
    }

    pub(super) fn list(&self, peer: usize, table: usize) -> &[u64] {
        // As it was laid out: counts may belong to the next batch already.
        let list = peer * self.capacities.len() + table;
        &self.rows[self.first_row[list]..self.first_row[list + 1]]
    }

    pub(super) fn first_element(&self, peer: usize, table: usize) -> usize {
        self.first_element[peer * self.capacities.len() + table]
    }

    pub(super) fn num_rows(&self) -> usize {
        self.totals.iter().sum()
    }

    pub(super) fn num_elements(&self) -> usize {
        self.elements.iter().sum()
    }
}
