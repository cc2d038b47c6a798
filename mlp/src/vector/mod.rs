//! What the ops' bodies share and what needs `unsafe`: disjoint tiles of one matrix for many tasks.

mod tiles;

pub use tiles::{Tile, for_each_chunk_of_three, for_each_row_tile, for_each_row_tile_of_two, for_each_tile};
