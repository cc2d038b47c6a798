//! Equal rows are merged inside the node: each rank asks a proxy of its own node, and the proxies
//! ask the owners, so that one vector per node and row crosses the network. Gradients come back the
//! same way and are summed in the node.

use super::{first, first_mut};
use crate::error::{Error, Result, exchange_failed};
use crate::iteration::model::{ByNode, Model};
use crate::iteration::schedule::At;
use crate::iteration::schedule::at::Access::{Read, Write};
use headlong_comm::Element;
use headlong_embedding::EmbeddingError;
use headlong_embedding::hybrid::RankExchange;

impl ByNode {
    /// Requests go to the proxies, and merged from them to the owners.
    pub(super) fn ids(&self, at: &At<'_>) -> Result<()> {
        let refused = |error: EmbeddingError| Error::failed("ranks ask for too much")(error);
        let (mut route, mut proxy) = (at.route_mut(), at.proxy());
        send(at.model(), proxy.counts_inside(&route))?;
        send(at.model(), proxy.ids_inside(&route).map_err(refused)?)?;
        proxy.merge(at.stream).map_err(refused)?;
        send(at.model(), proxy.counts_across(&mut route))?;
        send(at.model(), proxy.ids_across(&mut route).map_err(refused)?)
    }

    /// Vectors go from their owners to the proxies, and from them to the ranks that asked.
    pub(super) fn vectors(&self, at: &At<'_>) -> Result<()> {
        let (route, mut proxy, ranks) = (at.route(), at.proxy(), &at.model().communicator);
        let (asked, mut requested) =
            (at.send_rows(Read).read::<f32>(), at.recv_rows(Write).write::<f32>());
        let (mut across, mut inside) = (self.across.write::<f32>(), self.inside.write::<f32>());
        let (merged, served) = proxy.vectors_across(&route);
        let (from, num_merged) = (first(asked.data(), served), merged.iter().sum());
        let to = first_mut(across.data_mut(), merged);
        let sent = ranks.all_to_all_v(from, served, to, merged);
        sent.map_err(exchange_failed("the vectors"))?;
        let num_inside = proxy.vectors_inside(&route).1.iter().sum();
        let (across, inside) =
            (&across.data_mut()[..num_merged], &mut inside.data_mut()[..num_inside]);
        proxy.expand(at.stream, across, inside);
        let (own, served) = proxy.vectors_inside(&route);
        let to = first_mut(requested.data_mut(), own);
        ranks.all_to_all_v(inside, served, to, own).map_err(exchange_failed("the vectors"))
    }

    /// Gradients go to the proxies, which sum those of their node, and from them to the owners.
    pub(super) fn gradients(&self, at: &At<'_>) -> Result<()> {
        let failed = || exchange_failed("the gradients of rows");
        let (route, mut proxy, ranks) = (at.route(), at.proxy(), &at.model().communicator);
        let (requested, mut asked) =
            (at.recv_rows(Read).read::<f32>(), at.send_rows(Write).write::<f32>());
        let (mut across, mut inside) = (self.across.write::<f32>(), self.inside.write::<f32>());
        let (own, served) = proxy.vectors_inside(&route);
        let num_inside = served.iter().sum();
        let (from, to) = (first(requested.data(), own), first_mut(inside.data_mut(), served));
        ranks.all_to_all_v_in_full_range(from, own, to, served).map_err(failed())?;
        let num_merged = proxy.vectors_across(&route).0.iter().sum();
        let (inside, across) =
            (&inside.data_mut()[..num_inside], &mut across.data_mut()[..num_merged]);
        proxy.reduce(at.stream, inside, across);
        let (merged, served) = proxy.vectors_across(&route);
        let to = first_mut(asked.data_mut(), served);
        ranks.all_to_all_v_in_full_range(across, merged, to, served).map_err(failed())
    }
}

fn send<T: Element>(model: &Model, exchange: RankExchange<'_, T>) -> Result<()> {
    let RankExchange { send, send_counts, receive, receive_counts } = exchange;
    let sent = model.communicator.all_to_all_v(send, send_counts, receive, receive_counts);
    sent.map_err(exchange_failed("the ids"))
}
