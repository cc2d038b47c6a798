//! The ways of rows and gradients between ranks: what each holds. What each does is in
//! [`crate::iteration::schedule`].

use headlong_comm::DeviceCollectives;
use headlong_device::Mat;

pub(crate) enum Exchange {
    None,
    /// Each rank with each owner. Where every rank knows all ids, none asks for rows.
    Flat {
        knows_all_ids: bool,
    },
    /// Equal rows are merged in the node, by proxies.
    ByNode(ByNode),
    /// Between devices, whose hosts do not know the counts.
    Device(Devices),
}

/// What a rank handles as the proxy of its node.
pub(crate) struct ByNode {
    /// Rows of its peers.
    pub(crate) inside: Mat,
    /// Rows that it asks owners for.
    pub(crate) across: Mat,
}

pub(crate) struct Devices {
    pub(crate) ranks: Box<dyn DeviceCollectives>,
    /// Where equal rows are merged in the node.
    pub(crate) by_node: Option<ByNode>,
}
