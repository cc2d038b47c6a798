// Optimiser formulas: the same as device/src/optimizer.rs.
