//! What ranks exchange in a step, whichever way it goes: ids, vectors, gradients, and sums of
//! gradients.

mod by_node;
mod device;
mod divided;

use super::at::Access::{Read, Write};
use super::tables::update_replicated_range;
use super::{At, Resource};
use crate::error::{Error, Result, exchange_failed};
use crate::iteration::model::{BatchIds, Exchange, Model};
use headlong_embedding::Ids;
use headlong_embedding::hybrid::RankExchange;
use std::ops::Range;

impl Exchange {
    /// Ranks ask owners for rows.
    pub(crate) fn ids(&self, at: &At<'_>) -> Result<()> {
        match self {
            Self::None | Self::Flat { knows_all_ids: true } => Ok(()),
            Self::Flat { knows_all_ids: false } => ask(at),
            Self::ByNode(proxies) => proxies.ids(at),
            Self::Device(devices) => devices.ids(at),
        }
    }

    /// Owners sort the requests that they receive, or what they know would be requested.
    pub(super) fn receive_requests(&self, at: &At<'_>) -> Result<()> {
        let (tables, mut route) = (&at.model().tables, at.route_mut());
        let received = match self {
            Self::Flat { knows_all_ids: true } => {
                let shares = at.shares();
                let ids: Vec<_> = shares.iter().map(BatchIds).collect();
                let ids: Vec<&dyn Ids> = ids.iter().map(|ids| ids as &dyn Ids).collect();
                tables.receive_known_requests(at.stream, &mut route, &ids)
            }
            _ => tables.receive_requests(at.stream, &mut route),
        };
        received.map_err(Error::failed("the rows that ranks ask for cannot be found"))
    }

    /// Vectors go from their owners to the ranks that request them.
    pub(crate) fn vectors(&self, at: &At<'_>) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Flat { .. } => {
                let route = at.route();
                let (to_send, requests) = route.vector_exchange();
                let (from, mut to) = (at.send_rows(Read).read(), at.recv_rows(Write).write());
                let (from, to) = (first(from.data(), to_send), first_mut(to.data_mut(), requests));
                let ranks = &at.model().communicator;
                let sent = ranks.all_to_all_v(from, to_send, to, requests);
                sent.map_err(exchange_failed("the vectors"))
            }
            Self::ByNode(proxies) => proxies.vectors(at),
            Self::Device(devices) => devices.vectors(at),
        }
    }

    /// Gradients go the way back that the vectors came.
    pub(crate) fn gradients(&self, at: &At<'_>) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Flat { .. } => {
                let route = at.route();
                let (to_send, requests) = route.vector_exchange();
                let (from, mut to) = (at.recv_rows(Read).read(), at.send_rows(Write).write());
                let (from, to) = (first(from.data(), requests), first_mut(to.data_mut(), to_send));
                let ranks = &at.model().communicator;
                let sent = ranks.all_to_all_v_in_full_range(from, requests, to, to_send);
                sent.map_err(exchange_failed("the gradients of rows"))
            }
            Self::ByNode(proxies) => proxies.gradients(at),
            Self::Device(devices) => devices.gradients(at),
        }
    }

    /// The logits of all ranks, in the order of the samples. The last shares may be short: what
    /// lies after their ends is not looked at.
    pub(crate) fn gather_logits(&self, at: &At<'_>) -> Result<()> {
        let (mine, all) = at.all_logits();
        match self {
            Self::None => Ok(()),
            Self::Flat { .. } | Self::ByNode(_) => {
                let ranks = &at.model().communicator;
                let share_len = at.call.num_samples_of_all.div_ceil(ranks.num_ranks());
                let (mine, mut all) = (mine.read::<f32>(), all.write::<f32>());
                let all = &mut all.data_mut()[..share_len * ranks.num_ranks()];
                let gathered = ranks.all_gather(&mine.data()[..share_len], all);
                gathered.map_err(exchange_failed("the predictions"))
            }
            Self::Device(devices) => devices.gather_logits(at, mine, all),
        }
    }
}

fn ask(at: &At<'_>) -> Result<()> {
    let (mut route, ranks) = (at.route_mut(), &at.model().communicator);
    let (counts, recv_counts) = route.count_exchange();
    let sent = ranks.all_to_all(counts, recv_counts);
    sent.map_err(exchange_failed("the numbers of ids"))?;
    let exchange = route.id_exchange();
    let RankExchange { send, send_counts, receive, receive_counts } =
        exchange.map_err(Error::failed("ranks ask for too much"))?;
    let sent = ranks.all_to_all_v(send, send_counts, receive, receive_counts);
    sent.map_err(exchange_failed("the ids"))
}

/// Sums gradients and loss sums over all ranks, in pieces: a transport that moves bytes by itself
/// continues while a piece's rows are updated. Where the loss is scaled, all gradients are looked
/// at before any row moves.
pub(super) fn all_reduce_and_update_replicated(at: &At<'_>) -> Result<()> {
    at.declared(Resource::LearningRates, Read);
    // First, so that what a rank finds in its part is added up with the rest.
    at.model().divided.as_ref().map_or(Ok(()), |divided| divided.reduce(at))?;
    let Model { tables, communicator: ranks, chunk_len, config, .. } = at.model();
    let (mut updated, is_scaled) = (Ok(()), at.loss_scale(Read).is_some());
    let len = tables.frequent_len();
    let mut update = |ready: Range<usize>, all: &mut [f32]| {
        let ready = ready.start.min(len)..ready.end.min(len);
        if updated.is_ok() && !is_scaled {
            updated = update_replicated_range(at, &all[..len], ready);
        }
    };
    let exact = at.exact_sums();
    let mut all = at.reduced().write_all::<f32>();
    let reduced = match config.is_narrow() {
        false => ranks.all_reduce_chunks(&mut all, *chunk_len, &mut update),
        true => {
            let (frequent, rest) = all.split_at_mut(exact.start);
            let (exact, dense) = rest.split_at_mut(exact.len());
            ranks
                .all_reduce_chunks_as_bf16(frequent, *chunk_len, &mut update)
                .and_then(|()| ranks.all_reduce(exact))
                .and_then(|()| ranks.all_reduce_chunks_as_bf16(dense, *chunk_len, &mut |_, _| {}))
        }
    };
    reduced.map_err(exchange_failed("the gradients"))?;
    updated.map_err(Error::failed("the replicated rows cannot be updated"))
}

fn first<'a>(values: &'a [f32], counts: &[usize]) -> &'a [f32] {
    &values[..counts.iter().sum()]
}

fn first_mut<'a>(values: &'a mut [f32], counts: &[usize]) -> &'a mut [f32] {
    &mut values[..counts.iter().sum()]
}
