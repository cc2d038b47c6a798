//! Formulas: launches, bytes and operations of each kernel.

use super::{Kind, Model, Path, Row};

/// Ids that one block sorts, and digits of a pass.
const TILE: f64 = 4096.0;
const DIGITS: f64 = 256.0;
/// Entries of a row that one group of lanes adds up.
const CHUNK: f64 = 32.0;

/// What a batch asks of the tables.
struct Ids {
    entries: f64,
    tiles: f64,
    /// Rows, each once.
    distinct: f64,
    /// Parts of rows that are added up at once; those of rows that have several; such rows.
    chunks: f64,
    chunks_of_long: f64,
    long: f64,
    /// Of the table that has most; and tables' own, for each entry and for each tile.
    passes: f64,
    entry_passes: f64,
    tile_passes: f64,
    /// Values that digits of all passes can have.
    digits: f64,
    bags: f64,
    /// Of tables that have several ids a sample: bounds of bags, and entries, each with its bag.
    offsets: f64,
    in_bags: f64,
}

impl Ids {
    fn of(model: &Model) -> Self {
        let mut ids = Self {
            entries: 0.0,
            tiles: 0.0,
            distinct: 0.0,
            chunks: 0.0,
            chunks_of_long: 0.0,
            long: 0.0,
            passes: 1.0,
            entry_passes: 0.0,
            tile_passes: 0.0,
            digits: 0.0,
            bags: model.batch * model.tables.len() as f64,
            offsets: 0.0,
            in_bags: 0.0,
        };
        for table in &model.tables {
            let entries = model.batch * table.hotness;
            ids.entries += entries;
            let tiles = (entries / TILE).ceil().max(1.0);
            ids.tiles += tiles;
            ids.distinct += table.frequencies.distinct(entries);
            if table.hotness > 1.0 {
                ids.offsets += model.batch + 1.0;
                ids.in_bags += entries;
            }
            let bits = f64::from(u64::BITS - (table.rows.max(2) - 1).leading_zeros());
            let passes = (bits / 8.0).ceil();
            ids.passes = ids.passes.max(passes);
            ids.entry_passes += passes * entries;
            ids.tile_passes += passes * tiles;
            ids.digits += passes * (bits / passes).ceil().exp2();
            for class in &table.frequencies.0 {
                let expected = entries * class.share;
                if expected > CHUNK {
                    ids.long += class.rows;
                    ids.chunks_of_long += class.rows * (expected / CHUNK + 0.5);
                }
            }
        }
        ids.chunks = ids.distinct - ids.long + ids.chunks_of_long;
        ids
    }
}

/// Rows, and which stages wait for each other.
pub fn of(model: &Model) -> (Vec<Row>, Path) {
    let ids = Ids::of(model);
    let mut rows = Vec::new();
    if model.bottom.is_empty() {
        rows.extend(route(&ids));
        rows.push(pool(model, &ids));
        rows.extend(update(model, &ids));
        return (rows, vec![vec!["route"], vec!["pool"], vec!["update_owned"]]);
    }
    rows.push(rounded_copy("bottom_forward", model.batch, model.num_dense, model));
    rows.extend(forward(model, "bottom_forward", &widths(model.num_dense, &model.bottom)));
    rows.push(pool(model, &ids));
    rows.extend(interaction(model));
    let into_top = input_of_top(model);
    if let Some((layers, rank)) = model.cross {
        let products = cross_widths(into_top, layers, rank);
        rows.extend(products.iter().flat_map(|pair| forward(model, "cross_forward", pair)));
        rows.extend(products.iter().flat_map(|pair| backward(model, "cross_backward", pair, true)));
        rows.extend(between_cross_layers(model, into_top, layers as f64));
    }
    rows.extend(forward(model, "top_forward", &widths(into_top, &model.top)));
    rows.extend(loss(model));
    rows.push(rounded_copy("top_backward", model.batch, 1.0, model));
    rows.extend(backward(model, "top_backward", &widths(into_top, &model.top), true));
    rows.extend(backward(model, "bottom_backward", &widths(model.num_dense, &model.bottom), false));
    rows.extend(update(model, &ids));
    rows.extend(dense_optimizer(model, into_top));
    rows.extend(route(&ids));
    let mut path = vec![vec!["pool", "bottom_forward"], vec!["interaction_forward"]];
    path.extend(model.cross.map(|_| vec!["cross_forward"]));
    path.extend([vec!["top_forward"], vec!["loss"], vec!["top_backward"]]);
    path.extend(model.cross.map(|_| vec!["cross_backward"]));
    path.extend([vec!["interaction_backward"], vec!["update_owned", "bottom_backward"]]);
    path.push(vec!["dense_optimizer"]);
    (alike_in_one(rows), path)
}

/// Rows of one stage, kernel and shape in one.
fn alike_in_one(rows: Vec<Row>) -> Vec<Row> {
    let mut merged: Vec<Row> = Vec::new();
    for row in rows {
        let is_alike = |other: &&mut Row| {
            (other.stage, other.kernel, &other.part) == (row.stage, row.kernel, &row.part)
        };
        match merged.iter_mut().find(is_alike) {
            None => merged.push(row),
            Some(other) => {
                other.launches += row.launches;
                other.read += row.read;
                other.written += row.written;
                other.flops += row.flops;
            }
        }
    }
    merged
}

