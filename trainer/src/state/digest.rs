//! One short text for all weights and optimiser states.
//!
//! Two models have the same digest exactly when every weight and every state has the same bits (but
//! for a chance of about 2⁻⁶⁴). The digest of a tensor is a *sum* over its rows of a hash of (row,
//! row index), so rows may be visited in any order and by anyone: it does not depend on ranks,
//! shards, or the partition of a table.
//!
//! ```text
//! row     = XXH3-128(XXH3-128(bytes of the row, little-endian) ‖ row index as u64)
//! tensor  = XXH3-128(name ‖ 0x00 ‖ axes of the shape as u64 … ‖ Σ rows mod 2¹²⁸)
//! digest  = XXH3-128(tensors in the order of their names)
//! ```

use crate::state::checkpoint::{Cause, CheckpointError, CheckpointSource, Peers, Portion, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_128;
use zerocopy::IntoBytes as _;

/// Rows are asked for in portions of about this size.
pub(crate) const CHUNK_BYTES: u64 = 8 << 20;

/// The digest of everything `source` holds: 32 hexadecimal digits. Rows stream through one buffer
/// of 8 MiB. Where they lie with several processes, all call it, and each takes its share of them.
pub fn weights_digest(source: &dyn CheckpointSource) -> Result<String, CheckpointError> {
    let mut digest = WeightsDigest::default();
    let mut values = Vec::new();
    let mut bytes = Vec::new();
    let tensors = source.layout().tensors()?;
    let mut portions = tensors.iter().flat_map(|tensor| {
        let Tensor { id, width, rows, .. } = *tensor;
        chunks(width, 0, rows)
            .map(move |(first_row, rows)| (tensor, Portion { tensor: id, first_row, rows, width }))
    });
    let processes = source.processes();
    let (own, count) = processes.map_or((0, 1), |all| (all.own(), all.count()));
    loop {
        let round: Vec<_> = portions.by_ref().take(count).collect();
        if round.is_empty() {
            break;
        }
        let mut wanted: Vec<_> = round.iter().map(|(_, portion)| Some(*portion)).collect();
        wanted.resize(count, None);
        if let Some(processes) = processes {
            processes.bring(&wanted, &mut values).map_err(exchange_error("its rows"))?;
        }
        let Some(&(tensor, portion)) = round.get(own) else { continue };
        if processes.is_none() {
            values.resize(portion.len(), 0.0);
            let read = source.read(tensor.id, portion.first_row, &mut values);
            read.map_err(read_error(&tensor.name))?;
        }
        to_bytes(&values, &mut bytes);
        digest.add(&tensor.name, tensor.width, portion.first_row, &bytes);
    }
    if let Some(processes) = processes {
        digest = digest.of_all(processes)?;
    }
    tensors.iter().for_each(|tensor| digest.shape(tensor));
    let mut text = digest.finish();
    if let Some(processes) = processes {
        let mut first = text.into_bytes();
        processes.tell(0, &mut first).map_err(exchange_error("the digest of all rows"))?;
        text = String::from_utf8(first)
            .map_err(|error| exchange_error("the digest of all rows")(error.into()))?;
    }
    Ok(text)
}

/// What the processes of a job tell each other has failed.
pub(crate) fn exchange_error(what: &'static str) -> impl FnOnce(Cause) -> CheckpointError {
    move |source| CheckpointError::Exchange { what, source }
}

/// Portions (first row, rows) of `rows` rows from `first_row` on, each of about [`CHUNK_BYTES`] and
/// at least one row.
pub(crate) fn chunks(width: u64, first_row: u64, rows: u64) -> impl Iterator<Item = (u64, u64)> {
    chunks_of(CHUNK_BYTES, width, first_row, rows)
}

/// The same, each of about so many bytes.
pub(crate) fn chunks_of(
    bytes: u64,
    width: u64,
    first_row: u64,
    rows: u64,
) -> impl Iterator<Item = (u64, u64)> {
    let portion = (bytes / 4 / width).max(1);
    let end = first_row + rows;
    (0..rows.div_ceil(portion)).map(move |index| {
        let first = first_row + index * portion;
        (first, portion.min(end - first))
    })
}

pub(crate) fn read_error(tensor: &str) -> impl FnOnce(Cause) -> CheckpointError {
    let tensor = tensor.to_owned();
    move |source| CheckpointError::Tensor { tensor, action: "read from the model", source }
}

/// The values as little-endian bytes, in a buffer that is used again.
pub(crate) fn to_bytes(values: &[f32], bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend_from_slice(values.as_bytes());
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(4).for_each(<[u8]>::reverse);
    }
}

