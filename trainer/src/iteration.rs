//! One training step: the stages and their order ([`schedule`]), the lanes they run on, the model
//! they work on, and the ranks of this process.

pub mod arithmetic;
pub mod job;
pub mod lanes;
pub mod model;
pub(crate) mod model_state;
pub mod ranks;
pub(crate) mod row_exchange;
pub mod schedule;
pub mod share;
pub(crate) mod table_state;
pub mod trace;
pub mod worker;
