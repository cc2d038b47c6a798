//! A captured sequence of work, replayed by one call.

use super::{CudaDevice, CudaStream, driver};
use crate::error::Result;
use cudarc::driver::sys::{self, CUgraphNodeType_enum as NodeType};
use std::sync::{Mutex, PoisonError};

/// A captured, instantiated and uploaded graph. The memory and kernels it uses must outlive it:
/// arenas and modules do.
#[derive(Debug)]
pub struct Graph {
    device: CudaDevice,
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    nodes: usize,
    kernel_nodes: usize,
    /// The driver leaves it to its callers that one thread at a time uses a graph.
    turn: Mutex<()>,
}

// SAFETY: handles of the driver, which any thread may use, one at a time.
unsafe impl Send for Graph {}
// SAFETY: every use of the handles through `&self` takes its turn.
unsafe impl Sync for Graph {}

impl Graph {
    /// Instantiates what was captured on `stream` and uploads it.
    pub(crate) fn instantiate(stream: &CudaStream, graph: sys::CUgraph) -> Result<Self> {
        let device = stream.device().clone();
        let executable = std::ptr::null_mut();
        let mut made =
            Self { device, graph, executable, nodes: 0, kernel_nodes: 0, turn: Mutex::new(()) };
        (made.nodes, made.kernel_nodes) = count(graph)?;
        // SAFETY: `graph` is a captured graph, owned by `made`.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut made.executable, graph, 0) };
        driver::check(code, || format!("instantiating a graph of {} nodes", made.nodes))?;
        // SAFETY: just instantiated, for the stream's device.
        let code = unsafe { sys::cuGraphUpload(made.executable, stream.stream()) };
        driver::check(code, || format!("uploading a graph of {} nodes", made.nodes))?;
        Ok(made)
    }

    /// Enqueues one replay. A failure is kept in the stream.
    pub fn launch(&self, stream: &CudaStream) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        stream.attempt(|raw| {
            // SAFETY: the executable is alive; the stream is of the same device.
            let code = unsafe { sys::cuGraphLaunch(self.executable, raw) };
            driver::check(code, || format!("launching a graph of {} nodes", self.nodes))
        });
    }

    /// Nodes of any kind.
    pub fn num_nodes(&self) -> usize {
        self.nodes
    }

    /// Nodes that are kernels.
    pub fn num_kernel_nodes(&self) -> usize {
        self.kernel_nodes
    }
}

/// Nodes, and kernel nodes, of a graph.
fn count(graph: sys::CUgraph) -> Result<(usize, usize)> {
    let what = || "counting a graph's nodes".to_owned();
    let mut len = 0;
    // SAFETY: with no place for the nodes, only their number is returned.
    driver::check(unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut len) }, what)?;
    let mut nodes = vec![std::ptr::null_mut(); len];
    // SAFETY: room for `len` nodes.
    driver::check(unsafe { sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut len) }, what)?;
    let mut kernels = 0;
    for &node in &nodes {
        let mut kind = NodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: a node of the living graph.
        driver::check(unsafe { sys::cuGraphNodeGetType(node, &mut kind) }, what)?;
        kernels += usize::from(kind == NodeType::CU_GRAPH_NODE_TYPE_KERNEL);
    }
    Ok((len, kernels))
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.bind().is_err() {
            return;
        }
        if !self.executable.is_null() {
            // SAFETY: instantiated here and destroyed only here; the driver keeps it until running
            // launches are done.
            unsafe { sys::cuGraphExecDestroy(self.executable) };
        }
        // SAFETY: captured for this value and destroyed only here.
        unsafe { sys::cuGraphDestroy(self.graph) };
    }
}