fn row(stage: &'static str, kernel: &'static str, kind: Kind, read: f64, written: f64) -> Row {
    Row { stage, kernel, part: String::new(), kind, launches: 1.0, read, written, flops: 0.0 }
}

/// Keys, and how often each digit occurs; then, least digit first, one launch a pass, in which
/// tiles tell each other what they hold; at last where rows begin.
fn route(ids: &Ids) -> Vec<Row> {
    let words = 4.0 * ids.entries;
    // Of each tile but a table's first the states before it are read; of that the histogram.
    let states = 4.0 * DIGITS * ids.tile_passes;
    let moved = 8.0 * ids.entry_passes;
    let of = |kernel, read, written| row("route", kernel, Kind::Ids, read, written);
    // What is added to is read and written.
    let counted = 4.0 * ids.digits;
    let listed = words + 4.0 * ids.in_bags;
    vec![
        of("route_keys", words + 4.0 * ids.offsets + counted, listed + counted),
        Row {
            launches: ids.passes,
            // Places need not be read in the first pass.
            ..of("sort_pass", moved - words + states, moved + states)
        },
        of("find_chunks", words, 8.0 * (ids.chunks + ids.long)),
    ]
}

/// Each row once, ids and bounds of bags; a vector for each bag.
fn pool(model: &Model, ids: &Ids) -> Row {
    let read = ids.distinct * model.dim * 4.0 + 4.0 * (ids.entries + ids.offsets);
    row("pool", "lookup", Kind::Rows, read, ids.bags * model.dim * model.vector)
}

/// The gradient of each bag, rows and their states, and the sums of rows that have several chunks.
fn update(model: &Model, ids: &Ids) -> Vec<Row> {
    let row_bytes = model.dim * 4.0;
    let short = ids.distinct - ids.long;
    let touched = row_bytes * (1.0 + model.states);
    let read = ids.bags * model.dim * model.d_vector
        + short * touched
        + 4.0 * (ids.entries + ids.in_bags)
        + 8.0 * ids.chunks;
    let written = short * touched + ids.chunks_of_long * row_bytes;
    let of_long = ids.long * touched;
    vec![
        row("update_owned", "update_chunks", Kind::Rows, read, written),
        row(
            "update_owned",
            "update_longs",
            Kind::Rows,
            ids.chunks_of_long * row_bytes + of_long,
            of_long,
        ),
    ]
}

/// Widths of a stack, its input first.
fn widths(input: f64, outputs: &[f64]) -> Vec<f64> {
    std::iter::once(input).chain(outputs.iter().copied()).collect()
}

fn features(model: &Model) -> f64 {
    model.tables.len() as f64 + 1.0
}

fn input_of_top(model: &Model) -> f64 {
    let features = features(model);
    match model.cross {
        None => model.dim + features * (features - 1.0) / 2.0,
        Some(_) => features * model.dim,
    }
}

/// Each layer of a cross network is a pair of products, through its rank.
fn cross_widths(width: f64, layers: usize, rank: f64) -> Vec<Vec<f64>> {
    vec![vec![width, rank, width]; layers]
}

/// Rows of 16-bit elements are filled up to sixteen bytes.
fn filled(width: f64, element: f64) -> f64 {
    let whole = 16.0 / element;
    if element == 4.0 || width == 1.0 { width } else { (width / whole).ceil() * whole }
}

/// Bytes of the three matrices of a product of a layer, each once.
pub(crate) fn product_bytes(samples: f64, inputs: f64, outputs: f64, element: f64) -> f64 {
    element * (samples * (inputs + outputs) + inputs * outputs)
}

/// Bytes that an optimiser moves: gradient, weight and state are read, weight and state written,
/// and the weight once more in `packed` bytes.
pub(crate) fn optimizer_bytes(parameters: f64, state_bytes: f64, packed: f64) -> f64 {
    parameters * (12.0 + packed) + 2.0 * state_bytes
}

fn forward(model: &Model, stage: &'static str, widths: &[f64]) -> Vec<Row> {
    let layers = widths.windows(2).map(|two| {
        let (inputs, outputs) = (filled(two[0], model.element), two[1]);
        let (batch, element) = (model.batch, model.element);
        let mask = if outputs > 1.0 { batch * outputs / 8.0 } else { 0.0 };
        Row {
            part: format!("{}x{outputs}", two[0]),
            flops: 2.0 * batch * inputs * outputs,
            ..row(
                stage,
                "cublasLtMatmul",
                Kind::Product,
                product_bytes(batch, inputs, outputs, element) - element * batch * outputs,
                element * batch * outputs + mask,
            )
        }
    });
    layers.collect()
}