/// Builds a digest from rows in any order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct WeightsDigest {
    tensors: BTreeMap<String, TensorDigest>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct TensorDigest {
    shape: Vec<u64>,
    sum: u128,
}

impl WeightsDigest {
    /// Adds rows `first_row ..` of the tensor `name`: `bytes` holds whole rows of `width` numbers.
    pub fn add(&mut self, name: &str, width: u64, first_row: u64, bytes: &[u8]) {
        let sum = (first_row..)
            .zip(bytes.chunks_exact(width as usize * 4))
            .map(|(row, bytes)| {
                let mut keyed = [0; 24];
                keyed[..16].copy_from_slice(&xxh3_128(bytes).to_le_bytes());
                keyed[16..].copy_from_slice(&row.to_le_bytes());
                xxh3_128(&keyed)
            })
            .fold(0_u128, u128::wrapping_add);
        match self.tensors.get_mut(name) {
            Some(tensor) => tensor.sum = tensor.sum.wrapping_add(sum),
            None => {
                self.tensors.insert(name.to_owned(), TensorDigest { shape: Vec::new(), sum });
            }
        }
    }

    /// Adds the rows that another digest has seen; no row may be in both.
    pub fn merge(&mut self, other: Self) {
        for (name, part) in other.tensors {
            let tensor = self.tensors.entry(name).or_default();
            tensor.sum = tensor.sum.wrapping_add(part.sum);
        }
    }

    /// For process 0, the rows that all have seen, each some.
    pub fn of_all(self, processes: &dyn Peers) -> Result<Self, CheckpointError> {
        let what = "the digest of its rows";
        let own = serde_json::to_vec(&self).expect("a digest has text keys only");
        let said = processes.gather(&own).map_err(exchange_error(what))?;
        let mut all = Self::default();
        for said in said {
            let part = serde_json::from_slice(&said);
            all.merge(part.map_err(|error| exchange_error(what)(error.into()))?);
        }
        Ok(all)
    }

    pub fn shape(&mut self, tensor: &Tensor) {
        self.tensors.entry(tensor.name.clone()).or_default().shape.clone_from(&tensor.shape);
    }

    /// The digest of everything added.
    pub fn finish(self) -> String {
        let mut all = Vec::new();
        for (name, tensor) in self.tensors {
            let mut bytes = name.into_bytes();
            bytes.push(0);
            bytes.extend(tensor.shape.iter().flat_map(|axis| axis.to_le_bytes()));
            bytes.extend(tensor.sum.to_le_bytes());
            all.extend(xxh3_128(&bytes).to_le_bytes());
        }
        format!("{:032x}", xxh3_128(&all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(rows: &[(u64, &[f32])], width: u64) -> String {
        let mut digest = WeightsDigest::default();
        for (first_row, values) in rows {
            let mut bytes = Vec::new();
            to_bytes(values, &mut bytes);
            digest.add("table.C1.weight", width, *first_row, &bytes);
        }
        digest.finish()
    }

    #[test]
    fn rows_may_come_in_any_order_and_portion() {
        let whole = digest(&[(0, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])], 2);
        assert_eq!(whole, digest(&[(2, &[5.0, 6.0]), (0, &[1.0, 2.0, 3.0, 4.0])], 2));
        assert_eq!(whole.len(), 32);
    }

    #[test]
    fn every_bit_and_place_counts() {
        let whole = digest(&[(0, &[0.0, 2.0, 0.0, 4.0])], 2);
        assert_ne!(whole, digest(&[(0, &[-0.0, 2.0, 0.0, 4.0])], 2), "the sign of zero");
        assert_ne!(whole, digest(&[(0, &[0.0, 4.0, 0.0, 2.0])], 2), "two rows changed places");
        assert_ne!(whole, digest(&[(0, &[2.0, 0.0, 4.0, 0.0])], 2), "within the row");
        assert_ne!(whole, digest(&[(0, &[0.0, 2.0, 0.0, 4.0])], 1), "another width");
        assert_ne!(digest(&[(0, &[7.0])], 1), digest(&[(1, &[7.0])], 1), "another row");
    }

    #[test]
    fn portions_cover_all_rows() {
        let seen: Vec<_> = chunks(CHUNK_BYTES / 8, 5, 5).collect();
        assert_eq!(seen, [(5, 2), (7, 2), (9, 1)]);
        assert_eq!(chunks(CHUNK_BYTES, 0, 2).count(), 2);
        assert_eq!(chunks(1, 3, 0).count(), 0);
    }
}
