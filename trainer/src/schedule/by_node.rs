//! The exchanges of a step where equal rows are merged inside the node: each rank asks a proxy of
//! its own node, and the proxies ask the owners, so that one vector per node and row crosses the
//! network. Gradients come back the same way and are summed in the node.

use super::stages::{first, first_mut};
use crate::build::{BatchSlot, Model};
use crate::crew::exchange_failed;
use crate::data::failed;
use crate::error::Result;
use headlong_comm::Element;
use headlong_device::Stream;
use headlong_embedding::EmbeddingError;
use headlong_embedding::hybrid::{NodeProxy, RankExchange};

/// Requests go to the proxies, and merged from them to the owners.
pub(super) fn exchange_ids(
    model: &Model,
    stream: &Stream,
    slot: &BatchSlot,
    proxy: &mut NodeProxy,
) -> Result<()> {
    let refused = |error: EmbeddingError| failed("ranks ask for too much", error);
    {
        let route = slot.route();
        send(model, proxy.counts_inside(&route))?;
        send(model, proxy.ids_inside(&route).map_err(refused)?)?;
    }
    proxy.merge(stream).map_err(refused)?;
    let mut route = slot.route_mut();
    send(model, proxy.counts_across(&mut route))?;
    send(model, proxy.ids_across(&mut route).map_err(refused)?)
}

fn send<T: Element>(model: &Model, exchange: RankExchange<'_, T>) -> Result<()> {
    let RankExchange { send, send_counts, receive, receive_counts } = exchange;
    let sent = model.communicator.all_to_all_v(send, send_counts, receive, receive_counts);
    sent.map_err(exchange_failed("the ids"))
}

/// Vectors go from their owners to the proxies, and from them to whoever asked.
pub(super) fn exchange_vectors(
    model: &Model,
    stream: &Stream,
    slot: &BatchSlot,
    proxy: &mut NodeProxy,
) -> Result<()> {
    let (route, asked) = (slot.route(), model.asked.read::<f32>());
    let (mut across, mut inside) = (model.across.write::<f32>(), model.inside.write::<f32>());
    let mut requested = model.requested.write::<f32>();
    let (merged, served) = proxy.vectors_across(&route);
    let (from, num_merged) = (first(asked.data(), served), merged.iter().sum());
    let to = first_mut(across.data_mut(), merged);
    model
        .communicator
        .all_to_all_v(from, served, to, merged)
        .map_err(exchange_failed("the vectors"))?;
    let num_inside = proxy.vectors_inside(&route).1.iter().sum();
    let (across, inside) = (&across.data_mut()[..num_merged], &mut inside.data_mut()[..num_inside]);
    proxy.expand(stream, across, inside);
    let (own, served) = proxy.vectors_inside(&route);
    let to = first_mut(requested.data_mut(), own);
    model.communicator.all_to_all_v(inside, served, to, own).map_err(exchange_failed("the vectors"))
}

/// Gradients go to the proxies, which sum those of their node, and from them to the owners.
pub(super) fn exchange_gradients(
    model: &Model,
    stream: &Stream,
    slot: &BatchSlot,
    proxy: &mut NodeProxy,
) -> Result<()> {
    let (route, requested) = (slot.route(), model.requested.read::<f32>());
    let (mut across, mut inside) = (model.across.write::<f32>(), model.inside.write::<f32>());
    let mut asked = model.asked.write::<f32>();
    let (own, served) = proxy.vectors_inside(&route);
    let num_inside = served.iter().sum();
    let (from, to) = (first(requested.data(), own), first_mut(inside.data_mut(), served));
    let exchanged = model.communicator.all_to_all_v(from, own, to, served);
    exchanged.map_err(exchange_failed("the gradients of rows"))?;
    let num_merged = proxy.vectors_across(&route).0.iter().sum();
    let (inside, across) = (&inside.data_mut()[..num_inside], &mut across.data_mut()[..num_merged]);
    proxy.reduce(stream, inside, across);
    let (merged, served) = proxy.vectors_across(&route);
    let to = first_mut(asked.data_mut(), served);
    let exchanged = model.communicator.all_to_all_v(across, merged, to, served);
    exchanged.map_err(exchange_failed("the gradients of rows"))
}