/// Gradients of weights, and of inputs where they are wanted.
fn backward(model: &Model, stage: &'static str, widths: &[f64], of_input: bool) -> Vec<Row> {
    let (batch, element) = (model.batch, model.element);
    let mut rows = Vec::new();
    for (index, two) in widths.windows(2).enumerate() {
        let (inputs, outputs) = (filled(two[0], element), two[1]);
        let flops = 2.0 * batch * inputs * outputs;
        let gradients = element * batch * (inputs + outputs);
        let product = |part: &str, read, written| Row {
            part: format!("{}x{outputs} {part}", two[0]),
            flops,
            ..row(stage, "cublasLtMatmul", Kind::Product, read, written)
        };
        rows.push(product("weights", gradients, 4.0 * inputs * outputs));
        if index > 0 || of_input {
            let written = element * batch * inputs;
            let read = product_bytes(batch, inputs, outputs, element) - written;
            rows.push(product("data", read, written));
        }
        // The gradient of every layer's sums, where another follows masked by its ReLU.
        let (of_layer, is_last) = (element * batch * outputs, index + 2 == widths.len());
        let (mask, written) = if is_last { (0.0, 0.0) } else { (batch * outputs / 8.0, of_layer) };
        // Parts of 128 rows and more, of which a megabyte of scratch memory holds the sums.
        let parts = (batch / 128.0).min(f64::from(1 << 18) / outputs).floor().max(1.0);
        let sums = 4.0 * outputs * parts;
        rows.push(row(stage, "mask_and_sum", Kind::Stream, of_layer + mask, written + sums));
        rows.push(row(stage, "sum_parts", Kind::Stream, sums, 4.0 * outputs));
        // Block sums have room for what fills rows up: then they are copied.
        if inputs != two[0] {
            let bytes = 4.0 * (two[0] * outputs + outputs);
            rows.push(Row {
                launches: 2.0,
                ..row(stage, "add_blocks", Kind::Stream, bytes, bytes)
            });
        }
    }
    rows
}

/// A copy in the element of products.
fn rounded_copy(stage: &'static str, rows: f64, cols: f64, model: &Model) -> Row {
    let written = rows * filled(cols + 0.5, model.element) * model.element;
    row(stage, "copy_rounded", Kind::Stream, 4.0 * rows * cols, written)
}

fn interaction(model: &Model) -> Vec<Row> {
    let features = features(model);
    let bottom = model.batch * model.dim * model.element;
    let pooled = model.batch * (features - 1.0) * model.dim * model.vector;
    let out = model.batch * filled(input_of_top(model), model.element) * model.element;
    let of = |stage, kernel, read, written, flops| Row {
        flops,
        ..row(stage, kernel, Kind::Interaction, read, written)
    };
    let (forward, backward) = ("interaction_forward", "interaction_backward");
    match model.cross {
        Some(_) => vec![
            of(forward, "cat_forward", pooled + bottom, out, 0.0),
            of(backward, "cat_backward", out, pooled + bottom, 0.0),
        ],
        None => {
            // Tiles of sixteen rows, their lower half.
            let flops = 2.0 * model.batch * 32.0 * 32.0 * model.dim;
            let both = pooled + bottom;
            let gradients = pooled / model.vector * model.d_vector + bottom;
            vec![
                of(forward, "tensor_forward", both, out, 0.75 * flops),
                of(backward, "tensor_backward", both + out, gradients, flops),
            ]
        }
    }
}

/// What a cross network does besides products. The first layer's input is that of the network.
fn between_cross_layers(model: &Model, width: f64, layers: f64) -> Vec<Row> {
    let pass = model.batch * width * model.element;
    let of = |stage, kernel, read: f64, written: f64| Row {
        launches: layers,
        ..row(stage, kernel, Kind::Stream, read * pass, written * pass)
    };
    vec![
        of("cross_forward", "cross_forward", 3.0 * layers - 1.0, layers),
        of("cross_backward", "cross_backward", 4.0 * layers - 1.0, 2.0 * layers),
    ]
}

fn loss(model: &Model) -> Vec<Row> {
    let batch = model.batch;
    vec![
        row("loss", "loss_parts", Kind::Stream, 8.0 * batch, 4.0 * batch),
        row("loss", "find_non_finite", Kind::Stream, 8.0, 0.0),
    ]
}

/// Gradients, weights and states; weights once more in the element of products.
fn dense_optimizer(model: &Model, into_top: f64) -> Vec<Row> {
    let of_stack =
        |widths: &[f64]| -> f64 { widths.windows(2).map(|two| two[0] * two[1] + two[1]).sum() };
    let cross: f64 = model
        .cross
        .map_or(0.0, |(layers, rank)| layers as f64 * (2.0 * into_top * rank + into_top));
    let parameters = of_stack(&widths(model.num_dense, &model.bottom))
        + of_stack(&widths(into_top, &model.top))
        + cross;
    let state_bytes = 4.0 * model.states * parameters;
    let written = parameters * (4.0 + model.element) + state_bytes;
    let read = optimizer_bytes(parameters, state_bytes, model.element) - written;
    vec![row("dense_optimizer", "optim_step", Kind::Stream, read, written)]
}
