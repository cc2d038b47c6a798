//! Tests of the CUDA layer: on the first device there is, a GPU or the software device; skipped
//! with a line elsewhere.

mod caching;
mod compiling;
mod formulas;
mod numbers;
mod products;
mod streams;
mod transfers;

use super::Source;

static PRELUDE_TEST: Source =
    Source { name: "device/prelude-test", text: include_str!("../../cuda/tests/prelude.cu") };
static OPTIMIZER_TEST: Source =
    Source { name: "device/optimizer-test", text: include_str!("../../cuda/tests/optimizer.cu") };
static STREAM_TEST: Source =
    Source { name: "device/stream-test", text: include_str!("../../cuda/tests/stream.cu") };
